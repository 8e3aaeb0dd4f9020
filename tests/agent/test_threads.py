"""Threads: conversations that go on, on every kind of store."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stateroom import Environment, SessionLimits, Sessions
from stateroom.agent import Agent, Threads
from stateroom.errors import (
    BadTask,
    DefinitionError,
    InvalidArguments,
    InvalidMove,
    ModelFailed,
    SessionClosed,
    SessionError,
    SessionExpired,
    SessionLeased,
    UnknownSession,
)
from stateroom.model import Item, Policy, function_call, message, text_of
from stateroom.store import Size, Store
from tests.agent.thread_worker import Payer, PurseEnvironment
from tests.messages import raises
from tests.processes import line, starting

pytestmark = pytest.mark.every_store

NEVER = 60.0
"""Seconds after which a lease, or a session with a short life, is over."""


class Echo(Policy):
    """Says how many items it was shown, and the last of them."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        return [message(f"{len(conversation)}: {text_of(conversation[-1])}")]


ECHO = Agent(Echo())


@pytest.fixture
async def threads(url: str) -> AsyncIterator[Threads]:
    """Threads without tools."""
    async with Threads.open(url) as opened:
        yield opened


@pytest.fixture
def purses(store: Store) -> Threads:
    """Threads in which money can be spent."""
    return Threads(Sessions(PurseEnvironment(), store))


def texts(items: list[Item]) -> list[str]:
    return [text_of(item) for item in items]


async def spent(purses: Threads, thread: str) -> Any:
    return (await purses.sessions.open(thread)).state.spent


async def sizes(store: Store) -> dict[str, Size]:
    """How much there is of sessions; a file keeps the room that they took."""
    found = await store.maintenance.sizes()
    return {kind: found[kind] for kind in ("sessions", "entries", "snapshots", "blobs")}


class Gate(Payer):
    """Says when it is asked, and waits to be let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:  # type: ignore[override]
        self.asked.set()
        await self.go_on.wait()
        return super().respond(conversation, tools)


async def test_a_run_answers_what_is_new_and_sees_all_that_was_said(threads: Threads) -> None:
    thread = await threads.create(instructions="Be brief.")
    await threads.add(thread, "hello")
    first = await threads.run(thread, ECHO)
    assert (texts(first.output), first.status) == (["2: hello"], "completed")
    await threads.add(thread.id, "bye")
    assert texts((await threads.run(thread.id, ECHO)).output) == ["4: bye"]
    assert (await threads.run(thread, ECHO)).output == []
    found = await threads.items(thread)
    assert texts(found.items) == ["Be brief.", "hello", "2: hello", "bye", "4: bye"]
    assert [item["role"] for item in found.items[:2]] == ["system", "user"]
    assert (found.revisions, found.next) == ([1, 2, 3, 4, 5], None)


async def test_several_things_may_be_said_before_they_are_answered(threads: Threads) -> None:
    thread = await threads.create()
    await threads.add(thread, "one")
    await threads.add(thread, {"role": "user", "content": [{"type": "input_text", "text": "two"}]})
    pair = [function_call("look", "c"), {"type": "function_call_output", "call_id": "c", "output": "{}"}]
    await threads.add(thread, [*pair, {"type": "message", "role": "assistant", "content": "three"}])
    assert texts((await threads.run(thread, ECHO)).output) == ["5: three"]
    assert [item["type"] for item in (await threads.items(thread)).items][:4] == [
        *("message", "message", "function_call", "function_call_output")
    ]


@pytest.mark.parametrize(
    "given",
    [
        *([], ["text"], [{"content": "x"}], [{"type": 1}]),
        [{"role": "user", "content": "x"}, {"role": "user", "content": 1}],
        [{"type": "function_call", "name": "x", "call_id": 1}],
        [function_call("pay", "c")],
        [{"type": "function_call_output", "call_id": "c", "output": ""}],
    ],
)
async def test_what_is_no_part_of_a_conversation_is_not_added(given: Any) -> None:
    async with Threads.open("memory://") as threads:
        thread = await threads.create()
        with raises(InvalidArguments) as caught:
            await threads.add(thread, given)
        assert list(caught.value.fields) == ["message"]
        assert (await threads.get(thread)).revision == 1


async def test_a_conversation_is_read_in_parts(threads: Threads) -> None:
    thread = await threads.create()
    for number in range(5):
        two = [{"role": "user", "content": f"{number}{each}"} for each in "ab"]
        await threads.add(thread, two)
    whole = (await threads.items(thread)).items
    assert len(whole) == 10
    for limit in (1, 3, 10, 100):
        found: list[Item] = []
        after: int | None = 0
        while after is not None:
            part = await threads.items(thread, after=after, limit=limit)
            assert limit <= len(part.items) <= limit + 1 or part.next is None
            found += part.items
            after = part.next
        assert found == whole
    newest = (await threads.get(thread)).revision
    assert (await threads.items(thread, after=newest)).items == []


async def test_without_a_question_there_is_nothing_to_run(threads: Threads) -> None:
    thread = await threads.create(instructions="Be brief.")
    with raises(InvalidMove):
        await threads.run(thread, ECHO)
    asked = await threads.create(task={"responses_create_params": {"input": "a question"}})
    assert texts((await threads.run(asked, ECHO)).output) == ["1: a question"]


async def test_items_are_told_of_when_they_are_committed(purses: Threads) -> None:
    thread = await purses.create("ann")
    await purses.add(thread, "pay 1 2")
    told: list[Item] = []

    async def note(items: Any) -> None:
        told.extend(items)
        assert (await purses.items(thread)).items[1:] == told

    done = await purses.run(thread, Agent(Payer()), on_items=note)
    assert told == done.output
    assert [item["type"] for item in told] == [
        *("function_call", "function_call", "function_call_output", "function_call_output", "message")
    ]


async def test_a_thread_tells_what_is_known_of_it(threads: Threads) -> None:
    thread = await threads.create("ann", metadata={"topic": "ships"})
    assert (thread.environment, thread.user, thread.metadata) == ("thread", "ann", {"topic": "ships"})
    assert (thread.phase, thread.question, thread.revision, thread.parent) == ("idle", None, 1, None)
    assert thread.expires > thread.created
    await threads.add(thread, "hello")
    assert (await threads.get(thread)).phase == "planning"
    assert await threads.get(thread.id) == await threads.get(thread)
    plain = await threads.create()
    assert (plain.user, plain.metadata) == (None, {})


async def test_threads_are_listed_by_user_and_page_by_page(threads: Threads) -> None:
    anns = [(await threads.create("ann")).id for _ in range(5)]
    bobs = [(await threads.create("bob")).id for _ in range(2)]
    ended = await threads.sessions.open((await threads.create("bob")).id)
    await ended.close()
    for user, there in (("ann", anns), ("bob", bobs), (None, anns + bobs), ("eve", [])):
        found, page = [], await threads.list(user, limit=2)
        while page.next is not None:
            found += page.threads
            page = await threads.list(user, after=page.next, limit=2)
        assert [thread.id for thread in [*found, *page.threads]] == there[::-1]


async def test_a_fork_and_its_parent_go_their_own_ways(threads: Threads) -> None:
    thread = await threads.create("ann", metadata={"a": 1})
    await threads.add(thread, "one")
    await threads.run(thread, ECHO)
    fork = await threads.fork(thread)
    early = await threads.fork(thread, at=2)
    assert (fork.parent, fork.user, fork.metadata, fork.phase) == ((thread.id, 3), "ann", {"a": 1}, "done")
    assert (early.parent, early.phase) == ((thread.id, 2), "planning")
    for each, said in ((thread, "left"), (fork, "right")):
        await threads.add(each, said)
        await threads.run(each, ECHO)
    await threads.run(early, Agent(Echo(), instructions="another"))
    assert texts((await threads.items(thread)).items) == ["one", "1: one", "left", "3: left"]
    assert texts((await threads.items(fork)).items) == ["one", "1: one", "right", "3: right"]
    assert texts((await threads.items(early)).items) == ["one", "1: one"]
    await threads.delete(thread)
    assert texts((await threads.items(fork)).items) == ["one", "1: one", "right", "3: right"]
    await threads.add(fork, "on")
    assert texts((await threads.run(fork, ECHO)).output) == ["5: on"]


async def test_a_thread_that_is_deleted_leaves_nothing_behind(threads: Threads) -> None:
    await threads.create()
    before = await sizes(threads.store)
    thread = await threads.create()
    await threads.add(thread, "x" * 200_000)
    await threads.run(thread, ECHO)
    await threads.delete(thread)
    assert await sizes(threads.store) == before
    assert threads.sessions.loaded(thread.id) is None
    for use in (threads.get(thread), threads.items(thread), threads.add(thread, "x"), threads.run(thread, ECHO)):
        with pytest.raises(UnknownSession):
            await use
    with pytest.raises(UnknownSession):
        await threads.delete(thread)


async def test_a_thread_that_has_ended_says_so(store: Store) -> None:
    now = 1000.0
    sessions = Sessions[Any](PurseEnvironment(), store, SessionLimits(ttl=NEVER, now=lambda: now))
    threads = Threads(sessions)
    closed, old = await threads.create(), await threads.create()
    await (await sessions.open(closed.id)).close()
    with pytest.raises(SessionClosed):
        await threads.get(closed)
    now += 2 * NEVER
    for use in (threads.get(old), threads.items(old), threads.add(old, "x"), threads.run(old, ECHO)):
        with pytest.raises(SessionExpired):
            await use
    assert (await threads.list()).threads == []
    await threads.delete(old)


async def test_threads_are_of_one_environment_that_has_a_state(store: Store) -> None:
    class Stateless(Environment):
        name = "stateless"

    with raises(DefinitionError):
        Threads(Sessions(Stateless(), store))
    purses = Threads(Sessions(PurseEnvironment(), store))
    thread = await purses.create("ann")
    async with Threads.open("memory://") as others:
        others.sessions.runtime.store = store
        for use in (others.get(thread), others.delete(thread), others.run(thread, ECHO), others.items(thread)):
            with raises(SessionError):
                await use
        assert (await others.list()).threads == []
    assert [each.id for each in (await purses.list()).threads] == [thread.id]


async def test_a_task_that_does_not_fit_makes_no_thread(purses: Threads) -> None:
    with raises(BadTask):
        await purses.create(task={"user": 7})
    assert (await purses.list()).threads == []


async def test_what_is_said_to_an_agent_that_waits_is_its_answer(purses: Threads) -> None:
    thread = await purses.create("ann")
    await purses.add(thread, "pay_if_allowed 100")
    waiting = await purses.run(thread, Agent(Payer()))
    assert (waiting.status, waiting.question) == ("waiting", "Pay 100?")
    found = await purses.get(thread)
    assert (found.phase, found.question) == ("waiting_feedback", "Pay 100?")
    two = [{"role": "user", "content": "yes"}, {"role": "user", "content": "no"}]
    for given, pin in ((two, False), ({"role": "system", "content": "yes"}, False), ("yes", True)):
        with raises(InvalidArguments):
            await purses.add(thread, given, pin=pin)
    await purses.add(thread, "yes")
    assert texts((await purses.run(thread, Agent(Payer()))).output)[-1] == "3 items, 100 spent"
    assert await spent(purses, thread.id) == 100


async def test_a_thread_that_is_deleted_meanwhile_is_not_listed(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, gone = await threads.create(), await threads.create()
    heads = threads.store.heads

    async def and_then_delete(*wanted: Any, **options: Any) -> Any:
        found = await heads(*wanted, **options)
        await threads.delete(gone)
        return found

    monkeypatch.setattr(threads.store, "heads", and_then_delete)
    assert [thread.id for thread in (await threads.list()).threads] == [kept.id]


async def test_a_turn_that_failed_is_tried_again(threads: Threads) -> None:
    class Fails(Policy):
        def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
            raise ValueError("no key")

    thread = await threads.create()
    await threads.add(thread, "hello")
    with raises(ModelFailed):
        await threads.run(thread, Agent(Fails()))
    assert (await threads.get(thread)).phase == "failed"
    assert texts((await threads.run(thread, ECHO)).output) == ["1: hello"]


@pytest.fixture
def others(store: Store) -> Threads:
    """Those of another process, as it were."""
    return Threads(Sessions(PurseEnvironment(), store))


async def test_only_one_answers_at_a_time(purses: Threads, others: Threads) -> None:
    thread = await purses.create("ann")
    await purses.add(thread, "pay 1")
    gate = Gate()
    running = asyncio.create_task(purses.run(thread, Agent(gate)))
    await gate.asked.wait()
    for each in (purses, others):
        with pytest.raises(SessionLeased):
            await each.run(thread, Agent(Payer()))
        with pytest.raises(SessionLeased):
            await each.add(thread, "pay 2")
    gate.go_on.set()
    assert (await running).status == "completed"
    assert await spent(others, thread.id) == 1
    await others.add(thread, "pay 2")
    assert (await others.run(thread, Agent(Payer()))).status == "completed"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_whoever_runs_it_a_thread_can_be_cancelled(purses: Threads, others: Threads, elsewhere: bool) -> None:
    thread = await purses.create("ann")
    await purses.add(thread, "pay 1")
    gate = Gate()
    running = asyncio.create_task(purses.run(thread, Agent(gate)))
    await gate.asked.wait()
    stance = await (others if elsewhere else purses).cancel(thread, "enough")
    assert stance.phase == "cancelled"
    gate.go_on.set()
    done = await running
    assert (done.status, await spent(others, thread.id)) == ("cancelled", 0)
    await others.add(thread, "pay 2")
    assert (await others.run(thread, Agent(Payer()))).status == "completed"
    assert await spent(others, thread.id) == 2


@pytest.mark.every_store(shared=True)
async def test_a_run_that_was_killed_hears_nothing_new_and_goes_on_where_it_was(url: str, store: Store) -> None:
    thread = await Threads(Sessions(PurseEnvironment(), store)).create("ann")
    async with starting("-m", "tests.agent.thread_worker", url) as start:
        process = await start(thread.id, "pay 1 2")
        assert await line(process) == "paid"
        process.kill()
        await process.wait()
    later = SessionLimits(now=lambda: time.time() + NEVER)  # when a dead worker's lease has ended
    threads = Threads(Sessions[Any](PurseEnvironment(), store, later))
    assert (await threads.get(thread)).phase == "executing"
    with raises(InvalidMove):
        await threads.add(thread, "pay 4")
    done = await threads.run(thread, Agent(Payer()))
    assert (done.status, len(done.output)) == ("completed", 3)
    session = await threads.sessions.open(thread.id)
    assert session.state.spent == 3
    assert [entry.input["amount"] async for entry in session.log(kinds={"call"})] == [1, 2]
    assert session.agent.status.answers == 2
    items = (await threads.items(thread)).items
    assert [item["type"] for item in items] == [
        *("message", "function_call", "function_call", "function_call_output", "function_call_output", "message")
    ]
