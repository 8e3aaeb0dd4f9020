"""External tools: a ledger of what was started and what came of it."""

import asyncio
from typing import Any

import pytest

from stateroom import Sessions, State, ToolError, tool
from stateroom.errors import CannotFork
from stateroom.session import Session
from stateroom.store import Store
from tests.environments import Unjudged
from tests.messages import raises, says


class Outbox(State):
    sent: list[str] = []
    counts: dict[str, int] = {}


class OutboxEnvironment(Unjudged[Outbox]):
    """Sends mail, and remembers what really left the house."""

    def __init__(self) -> None:
        self.left_the_house: list[str] = []
        self.meanwhile: Any = None

    @tool(effect="external")
    async def send(self, state: Outbox, text: str) -> str:
        """Send a mail."""
        return await self._send(state, text)

    @tool(effect="external", on_unknown="retry")
    async def send_again(self, state: Outbox, text: str) -> str:
        """Send a mail that may arrive twice."""
        return await self._send(state, text)

    @tool(effect="external")
    def give_an_object(self, text: str) -> object:
        """Return what cannot be stored."""
        self.left_the_house.append(text)
        return object()

    @tool(effect="external")
    def take(self, what: Any) -> None:
        """Take anything."""
        self.left_the_house.append("taken")

    @tool
    def note(self, state: Outbox, text: str) -> None:
        """Write."""
        state.sent.append(text)

    async def _send(self, state: Outbox, text: str) -> str:
        self.left_the_house.append(text)
        state.sent.append(text)
        state.counts[text] = 1
        if self.meanwhile is not None:
            await self.meanwhile()
        if text == "bad":
            raise ToolError("the mail came back")
        return f"sent {text}"


@pytest.fixture
def environment() -> OutboxEnvironment:
    return OutboxEnvironment()


@pytest.fixture
async def session(store: Store, environment: OutboxEnvironment) -> Session[Outbox]:
    return await Sessions(environment, store).seed({})


async def ledger(session: Session[Outbox]) -> list[str]:
    return [entry.kind async for entry in session.log()][1:]


async def crash(session: Session[Outbox], environment: OutboxEnvironment, name: str, call_id: str) -> None:
    """Start a call and give it up in the middle, as a crash does."""
    inside = asyncio.Event()

    async def hang() -> None:
        inside.set()
        await asyncio.Event().wait()

    environment.meanwhile = hang
    task = asyncio.create_task(session.call(name, {"text": "a"}, call_id=call_id))
    await inside.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    environment.meanwhile = None


async def test_started_and_done_are_both_written(session: Session[Outbox]) -> None:
    assert (await session.call("send", {"text": "a"}, call_id="c")).output == "sent a"
    assert await ledger(session) == ["started", "call"]
    assert session.state.sent == ["a"]
    log = [entry async for entry in session.log()]
    assert (log[1].name, log[1].input, log[2].call_id) == ("send", {"text": "a"}, "c")


async def test_a_failure_is_recorded_and_not_run_again(
    session: Session[Outbox], store: Store, environment: OutboxEnvironment
) -> None:
    result = await session.call("send", {"text": "bad"}, call_id="c")
    assert (result.ok, result.error) == (False, "the mail came back")
    assert await ledger(session) == ["started", "failed"]
    assert session.state.sent == []
    again = await Sessions(environment, store).open(session.id)
    assert await again.call("send", {"text": "bad"}, call_id="c") == result
    assert environment.left_the_house == ["bad"]


async def test_bad_arguments_start_nothing(session: Session[Outbox], environment: OutboxEnvironment) -> None:
    assert not (await session.call("send", {"text": 1}, call_id="c")).ok
    assert not (await session.call("take", {"what": object()}, call_id="c")).ok
    assert (await ledger(session), environment.left_the_house) == ([], [])


async def test_an_output_that_cannot_be_stored_is_a_recorded_failure(session: Session[Outbox]) -> None:
    for _ in range(2):
        result = await session.call("give_an_object", {"text": "a"}, call_id="c")
        assert result.code == "tool_failed"
        says(result.error or "")
    assert await ledger(session) == ["started", "failed"]


async def test_an_unknown_outcome_fails_by_default(
    session: Session[Outbox], store: Store, environment: OutboxEnvironment
) -> None:
    await crash(session, environment, "send", "c")
    again = await Sessions(environment, store).open(session.id)
    for handle in (session, again):
        result = await handle.call("send", {"text": "a"}, call_id="c")
        assert result.code == "unknown_outcome"
        says(result.error or "")
    assert environment.left_the_house == ["a"]
    assert session.state.sent == []
    assert (await session.call("send", {"text": "a"}, call_id="another")).ok


async def test_a_fork_inherits_what_is_unknown(
    session: Session[Outbox], store: Store, environment: OutboxEnvironment
) -> None:
    await crash(session, environment, "send", "c")
    await session.call("note", {"text": "n"})
    for refused in (session.fork(), session.fork(at=2, n=3)):
        with raises(CannotFork):
            await refused
    fork = await session.fork(pending="carry")
    cold = await Sessions(environment, store).open((await session.fork(pending="carry")).id)
    for twin in (fork, cold):
        assert (await twin.call("send", {"text": "a"}, call_id="c")).code == "unknown_outcome"
    early = await session.fork(at=1)
    assert (await early.call("send", {"text": "a"}, call_id="c")).ok


async def test_while_another_process_runs_it_the_outcome_is_unknown(
    session: Session[Outbox], store: Store, environment: OutboxEnvironment
) -> None:
    other = await Sessions(OutboxEnvironment(), store).open(session.id)
    seen = []

    async def ask_elsewhere() -> None:
        seen.append(await other.call("send", {"text": "a"}, call_id="c"))

    environment.meanwhile = ask_elsewhere
    assert (await session.call("send", {"text": "a"}, call_id="c")).ok
    assert seen[0].code == "unknown_outcome"


@pytest.mark.every_store
async def test_a_change_is_never_merged_with_what_others_wrote_meanwhile(
    session: Session[Outbox], store: Store, environment: OutboxEnvironment
) -> None:
    other = await Sessions(OutboxEnvironment(), store).open(session.id)

    async def write_elsewhere() -> None:
        await other.call("send", {"text": "theirs"})

    environment.meanwhile = write_elsewhere
    result = await session.call("send", {"text": "mine"}, call_id="c")
    assert not result.ok
    says(result.error or "")
    assert dict(session.state.counts) == {"theirs": 1}
    assert await session.call("send", {"text": "mine"}, call_id="c") == result
    assert environment.left_the_house == ["mine"]


async def test_an_entry_of_others_that_changes_no_state_is_no_hindrance(
    session: Session[Outbox], store: Store, environment: OutboxEnvironment
) -> None:
    other = await Sessions(OutboxEnvironment(), store).open(session.id)

    async def note_elsewhere() -> None:
        await other.checkpoint("here")

    environment.meanwhile = note_elsewhere
    assert (await session.call("send", {"text": "mine"})).ok
    assert dict(session.state.counts) == {"mine": 1}
    final = await Sessions(OutboxEnvironment(), store).open(session.id)
    assert final.state == session.state


@pytest.mark.every_store
async def test_of_two_who_try_again_at_once_one_is_recorded(
    session: Session[Outbox], store: Store, environment: OutboxEnvironment
) -> None:
    await crash(session, environment, "send_again", "c")
    other_environment = OutboxEnvironment()
    other = await Sessions(other_environment, store).open(session.id)

    async def finish_elsewhere() -> None:
        assert (await other.call("send_again", {"text": "a"}, call_id="c")).ok

    async def finish_elsewhere_and_fail() -> None:
        await finish_elsewhere()
        raise ToolError("mine failed")

    environment.meanwhile = finish_elsewhere_and_fail
    assert (await session.call("send_again", {"text": "a"}, call_id="c")).output == "sent a"
    assert await ledger(session) == ["started", "call"]


@pytest.mark.parametrize("first", ["send", "note"])
async def test_call_ids_that_look_alike_are_different_calls(session: Session[Outbox], first: str) -> None:
    second = "note" if first == "send" else "send"
    for name in (first, second):
        for suffix in ("", ":started", "started", " started"):
            assert (await session.call(name, {"text": "a"}, call_id=f"{name}{suffix}")).ok
    assert session.state.sent == ["a"] * 8
