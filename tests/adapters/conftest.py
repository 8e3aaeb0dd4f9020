import pytest

from stateroom.adapters.langgraph import StateroomSaver
from stateroom.store import Store
from tests.more import IS_THERE

collect_ignore = [] if IS_THERE["TRL"] else ["test_trl.py", "test_trl_exports.py"]


@pytest.fixture
async def saver(store: Store) -> StateroomSaver:
    return StateroomSaver(store)
