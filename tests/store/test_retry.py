"""A store that is away for a moment: what can be done again is, and nothing is done twice."""

import asyncio
from collections import Counter, deque
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Self

import pytest

from stateroom.errors import (
    Conflict,
    DuplicateCall,
    ForeignStore,
    SessionClosed,
    StoreError,
    StoreUnavailable,
    UnknownSession,
)
from stateroom.pauses import Pauses
from stateroom.store import Commit, Entry, Head, MemoryStore, Store, WrappedStore, open_store, store_class
from stateroom.store.conformance import StoreConformance
from stateroom.store.retry import RETRY_SECONDS, RetryStore
from tests.messages import raises
from tests.store.conftest import Register
from tests.store.rooms import head

BEFORE, AFTER = "before", "after"
"""When an operation fails: before it is done, or after, so that only its answer is lost."""


class UnsureStore(WrappedStore):
    """A real store whose operations fail as they do over a bad network."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.remote = True
        self.ahead: deque[str | None] = deque()
        """How the next operations fail."""
        self.seen: list[str] = []

    def fails(self, operation: str) -> str | None:
        return self.ahead.popleft() if self.ahead else None

    async def around(self, operation, session, work, /, *args, **kwargs):
        self.seen.append(operation)
        fails = self.fails(operation)
        if fails == BEFORE:
            raise StoreUnavailable("the line is dead")
        done = await work(*args, **kwargs)
        if fails == AFTER:
            raise StoreUnavailable("the line went dead")
        return done


class ForgetfulStore(UnsureStore):
    """Of each two answers that tell that something was done, one is lost."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.turns = Counter[str]()

    @classmethod
    async def open(cls, url: str) -> Self:
        return cls(await store_class("sqlite://").open(url.replace("forgetful", "sqlite")))

    def fails(self, operation: str) -> str | None:
        if operation in ("sweep", "prune"):
            return None  # which tell what their last attempt has done
        self.turns[operation] += 1
        return AFTER if self.turns[operation] % 2 else None


@pytest.fixture
def unsure() -> UnsureStore:
    return UnsureStore(MemoryStore())


@pytest.fixture
def store(unsure: UnsureStore) -> RetryStore:
    return RetryStore(unsure)


a_head = partial(head, owner="me", created=1.0)
SEED = Entry(1, "seed", 1.0, b"seed", "seed")


async def begin(unsure: UnsureStore) -> None:
    await unsure.store.create(a_head(), [SEED])


class TestRetryStore(StoreConformance):
    """With every other answer lost, all promises are kept."""

    @pytest.fixture
    def url(self, path: Path, register: Register, monkeypatch: pytest.MonkeyPatch) -> str:
        register("forgetful", f"{__name__}:ForgetfulStore")
        monkeypatch.setattr("stateroom.store.retry.PAUSES", Pauses(0.0, 0.0))
        return f"forgetful:///{path}"


# What is done again.


@pytest.mark.parametrize("call_id", ["a", None])
@pytest.mark.parametrize("closes", [False, True])
async def test_a_commit_whose_answer_was_lost_is_done_once(
    store: RetryStore, unsure: UnsureStore, call_id: str | None, closes: bool
) -> None:
    await begin(unsure)
    unsure.ahead.extend([AFTER, BEFORE, None, BEFORE])  # the last is the question whether it was done
    entry = Entry(2, "call", 1.0, b"body", call_id)
    await store.append(Commit("room", entry, closes=closes))
    assert unsure.seen == ["append", "append", "append", "entries", "append", "entries"]
    assert await store.entries("room") == [SEED, entry]
    assert (await store.head("room")).closed == closes


async def test_a_commit_that_outlived_its_session_is_still_found(store: RetryStore, unsure: UnsureStore) -> None:
    """It has set the session's expiry to a time that has passed, so that a second one is refused for that."""
    await begin(unsure)
    unsure.ahead.append(AFTER)
    await store.append(Commit("room", Entry(2, "call", 5.0, b"body", "a"), expires=5.0))
    assert (await store.head("room")).revision == 2


@pytest.mark.parametrize(
    ("theirs", "refusal"),
    [
        (Entry(2, "call", 1.0, b"theirs", "b"), Conflict),
        (Entry(2, "call", 1.0, b"theirs", "a"), DuplicateCall),  # somebody sent the same call at the same time
    ],
)
async def test_a_commit_that_lost_to_another_is_refused(
    store: RetryStore, unsure: UnsureStore, theirs: Entry, refusal: type[Exception]
) -> None:
    await begin(unsure)
    unsure.ahead.extend([BEFORE])
    await unsure.store.append(Commit("room", theirs))
    with pytest.raises(refusal):
        await store.append(Commit("room", Entry(2, "call", 1.0, b"ours", "a")))
    assert await store.entries("room") == [SEED, theirs]


async def test_a_commit_that_is_refused_at_once_is_not_asked_for(store: RetryStore, unsure: UnsureStore) -> None:
    await begin(unsure)
    await unsure.store.append(Commit("room", Entry(2, "close", 1.0, b""), closes=True))
    with pytest.raises(SessionClosed):
        await store.append(Commit("room", Entry(2, "close", 1.0, b"")))
    assert unsure.seen == ["append"]


@pytest.mark.parametrize("operation", ["head", "load", "entries", "delete"])
async def test_a_session_that_is_not_there_is_unknown_also_after_a_failure(
    store: RetryStore, unsure: UnsureStore, operation: str
) -> None:
    with pytest.raises(UnknownSession):
        await getattr(store, operation)("nowhere")
    if operation != "delete":  # of which nobody can know whether it was there
        unsure.ahead.append(BEFORE)
        with pytest.raises(UnknownSession):
            await getattr(store, operation)("nowhere")


async def test_a_session_is_created_once(store: RetryStore, unsure: UnsureStore) -> None:
    unsure.ahead.extend([AFTER, AFTER])
    await store.create(a_head(), [SEED])
    assert unsure.seen == ["create", "create", "head", "entries"]
    assert await store.entries("room") == [SEED]
    with raises(StoreError):
        await store.create(a_head(), [SEED])


@pytest.mark.parametrize(
    ("head", "entry"),
    [
        (a_head(created=2.0), SEED),
        (a_head(owner="you"), SEED),
        (a_head(), Entry(1, "seed", 1.0, b"another", "seed")),
        (a_head(), Entry(1, "seed", 1.0, b"seed", "another")),
    ],
)
async def test_a_session_that_another_has_created_is_theirs(
    store: RetryStore, unsure: UnsureStore, head: Head, entry: Entry
) -> None:
    await unsure.store.create(head, [entry])
    unsure.ahead.append(BEFORE)
    with raises(StoreError):
        await store.create(a_head(), [SEED])


async def test_a_fork_is_refused_for_its_parent_also_after_a_failure(store: RetryStore, unsure: UnsureStore) -> None:
    unsure.ahead.append(BEFORE)
    with raises(UnknownSession):
        await store.create(a_head(parent="nowhere"))


# Giving up.


async def test_it_gives_up_when_its_patience_ends(unsure: UnsureStore) -> None:
    store = RetryStore(unsure, 0.05)
    unsure.ahead.extend([BEFORE] * 1000)
    with pytest.raises(StoreUnavailable):
        await store.head("room")
    assert len(unsure.seen) > 1


async def test_what_repetition_does_not_mend_is_not_repeated(unsure: UnsureStore) -> None:
    class Foreign(UnsureStore):
        async def around(self, operation, session, work, /, *args, **kwargs):
            self.seen.append(operation)
            raise ForeignStore("not ours")

    foreign = Foreign(unsure)
    with pytest.raises(ForeignStore):
        await RetryStore(foreign).head("room")
    assert foreign.seen == ["head"]


async def test_who_waits_can_be_cancelled(store: RetryStore, unsure: UnsureStore) -> None:
    await begin(unsure)
    unsure.ahead.extend([AFTER, *[BEFORE] * 1000])
    entry = Entry(2, "call", 1.0, b"body", "a")
    waiting = asyncio.create_task(store.append(Commit("room", entry)))
    while len(unsure.seen) < 3:  # noqa: ASYNC110 - it is in the midst of trying
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    unsure.ahead.clear()
    assert await store.entries("room") == [SEED, entry]
    await store.close()  # nothing is under way


async def test_a_closed_store_is_not_tried_again(store: RetryStore, unsure: UnsureStore) -> None:
    await store.close()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await store.head("room")
    assert unsure.seen == []


async def test_closing_waits_for_what_is_tried_again(store: RetryStore, unsure: UnsureStore) -> None:
    await begin(unsure)
    unsure.ahead.extend([BEFORE, BEFORE])
    append = asyncio.create_task(store.append(Commit("room", Entry(2, "call", 1.0, b"body", "a"))))
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), store.close())
    assert append.done()
    await append


# By URL.


class FarStore(MemoryStore):
    remote = True


async def test_stores_over_a_network_are_patient(register: Register) -> None:
    register("far", f"{__name__}:FarStore")
    async with open_store("memory://?timeout=5") as store:
        assert type(store) is MemoryStore
    for url, timeout in (("far://", RETRY_SECONDS), ("far://?timeout=2.5", 2.5)):
        async with open_store(url) as store:
            assert isinstance(store, RetryStore)
            assert store.timeout == timeout
    async with open_store("far://?timeout=0") as store:
        assert type(store) is FarStore


# Many at once.


@pytest.mark.parametrize("seed", range(10))
async def test_no_commit_is_lost_or_done_twice(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Writers to one session, over lines on which two of three messages get lost in one way or the other."""
    monkeypatch.setattr("stateroom.store.retry.PAUSES", Pauses(0.0, 0.0))
    random = Random(seed)
    shared = MemoryStore()
    await shared.create(a_head(), [SEED])
    numbers = count()

    class Line(UnsureStore):
        def fails(self, operation: str) -> str | None:
            return random.choice([BEFORE, AFTER, None])

    async def write(name: int) -> list[str]:
        store = RetryStore(Line(shared))
        done: list[str] = []
        while len(done) < 5:
            revision = (await store.head("room")).revision + 1
            call_id = f"{name}/{next(numbers)}"
            try:
                await store.append(Commit("room", Entry(revision, "call", 1.0, b"one more", call_id)))
                done.append(call_id)
            except Conflict:
                continue
        return done

    done = [call_id for some in await asyncio.gather(*map(write, range(4))) for call_id in some]
    entries = await shared.entries("room")
    assert sorted(f"{entry.call_id}" for entry in entries[1:]) == sorted(done)
    assert [entry.revision for entry in entries] == list(range(1, 22))
