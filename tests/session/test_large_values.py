"""Large values are stored once, outside the log, and shared by all that have them in common."""

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from stateroom import Environment, SessionLimits, Sessions, State, Verdict, tool
from stateroom.errors import BadData, TooLarge
from stateroom.session import History, LogReader, write_body
from stateroom.state import digest_of
from stateroom.store import Store, open_store
from tests.messages import raises
from tests.session.conftest import Snapshots
from tests.watched import WatchedStore

pytestmark = pytest.mark.every_store

LARGE = 64 * 1024


class Library(State):
    texts: dict[str, str] = {}
    files: dict[str, bytes] = {}
    shelves: list[tuple[str, int]] = []
    marks: set[str] = set()
    loans: int = 0


class LibraryEnvironment(Environment[Library]):
    """Keeps documents."""

    def seed(self, task) -> Library:
        return Library(texts=getattr(task, "texts", {}), files={"cover": b"\x00" * getattr(task, "cover", 0)})

    @tool
    def put(self, state: Library, name: str, text: str) -> int:
        """Keep a text."""
        state.texts[name] = text
        return len(text)

    @tool
    def echo(self, state: Library, text: str) -> str:
        """Keep a text, and give it back."""
        state.texts["echo"] = text
        return text

    @tool
    def shelve(self, state: Library, size: int) -> None:
        """Keep what the input does not have: a text in a tuple, and bytes."""
        state.shelves.append(("s" * size, size))
        state.files[f"{size}"] = b"\xff" * size

    @tool
    def mark(self, state: Library, text: str) -> None:
        """Mark a text, or not any more."""
        state.marks ^= {text}
        state.texts[text] = "marked"

    @tool
    def lend(self, state: Library) -> int:
        """Count a loan."""
        state.loans += 1
        return state.loans

    @tool
    def drop(self, state: Library) -> None:
        """Throw all away."""
        state.texts.clear()

    @tool(effect="external")
    def send(self, state: Library, text: str) -> str:
        """Send a text."""
        return text

    def verify(self, state: Library, episode: Any) -> Verdict:
        return Verdict(1.0, details={"report": "\n".join(state.texts.values()), "task": len(str(episode.task))})


def document(size: int, seed: int = 1) -> str:
    return random.Random(seed).randbytes(size // 2 + 1).hex()[:size]


@pytest.fixture
def sessions(store: Store) -> Sessions[Library]:
    return Sessions[Library](LibraryEnvironment(), store)


def cold(store: Store, **options: Any) -> Sessions[Library]:
    """The sessions as another process has them."""
    return Sessions[Library](LibraryEnvironment(), store, SessionLimits(**options))


async def contents(store: Store, session: str) -> set[bytes]:
    """The large values that are stored for a session."""
    blobs = (await store.maintenance.export(session)).blobs
    assert all(digest_of(content) == digest for digest, content in blobs.items())
    return set(blobs.values())


async def logged(store: Store, session: str) -> int:
    """The bytes of a session's own entries and snapshots."""
    record = await store.maintenance.export(session)
    return sum(len(entry.body) for entry in record.entries) + sum(len(each.body) for each in record.snapshots)


@pytest.mark.parametrize("length", [LARGE - 1, LARGE, LARGE + 1])
async def test_a_value_is_large_from_64_kib_on(sessions: Sessions[Library], store: Store, length: int) -> None:
    session = await sessions.seed({"cover": length})
    await session.call("put", {"name": "a", "text": document(length)})
    await session.call("shelve", {"size": length})
    large = {document(length).encode(), b"s" * length, b"\xff" * length, b"\x00" * length}
    assert await contents(store, session.id) == (large if length >= LARGE else set())
    assert (await logged(store, session.id) < 3000) == (length >= LARGE)
    state = (await cold(store).open(session.id)).state
    assert state.texts == {"a": document(length)}
    assert state.shelves == [("s" * length, length)]
    assert state.files == {"cover": b"\x00" * length, f"{length}": b"\xff" * length}


async def test_one_copy_serves_input_output_state_snapshots_and_forks(
    sessions: Sessions[Library], store: Store, snapshots_after: Snapshots
) -> None:
    snapshots_after(500)  # else there would be none so soon
    text = document(1_000_000)
    session = await sessions.seed({"texts": {"seeded": text}})
    await session.call("echo", {"text": text})
    for name in "abc":
        await session.call("put", {"name": name, "text": text})
    forks = await session.fork(n=8)
    for fork in forks:
        await fork.call("put", {"name": "of the fork", "text": text})
        for _ in range(30):
            await fork.call("lend")
    assert await contents(store, session.id) == {text.encode()}
    assert [await contents(store, fork.id) for fork in forks] == [set()] * 8
    assert (await store.maintenance.sizes())["blobs"].rows == 1
    records = [await store.maintenance.export(handle.id) for handle in [session, *forks]]
    assert sum(len(record.snapshots) for record in records) > 8
    assert sum([await logged(store, handle.id) for handle in [session, *forks]]) < 500_000
    again = await cold(store).open(forks[-1].id)
    assert again.state.texts == dict.fromkeys(["seeded", "echo", *"abc", "of the fork"], text)
    assert again.task.texts == {"seeded": text}


async def test_small_changes_beside_large_documents_are_small(store: Store) -> None:
    texts = {f"{number}": document(100_000, number) for number in range(20)}
    session = await cold(store).seed({"texts": texts})
    before = await store.size(session.id)
    for number in range(200):
        assert (await session.call("lend")).output == number + 1
    after = await store.size(session.id)
    assert (after.bytes - before.bytes) / 200 < 100
    record = await store.maintenance.export(session.id)
    assert len(record.snapshots) == 1  # another one needs a digest of each document
    again = await cold(store).open(session.id)
    assert (again.state.texts, again.state.loans) == (texts, 200)


class BlobStore(WatchedStore):
    """Notes which large values are sent to it and asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []
        self.asked: list[tuple[str | None, list[str]]] = []
        self.before = self._note

    async def _note(self, operation: str, session: str | None, *given: Any) -> None:
        if operation in ("create", "append"):  # of a record, or of a commit
            self.sent += given[0].blobs
        if operation == "blobs":
            self.asked.append((session, list(given[1])))


async def test_what_is_stored_is_not_sent_again() -> None:
    store = BlobStore()
    text = document(LARGE)
    digest = digest_of(text.encode())
    session = await cold(store).seed({"texts": {"a": text}})
    await session.call("echo", {"text": text})
    assert store.sent == [digest]
    again = await cold(store).open(session.id)
    await again.call("put", {"name": "b", "text": text})
    fork = await again.fork()
    await fork.call("put", {"name": "c", "text": text})
    refreshed = await cold(store).open(fork.id)
    await refreshed.call("drop")
    await refreshed.rewind(to=1)
    await refreshed.call("echo", {"text": text})
    assert store.sent == [digest]
    await fork.call("lend")  # which another process has gone on with
    await fork.call("put", {"name": "d", "text": text})
    assert store.sent == [digest]
    new = document(LARGE, 2)
    for handle in (fork, fork, refreshed, fork, await cold(store).open(fork.id)):
        await handle.call("lend")
        await handle.call("put", {"name": "e", "text": new})
    assert store.sent == [digest, digest_of(new.encode())]


async def test_a_value_that_was_refused_is_sent_with_the_next_try(store: Store) -> None:
    text = document(LARGE)
    session = await cold(store).seed({})
    other = await cold(store).open(session.id)
    await other.call("lend")
    assert (await session.call("put", {"name": "a", "text": text})).ok  # at the second attempt
    assert await contents(store, session.id) == {text.encode()}


async def test_a_cold_load_asks_once_for_what_the_state_has() -> None:
    store = BlobStore()
    texts = [document(LARGE, number) for number in range(6)]
    session = await cold(store).seed({})
    for number, text in enumerate(texts):
        await session.call("put", {"name": f"{number % 3}", "text": text})
    again = await cold(store).open(session.id)
    assert list(again.state.texts.values()) == texts[3:]
    assert store.asked == [(session.id, sorted(digest_of(text.encode()) for text in texts[3:]))]


async def test_a_fork_does_not_count_on_what_its_sibling_has(sessions: Sessions[Library], store: Store) -> None:
    text = document(LARGE)
    session = await sessions.seed({})
    forks = await session.fork(n=2)
    for fork in [*forks, session]:
        await fork.call("put", {"name": "a", "text": text})
    for handle in [*forks, session]:
        assert await contents(store, handle.id) == {text.encode()}
        assert (await cold(store).open(handle.id)).state.texts == {"a": text}


async def test_another_process_catches_up(sessions: Sessions[Library], store: Store) -> None:
    session = await sessions.seed({})
    other = await cold(store).open(session.id)
    await other.call("put", {"name": "a", "text": document(LARGE)})
    await other.call("shelve", {"size": LARGE})
    await session.call("lend")
    assert session.state.texts == {"a": document(LARGE)}
    assert session.state.shelves == [("s" * LARGE, LARGE)]
    assert session.state.files[f"{LARGE}"] == b"\xff" * LARGE
    await other.verify()
    await session.verify()
    assert session.verdict == other.verdict


async def test_a_call_is_answered_again_with_its_large_output(sessions: Sessions[Library], store: Store) -> None:
    text = document(LARGE)
    session = await sessions.seed({})
    for name in ("echo", "send"):
        assert (await session.call(name, {"text": text}, call_id=name)).output == text
    fork = await session.fork()
    for handle in (session, fork, await cold(store).open(session.id), await cold(store).open(fork.id)):
        for name in ("echo", "send"):
            assert (await handle.call(name, {"text": "another"}, call_id=name)).output == text
    assert session.state.texts == {"echo": text}
    assert (await store.maintenance.sizes())["blobs"].rows == 1


async def test_a_verdict_can_be_large(sessions: Sessions[Library], store: Store) -> None:
    text = document(LARGE)
    session = await sessions.seed({"texts": {"a": text}})
    verdict = await session.verify()
    assert verdict.details == {"report": text, "task": len(str(session.task))}
    assert session.verdict == verdict
    again = await cold(store).open(session.id)
    assert again.verdict == verdict
    assert await again.verify() == verdict
    assert await contents(store, session.id) == {text.encode()}


async def test_a_log_is_read_in_parts_that_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.session.history.BATCH_BYTES", 3 * LARGE)
    store = BlobStore()
    texts = [document(LARGE, number) for number in range(10)]
    session = await cold(store).seed({})
    for text in texts:
        await session.call("put", {"name": "a", "text": text})
    assert [entry.input["text"] async for entry in History(store).entries(session.id, after=1)] == texts
    assert [len(digests) for _, digests in store.asked] == [2, 2, 2, 2, 2]  # each is in the patch too


async def test_people_see_the_values(sessions: Sessions[Library], store: Store) -> None:
    text = document(LARGE)
    session = await sessions.seed({"texts": {"seeded": text}})
    await session.call("echo", {"text": text})
    await session.rewind(to=1)
    shown = [(entry, changes) async for entry, changes in LogReader(store, session.id).read()]
    assert shown[0][0].input == {"texts": {"seeded": text}}
    assert (shown[1][0].input, shown[1][0].output) == ({"text": text}, text)
    assert [(change["place"][-1], change["after"]) for change in shown[1][1]] == [("echo", text)]
    assert [(change["place"][-1], change["before"]) for change in shown[2][1]] == [("echo", text)]


@pytest.mark.parametrize("left", [0, LARGE - 1])
async def test_a_value_that_is_gone_or_cut_off_is_named(sessions: Sessions[Library], store: Store, left: int) -> None:
    content = document(LARGE).encode()
    session = await sessions.seed({"texts": {"a": document(LARGE)}})
    fork = await session.fork()
    blobs = {digest_of(content): content[:left]} if left else {}
    async with open_store("memory://") as damaged:
        for handle in (session, fork):
            await damaged.put(replace(await store.maintenance.export(handle.id), blobs=blobs))
            with raises(BadData):
                await History(damaged).document(handle.id)


async def test_a_large_value_counts_towards_the_limit(store: Store) -> None:
    limit = 3 * LARGE
    sessions = cold(store, max_state=limit)
    with raises(TooLarge):
        await sessions.seed({"texts": {"a": document(limit)}})
    session = await sessions.seed({"texts": {"a": document(LARGE)}})
    assert (await session.call("put", {"name": "b", "text": document(LARGE)})).ok
    for handle in (session, await cold(store, max_state=limit).open(session.id)):
        wrong: dict[str, Any] = {"put": {"name": "c", "text": document(LARGE)}, "shelve": {"size": LARGE}}
        for name, arguments in wrong.items():
            result = await handle.call(name, arguments)
            assert (result.ok, result.code) == (False, "too_large")
    assert (await session.call("put", {"name": "b", "text": document(LARGE, 2)})).ok
    assert (await session.call("drop")).ok
    for _ in range(10):
        assert (await session.call("put", {"name": "b", "text": document(2 * LARGE)})).ok
        assert (await session.call("drop")).ok


def test_the_state_grows_by_what_is_put_into_it() -> None:
    text = document(LARGE)
    facts = {"input": {"text": text}, "output": text}
    assert write_body(facts, [("set", ("loans",), 1)], LARGE).growth < 100
    for least in (LARGE, LARGE + 1):
        body = write_body(facts, [("set", ("texts", name), text) for name in "ab"], least)
        assert 2 * LARGE < body.growth < 2 * LARGE + 100


async def test_what_others_added_counts_towards_the_limit(store: Store) -> None:
    session = await cold(store, max_state=3 * LARGE).seed({})
    other = await cold(store).open(session.id)
    for name in "ab":
        await other.call("put", {"name": name, "text": document(LARGE)})
    await session.call("lend")
    assert (await session.call("put", {"name": "c", "text": document(LARGE)})).code == "too_large"


texts = st.text(st.characters(categories=["L", "Cs", "So"]), min_size=1, max_size=30)
steps = st.one_of(
    st.tuples(st.just("put"), st.fixed_dictionaries({"name": st.sampled_from("abc"), "text": texts})),
    st.tuples(st.just("echo"), st.fixed_dictionaries({"text": texts})),
    st.tuples(st.just("mark"), st.fixed_dictionaries({"text": texts})),
    st.tuples(st.just("shelve"), st.fixed_dictionaries({"size": st.integers(0, 30)})),
    st.tuples(st.sampled_from(["lend", "drop"]), st.just({})),
    st.tuples(st.just("rewind"), st.integers(1, 10)),
    st.tuples(st.just("fork"), st.integers(1, 10)),
    st.tuples(st.just("threshold"), st.integers(1, 40)),
    st.tuples(st.just("reopen"), st.none()),
)


@given(script=st.lists(steps, max_size=15), least=st.integers(1, 40), small=st.sampled_from([1, 200]))
async def test_nothing_depends_on_what_is_large(
    script: list[tuple[str, Any]], least: int, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session whose values are set apart, some here and some there, is like one in which none are."""
    monkeypatch.setattr("stateroom.session.cached_session.MIN_SNAPSHOT", small)
    async with open_store("memory://") as plain, open_store("memory://") as store:
        store.large = least
        ours, theirs = await cold(store).seed({}, seed=1), await cold(plain).seed({}, seed=1)
        for kind, given_ in script:
            if kind == "threshold":
                store.large = given_
            elif kind == "reopen":
                ours, theirs = await cold(store).open(ours.id), await cold(plain).open(theirs.id)
            elif kind in ("rewind", "fork"):
                revision = min(given_, ours.revision)
                if kind == "rewind":
                    await ours.rewind(to=revision)
                    await theirs.rewind(to=revision)
                else:
                    ours, theirs = await ours.fork(at=revision), await theirs.fork(at=revision)
            else:
                assert await ours.call(kind, given_) == await theirs.call(kind, given_)
        ours = await cold(store).open(ours.id)
        assert ours.state == theirs.state
        assert [said async for said in facts(ours)] == [said async for said in facts(theirs)]


async def facts(session: Any) -> AsyncIterator[Any]:
    async for entry in session.log():
        yield entry.kind, entry.facts, entry.patch
