from collections.abc import AsyncIterator

import pytest_asyncio

from stateroom import Sessions, open_store
from stateroom.gallery import Office, OfficeEnvironment
from tests.cli.conftest import stateroom
from tests.server.conftest import serve

__all__ = ["serve", "stateroom"]  # fixtures


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sessions() -> AsyncIterator[Sessions[Office]]:
    """Sessions of the office in one store, which gets the world once."""
    async with open_store("memory://") as store:
        yield Sessions[Office](OfficeEnvironment(), store)
