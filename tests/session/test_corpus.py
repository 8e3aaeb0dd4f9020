"""Sessions that earlier versions stored: they read as they did then, and go on."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment, Session, Sessions, Verdict, open_store, tool
from stateroom.agent import Agent, run
from stateroom.errors import SessionClosed, SessionSealed
from stateroom.model import Scripted, message
from stateroom.session import AgentStatus
from stateroom.store import HeadFilter, Store
from tests.corpus import make
from tests.corpus.environment import Cabinet, CabinetEnvironment, CabinetTask
from tests.corpus.errand import ErrandEnvironment
from tests.corpus.keeping import kinds_in, unpack
from tests.corpus.settling import VillageEnvironment
from tests.corpus.sharing import ShopEnvironment, Visit
from tests.corpus.telling import readable, tell, whole
from tests.corpus.voyage import VoyageEnvironment
from tests.session.stored_sessions import problems

FORMATS = sorted(path.parent for path in make.HERE.glob("*/expected.json"))
KEPT = [pytest.param((folder, kind), id=f"{folder.name}-{kind}") for folder in FORMATS for kind in kinds_in(folder)]


class Kept:
    """A store as an earlier version left it, and what that version told of it."""

    def __init__(self, store: Store, ids: dict[str, str], told: dict[str, Any]) -> None:
        self.store = store
        self.ids = ids
        self.told: dict[str, dict[str, Any]] = {
            **told["cabinets"],
            **told["voyages"],
            **told["errands"],
            **told["villages"],
        }
        self.shared = told["shared"]
        self.voyages = [*told["voyages"]]
        self.errands = [*told["errands"]]
        self.villages = [*told["villages"]]
        self.stances = told["stances"]
        self.workers: list[Sessions[Any]] = []

    async def open(self, label: str) -> Session[Any]:
        """A session, read from the store."""
        environment: Any = CabinetEnvironment()
        if label in self.voyages:
            environment = VoyageEnvironment()
        elif label in self.errands:
            environment = ErrandEnvironment()
        elif label in self.villages:
            environment = VillageEnvironment()
        self.workers.append(Sessions(environment, self.store))
        return await self.workers[-1].open(self.ids[label], include_closed=True)

    async def cabinets(self, *, live: bool) -> AsyncIterator[tuple[str, Session[Any], dict[str, Any]]]:
        """The sessions of the cabinet that could go on, or those that could not, with what was told of each."""
        for label, told in self.told.items():
            if label not in (*self.voyages, *self.errands, *self.villages) and (told["next"] is not None) == live:
                yield label, await self.open(label), whole(self.told, label)


def expected(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    return told


@pytest.fixture(params=KEPT)
async def kept(
    request: pytest.FixtureRequest, fresh_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Kept]:
    folder, kind = request.param
    monkeypatch.setenv("STATEROOM_CORPUS_KEYS", make.KEYS)
    told = expected(folder)
    url = fresh_url(kind.removesuffix("-guarded"))
    unpack(kind, folder, url)
    async with open_store(f"{url}?{make.GUARD}" if kind.endswith("-guarded") else url) as store:
        made = Kept(store, told["ids"][kind], told)
        yield made
        for worker in made.workers:
            await worker.stop()


async def said(session: Session[Any], revision: int | None = None) -> Any:
    return readable((await session.state_at(revision)).model_dump())


def test_every_format_is_there() -> None:
    assert [folder.name for folder in FORMATS] == ["format-1"]
    for folder in FORMATS:
        assert sorted(expected(folder)["ids"]) == kinds_in(folder)


async def test_what_was_stored_reads_as_it_did(kept: Kept) -> None:
    labels = {session: label for label, session in kept.ids.items()}
    for label in kept.told:
        assert await tell(await kept.open(label), labels) == whole(kept.told, label)
    assert await problems(kept.store) == {}


async def test_a_call_that_was_recorded_does_not_run_again(kept: Kept) -> None:
    async for _, session, told in kept.cabinets(live=True):
        for entry in told["log"]:
            if "call id" in entry and entry["kind"] in ("call", "failed"):
                result = await session.call("write", {"line": "again"}, call_id=entry["call id"])
                assert (result.ok, result.output) == (entry["kind"] == "call", entry.get("output"))
        if told["log"][-1]["kind"] == "started":
            result = await session.call("post", {"to": "somebody"}, call_id="never")
            assert result.code == "unknown_outcome"
        assert session.revision == told["revision"]


async def test_what_was_live_goes_on(kept: Kept) -> None:
    async for label, session, told in kept.cabinets(live=True):
        before, revision = await said(session), session.revision
        twin = await session.fork(pending="carry")
        assert (await session.call("write", {"line": "today"})).ok
        assert (await session.call("draw")).ok
        assert (await said(session))["log"][:-1] == [*before["log"], "today"]
        oldest = next(number for number, state in enumerate(told["states"], 1) if state is not None)
        await session.rewind(to=oldest)
        assert await said(session) == await said(twin, oldest)
        assert await said(twin) == await said(session, revision) == before
        assert (await session.verify()).reward in (0.0, 1.0)
        again = await kept.open(label)
        assert await said(again) == await said(session)
        kinds = [entry.kind async for entry in again.log()]
        assert kinds == [*(entry["kind"] for entry in told["log"]), "call", "call", "rewind", "verdict"]
    assert await problems(kept.store) == {}


async def test_what_had_ended_has_its_verdict_and_can_be_forked(kept: Kept) -> None:
    async for _, session, told in kept.cabinets(live=False):
        with pytest.raises((SessionClosed, SessionSealed)):
            await session.call("write", {"line": "late"})
        [judged] = [entry for entry in told["log"] if entry["kind"] == "verdict"]
        assert session.verdict == await session.verify() == Verdict(**judged["verdict"])
        fork = await session.fork()
        assert await said(fork) == await said(session)
        assert (await fork.call("write", {"line": "today"})).ok
        assert (await said(fork))["log"] == [*(await said(session))["log"], "today"]


class NewCabinet(Cabinet, version=2):
    summary: str = ""


@NewCabinet.migration(1)
def summarise(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "summary": f"{len(data['log'])} lines, {data['price']}"}


class NewCabinetEnvironment(Environment[NewCabinet, CabinetTask]):
    """Keeps things of every type, and knows what they are."""

    name = "cabinet"

    @tool
    def rename(self, state: NewCabinet, summary: str) -> None:
        """Summarise it otherwise."""
        state.summary = summary

    def verify(self) -> float:
        return 0.0


async def test_what_knew_of_no_versions_is_migrated(kept: Kept) -> None:
    async for label, old, told in kept.cabinets(live=True):
        before = await said(old)
        session = await Sessions(NewCabinetEnvironment(), kept.store).open(kept.ids[label])
        assert session.state.summary == f"{len(before['log'])} lines, {old.state.price}"
        assert (await session.call("rename", {"summary": "other"})).ok
        again = await Sessions(NewCabinetEnvironment(), kept.store).open(kept.ids[label])
        assert await said(again) == {**before, "summary": "other"}
        assert again.revision == told["revision"] + 1
    assert await problems(kept.store) == {}


async def test_what_sessions_shared_they_share(kept: Kept) -> None:
    sessions: Sessions[Visit] = Sessions(ShopEnvironment(), kept.store)
    first, second = [await sessions.open(kept.ids[label]) for label in ("visit", "second visit")]
    assert first.state.bought == second.state.bought == ["tea", "tea"]
    shared = {"user": await first.user(), "app": await second.app()}
    assert {name: readable(state.model_dump()) for name, state in shared.items()} == kept.shared
    assert (await first.call("buy", {"what": "tea"})).output == 50
    assert (await second.call("buy", {"what": "tea"})).output == 60
    assert (await first.app()).left == {"tea": 4}
    assert await problems(kept.store) == {}


async def test_what_has_versions_events_and_folders_goes_on(kept: Kept) -> None:
    for label in kept.voyages:
        session = await kept.open(label)
        before, found = await said(session), (await session.call("foresee")).output[1:]
        assert (await session.call("sail", {"to": "Rome", "miles": "1"})).ok
        assert (await said(session))["ports"] == [*before["ports"], "Rome"]
        events: list[Any] = [each.event async for each in session.events()]
        assert events[-1].to == "Rome"
        assert (await session.call("write", {"name": "new", "text": "dear you"})).ok
        assert (await session.call("foresee")).output[1:] == [*found, ["new", "dear you"]]
        await session.rewind("port")
        assert (await said(session))["ports"] in (["home"], ["Lisbon"])
        assert (await session.call("foresee")).output[1:] == found
    assert await problems(kept.store) == {}


async def test_agents_go_on_where_they_stood(kept: Kept) -> None:
    rest = Scripted([[], [message("Done.")], [message("Really.")]])
    for label, coins in {"waiting errand": 0, "told errand": 0, "rewound errand": 7}.items():
        session = await kept.open(label)
        assert session.agent.status.plain() == AgentStatus.of_plain(kept.stances[label]).plain()
        if label == "waiting errand":
            await session.agent.answer("yes")
        trajectory = await run(Agent(rest), session)
        if label == "rewound errand":
            assert (trajectory.status, trajectory.question) == ("waiting", "Spend 7?")
        else:
            assert (trajectory.status, session.state.heard) == ("completed", 2)
        assert session.state.coins == coins
    posted = await kept.open("posted errand")
    assert (await run(Agent(rest), posted)).question == "Really?"
    await posted.agent.answer("no")
    assert (await run(Agent(rest), posted)).output[0]["output"] == '"Ann: yes, no"'
    for label, phase in (("done errand", "done"), ("cancelled errand", "cancelled")):
        assert (await kept.open(label)).agent.status.phase == phase
    assert await problems(kept.store) == {}


async def test_what_started_from_a_world_goes_on_and_new_sessions_start_from_it(kept: Kept) -> None:
    village, fork = await kept.open("village"), await kept.open("other village")
    assert (await village.call("invite", {"house": 7, "guest": "dan"})).output == 1
    assert (await fork.call("invite", {"house": 7, "guest": "dan"})).output == 3
    new = await kept.workers[-1].seed({"house": 3})
    assert new.state.houses[3].colour == "red"
    assert len(await kept.store.heads(HeadFilter(environment="village:world"))) == 1
    assert await problems(kept.store) == {}
