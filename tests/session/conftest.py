from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stateroom.store import Store, open_store


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where each kind of store may be opened."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'rooms.db'}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    async with open_store(url) as opened:
        yield opened
