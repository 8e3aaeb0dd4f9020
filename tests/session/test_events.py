"""Events in sessions: the log has them, whoever has the code reads them, and they come to the state."""

from __future__ import annotations

import heapq
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from stateroom import Event, Sessions, State, ToolError, applies, open_store, tool
from stateroom.errors import DefinitionError, ReadOnlyState, SchemaChanged, UnknownRevision
from stateroom.session import EventRecord, LogReader, Session, entry_data, refold
from stateroom.state import fold, to_json
from stateroom.store import Store
from tests.environments import Unjudged
from tests.messages import raises, says
from tests.session.conftest import Snapshots
from tests.session.stored_sessions import prune


class Deposited(Event):
    amount: int
    at: datetime
    proof: bytes = b""


class Renamed(Event):
    names: list[str]


class Visits(State):
    count: int = 0


class Account(State):
    balance: int = 0
    names: list[str] = []
    rows: list[list[int]] = [[2], [1]]
    since: datetime | None = None

    @applies(Deposited)
    def deposited(self, event: Deposited) -> None:
        self.balance += event.amount
        self.since = self.since or event.at

    @applies(Renamed)
    def renamed(self, event: Renamed) -> None:
        self.names = event.names
        if event.names == ["tamper"]:
            heapq.heappop(self.rows).append(9)
            raise ToolError("no")


NOON = datetime(2024, 1, 2, 12, tzinfo=UTC)


class Bank(Unjudged[Account]):
    """Keeps money."""

    def seed(self, task) -> Account:
        return Account(balance=getattr(task, "balance", 0))

    @tool
    def deposit(self, state: Account, amounts: list[int]) -> int:
        """Take in money, in parts."""
        for amount in amounts:
            state.emit(Deposited(amount=amount, at=NOON, proof=b"\xff"))
            if state.balance < 0:
                raise ToolError("not that much")
        return state.balance

    @tool
    def rename(self, state: Account, names: list[str]) -> list[str]:
        """Give it other names."""
        state.emit(Renamed(names=names))
        return state.names

    @tool
    def rename_if_possible(self, state: Account, names: list[str]) -> list[str]:
        """Give it other names, or not."""
        with suppress(ToolError):
            state.emit(Renamed(names=names))
        return state.names

    @tool
    def steal(self, state: Account) -> int:
        """Take the money without a word."""
        state.balance = 0
        return 0

    @tool(effect="read")
    def look(self, state: Account) -> int:
        """Look, and more."""
        state.emit(Renamed(names=["seen"]))
        return state.balance

    @tool
    def visit(self, state: Account, app: Visits, fails: bool = False) -> int:
        """Be counted by the app."""
        app.count += 1
        state.emit(Renamed(names=[f"visitor {app.count}"]))
        if fails:
            raise ToolError("closed")
        return app.count

    @tool
    def do_nothing(self, state: Account) -> int:
        """Look."""
        return state.balance


def deposited(amount: int) -> Deposited:
    return Deposited(amount=amount, at=NOON, proof=b"\xff")


async def events_of(session: Session[Any], after: int = 0) -> list[Any]:
    return [each async for each in session.events(after)]


@pytest.fixture
async def session(store: Store) -> Session[Account]:
    return await Sessions[Account](Bank(), store).seed({"balance": 10})


async def test_what_tools_emit_is_in_the_log(session: Session[Account], store: Store) -> None:
    assert (await session.call("deposit", {"amounts": [1, 2]})).output == 13
    await session.call("do_nothing")
    await session.call("rename", {"names": ["a", "b"]})
    expected = [EventRecord(2, deposited(1)), EventRecord(2, deposited(2)), EventRecord(4, Renamed(names=["a", "b"]))]
    assert await events_of(session) == expected
    assert await events_of(session, after=2) == expected[2:]
    assert await events_of(session, after=4) == []
    assert [entry.facts.get("events") async for entry in session.log(kinds={"call"})] == [
        [["deposited", 1, {"amount": amount, "at": NOON, "proof": b"\xff"}] for amount in (1, 2)],
        None,
        [["renamed", 1, {"names": ["a", "b"]}]],
    ]
    elsewhere = await Sessions[Account](Bank(), store).open(session.id)
    assert elsewhere.state == session.state == Account(balance=13, names=["a", "b"], since=NOON)
    assert await events_of(elsewhere) == expected


async def test_the_log_as_json_has_the_events(session: Session[Account], store: Store) -> None:
    await session.call("deposit", {"amounts": [1]})
    [_, data] = [entry_data(*step) async for step in LogReader(store, session.id).read()]
    assert dict(data)["events"] == [["deposited", 1, {"amount": 1, "at": "2024-01-02T12:00:00Z", "proof": "_w=="}]]
    assert [change["text"] for change in data["changes"]] == [
        "balance: 10 → 11",
        'since: null → "2024-01-02T12:00:00Z"',
    ]
    assert b'"proof":"_w=="' in to_json(data)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("steal", {}), ("look", {}), ("deposit", {"amounts": [1, -100]}), ("visit", {"fails": True})],
)
async def test_a_call_that_fails_emits_nothing(session: Session[Account], name: str, arguments: dict[str, Any]) -> None:
    result = await session.call(name, arguments)
    assert not result.ok
    says(result.error or "")
    assert session.revision == 1
    assert await events_of(session) == []
    assert session.state == Account(balance=10)


async def test_what_is_shown_for_reading_takes_no_events(session: Session[Account]) -> None:
    for state in (session.state, await session.state_at(1)):
        with raises(ReadOnlyState):
            state.emit(deposited(1))


async def test_a_change_of_a_shared_state_goes_with_the_events(session: Session[Account]) -> None:
    assert (await session.call("visit")).output == 1
    assert (await session.app()).count == 1
    assert await events_of(session) == [EventRecord(2, Renamed(names=["visitor 1"]))]


@pytest.mark.parametrize("name", ["rename", "rename_if_possible"])
async def test_tampering_by_an_event_is_mended(session: Session[Account], name: str) -> None:
    fork = await session.fork()
    assert not (await session.call(name, {"names": ["tamper"]})).ok
    assert session.state == fork.state == Account(balance=10)
    assert (await session.call(name, {"names": ["a"]})).output == ["a"]


@pytest.mark.every_store
async def test_pruned_events_are_missed(session: Session[Account], store: Store, snapshots_after: Snapshots) -> None:
    snapshots_after(100)
    for amount in range(1, 21):
        await session.call("deposit", {"amounts": [amount]})
    [cut] = (await prune(store, keep=10)).values()
    with raises(UnknownRevision):
        await events_of(session)
    since = cut.below
    assert since is not None
    later = [each.event for each in await events_of(session, after=since)]
    assert fold(await session.state_at(since), later) == session.state
    with pytest.raises(UnknownRevision):
        await events_of(session, after=since - 1)
    with pytest.raises(UnknownRevision):
        await events_of(await session.fork())


@pytest.mark.every_store
async def test_large_values_in_events_are_read_back(session: Session[Account], store: Store) -> None:
    names = ["x" * 100_000, "y" * 100_000]
    assert (await session.call("rename", {"names": names})).output == names
    elsewhere = await Sessions[Account](Bank(), store).open(session.id)
    assert await events_of(elsewhere) == [EventRecord(2, Renamed(names=names))]


# Code that has changed since.


class NewDeposited(Event, name="deposited", version=2):
    cents: int


class NewAccount(State, version=2):
    cents: int = 0

    @applies(NewDeposited)
    def deposited(self, event: NewDeposited) -> None:
        self.cents += event.cents


@NewAccount.migration(1)
def with_cents(data: dict[str, Any]) -> dict[str, Any]:
    return {"cents": data["balance"] * 100}


@NewDeposited.migration(1)
def in_cents(fields: dict[str, Any]) -> dict[str, Any]:
    return {"cents": fields["amount"] * 100}


class NewBank(Unjudged[NewAccount]):
    """Keeps cents."""

    name = "bank"

    @tool
    def deposit(self, state: NewAccount, cents: int) -> int:
        """Take in money."""
        state.emit(NewDeposited(cents=cents))
        return state.cents


async def test_old_events_are_read_by_newer_code(session: Session[Account], store: Store) -> None:
    await session.call("deposit", {"amounts": [1, 2]})
    newer = await Sessions[NewAccount](NewBank(), store).open(session.id)
    assert (await newer.call("deposit", {"cents": 50})).output == 1350
    assert [each.event for each in await events_of(newer)] == [NewDeposited(cents=cents) for cents in (100, 200, 50)]
    assert await refold(NewAccount(cents=1000), newer.events()) == newer.state == NewAccount(cents=1350)


async def test_an_event_that_newer_code_forgot_is_named(session: Session[Account], store: Store) -> None:
    await session.call("rename", {"names": ["a"]})
    newer = await Sessions[NewAccount](NewBank(), store).open(session.id)
    with raises(SchemaChanged):
        await events_of(newer)


def test_only_the_state_of_a_session_changes_by_events() -> None:
    with raises(DefinitionError):

        class Bad(Unjudged[Visits]):
            """Shares what it cannot."""

            @tool
            def put(self, app: Account) -> None:
                """Put something."""


# Whatever happens.

steps = st.one_of(
    st.tuples(st.just("deposit"), st.lists(st.integers(-9, 20), max_size=3)),
    st.tuples(st.just("rename"), st.lists(st.sampled_from("abc"), max_size=2)),
    st.tuples(st.sampled_from(["rewind", "fork"]), st.integers(0, 20)),
)


@given(st.lists(steps, max_size=12))
async def test_the_events_come_to_the_state_at_every_revision(program: list[tuple[str, Any]]) -> None:
    async with open_store("memory://") as store:
        sessions = Sessions[Account](Bank(), store)
        branches = [await sessions.seed({})]
        for kind, given_ in program:
            session = branches[-1]
            if kind == "rewind":
                await session.rewind(to=given_ % session.revision + 1)
            elif kind == "fork":
                branches.append(await session.fork(at=given_ % session.revision + 1))
            else:
                await session.call(kind, {"amounts" if kind == "deposit" else "names": given_})
        for session in branches:
            seeded = await session.state_at(1)
            for revision in range(1, session.revision + 1):
                fork = await session.fork(at=revision)
                assert await refold(seeded, fork.events()) == await session.state_at(revision)
