from collections.abc import AsyncIterator, Callable

import pytest

from stateroom.store import Store, open_store


@pytest.fixture(params=["memory", "sqlite", "redis", "postgresql"])
def url(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> str:
    """Where a fresh store of each kind may be opened."""
    return fresh_url(request.param)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    async with open_store(url) as opened:
        yield opened
