"""A write call in process passes few of our functions."""

from functools import partial
from pathlib import Path

from stateroom import Sessions, open_store
from stateroom.gallery import CounterEnvironment
from tests.frames import shortest_walk


async def test_a_warm_write_call_passes_few_functions(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/sessions.db") as store:
        session = await Sessions(CounterEnvironment(), store).seed({"initial_count": 0, "expected_count": 1})
        walk = await shortest_walk(partial(session.call, "increment_counter", {"count": 1}))
    assert len(walk.steps) <= 34, str(walk)
    assert len(walk.files) <= 11, str(walk)
