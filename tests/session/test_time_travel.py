"""Whatever was called, rewound, forked, named, pruned and reopened: sessions are what a model says, on every store."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from stateroom import Sessions
from stateroom.store import Store
from tests.examples import share
from tests.servers.stores import fresh_store
from tests.session.shelf import ShelfEnvironment
from tests.session.travel_model import Run, steps

SHARES = {"memory": 1, "sqlite": 0.3, "file": 0.15, "redis": 0.2, "postgresql": 0.1, "tiered": 0.15}
"""How many of the programs are run on a store of each kind."""


async def carry_out(url: str, program: list[Any], large: int) -> None:
    async with AsyncExitStack() as stack:
        running = Run(url)
        await running.start(stack, large)
        for step in program:
            await running.step(*step)
        await running.check_all()
        await running.reopen(True)
        await running.check_all()


programs = st.fixed_dictionaries(
    {
        "program": st.lists(steps, min_size=15, max_size=60),
        "smallest": st.sampled_from([1, 60, 300]),
        "ratio": st.sampled_from([0, 2]),
        "trail": st.sampled_from([1, 2, 8]),
        "light": st.sampled_from([0, 2**16]),
        "large": st.sampled_from([200, Store.large]),
    }
)
"""What happens to sessions, and with what settings."""


def check_program(
    url: str, *, program: list[Any], smallest: int, ratio: int, trail: int, light: int, large: int
) -> None:
    """Carry out a program on a fresh store: at every revision, each session is what it must be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stateroom.session.cached_session.MIN_SNAPSHOT", smallest)
        patch.setattr("stateroom.session.cached_session.SNAPSHOT_RATIO", ratio)
        patch.setattr("stateroom.session.cached_session.SMALL_STATE_BYTES", light)
        for module in ("cached_session", "maintenance.retention"):
            patch.setattr(f"stateroom.session.{module}.STATES_IN_MEMORY", trail)
        asyncio.run(carry_out(url, program, large))


@pytest.mark.parametrize("kind", SHARES)
def test_every_session_is_what_it_must_be_at_every_revision(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    @settings(max_examples=share(SHARES[kind]), suppress_health_check=list(HealthCheck))
    @given(programs)
    def holds(program: dict[str, Any]) -> None:
        with fresh_store(kind, request.getfixturevalue, tmp_path) as url:
            check_program(url, **program)

    holds()


async def test_a_call_that_fails_fails_on_the_newest_state(store: Store) -> None:
    here, there = [Sessions(ShelfEnvironment(), store) for _ in range(2)]
    session = await here.seed({})
    other = await there.open(session.id)
    await other.call("put", {"key": "a", "name": "tea"}, call_id="c1")
    assert (await session.call("tag", {"key": "a", "tag": "green"})).ok  # though it was not there, as far as was known
    again = await session.call("tag", {"key": "b", "tag": "green"}, call_id="c1")
    assert (again.ok, again.output) == (True, 1)
