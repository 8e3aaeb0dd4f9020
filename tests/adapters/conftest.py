import pytest

from stateroom.adapters.langgraph import StateroomSaver
from stateroom.store import Store


@pytest.fixture
async def saver(store: Store) -> StateroomSaver:
    return StateroomSaver(store)
