"""A store in a file, which the runs of a test and the test itself open."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stateroom.errors import StoreUnavailable
from stateroom.store import Store, WrappedStore, open_store


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'rooms.db'}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    async with open_store(url) as opened:
        yield opened


class DownStore(WrappedStore):
    """A store that cannot be reached."""

    async def around(self, operation: str, session: str | None, work: Any, /, *args: Any, **kwargs: Any) -> Any:
        raise StoreUnavailable("down")
