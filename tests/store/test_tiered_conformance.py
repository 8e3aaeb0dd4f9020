"""Two tiers together keep every promise of the contract, whatever they are and whichever makes a commit durable."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from stateroom.store import Commit, Snapshot, open_store
from stateroom.store.conformance import StoreConformance, make
from stateroom.store.conformance.helpers import everything
from stateroom.store.conformance.make import LATER, NOW
from stateroom.store.conformance.stateful import check_against_model
from tests.examples import share
from tests.servers.postgresql import fresh_schema
from tests.store.tiers import tiered


class TestSessionsThatMove(StoreConformance):
    """Whatever is in the warm tier moves down with each sweep, and nobody sees a difference."""

    increments = 20

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return tiered(f"sqlite:///{tmp_path}/warm.db", f"sqlite:///{tmp_path}/cold.db", cool=0)


class TestCopies(StoreConformance):
    increments = 20

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return tiered(f"sqlite:///{tmp_path}/warm.db", f"sqlite:///{tmp_path}/cold.db", durable="cold")


@pytest.mark.parametrize("options", [{"cool": 0}, {"durable": "cold"}, {"durable": "cold", "cool": 1}])
def test_tiers_do_what_a_model_does(options: dict[str, object]) -> None:
    check_against_model(lambda: tiered("memory://", "memory://?max_sessions=1000", **options), examples=share(0.4))


@pytest.fixture
def warm(redis_url: str) -> str:
    return f"{redis_url}?prefix={uuid4().hex}:"


@pytest.mark.parametrize("durable", ["warm", "cold"])
async def test_redis_over_postgresql(warm: str, postgresql_url: str, durable: str) -> None:
    with fresh_schema(postgresql_url) as cold:
        await go_down_and_up(tiered(warm, cold, durable=durable, cool=1))


@pytest.mark.parametrize("durable", ["warm", "cold"])
@pytest.mark.more("time")
async def test_redis_over_s3(warm: str, s3_url: str, durable: str) -> None:
    address, _, query = s3_url.partition("?")
    await go_down_and_up(tiered(warm, f"{address}/{uuid4().hex}?{query}", durable=durable, cool=1))


@pytest.mark.parametrize("durable", ["warm", "cold"])
async def test_redis_over_files(warm: str, tmp_path: Path, durable: str) -> None:
    await go_down_and_up(tiered(warm, f"file://{tmp_path}", durable=durable, cool=1))


async def go_down_and_up(url: str) -> None:
    """A family that rests, goes on and rests again is the same after each, in all that can be asked."""
    async with open_store(url) as one, open_store(url) as two:
        entries = [make.entry(number, f"call {number}") for number in (1, 2, 3)]
        await one.create(make.head("a/'\n", revision=3, fence=7), entries, Snapshot(3, b"three"), make.blobs(b"large"))
        await make.fork(one, "fork", "a/'\n", 2, revision=4)
        await one.lease("fork", "me", now=NOW, until=NOW + 1)
        for turn in range(3):
            before = [await everything(two, name) for name in ("a/'\n", "fork")]
            assert await one.sweep(NOW + 10) == 0
            assert [await everything(two, name) for name in ("a/'\n", "fork")] == before
            assert [head.id for head in await two.children("a/'\n")] == ["fork"]
            assert await two.count(NOW) == 2
            entry = make.entry(5 + turn, f"turn {turn}")
            blobs = make.blobs(b"%d" % turn)
            await two.append(
                Commit("fork", entry, expires=LATER, fence=1, snapshot=Snapshot(5 + turn, b""), blobs=blobs)
            )
            assert await one.find_call("fork", f"turn {turn}") == entry
            assert await one.blobs("fork", [*blobs]) == blobs
            assert (await one.load("fork")).head.revision == 5 + turn
        assert await one.prune("fork", 6) == 3
        pruned = await everything(two, "fork")
        await two.sweep(NOW + 10)
        assert await everything(one, "fork") == pruned
        assert await one.maintenance.orphans() == []
        assert await two.sweep(LATER) == 2
        assert await one.heads() == []
