"""Promises about forks, expiry and deletion."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom.errors import SessionClosed, SessionExpired, StoreError, UnknownRevision, UnknownSession
from stateroom.store import Commit, Loaded, Snapshot, Store
from stateroom.store.conformance import make
from stateroom.store.conformance.helpers import Suite, append, check_refused, everything, outcome, race
from stateroom.store.conformance.make import LATER, MUCH_LATER, NOW


class LifetimePromises(Suite):
    """Forks outlive their parents, and everything ends."""

    # Forks.

    async def test_a_fork_begins_without_entries_of_its_own(self, store: Store) -> None:
        await store.create(make.head(revision=3), [make.entry(n) for n in (1, 2, 3)], Snapshot(3, b"state 3"))
        await make.fork(store, "fork", "room", 2)
        head = make.head("fork", revision=2, parent="room", parent_revision=2)
        assert await store.head("fork") == head
        assert await store.entries("fork") == []
        for at in (None, 0, 1, 2):
            assert await store.load("fork", at) == Loaded(head, None, [])

    async def test_a_fork_has_only_its_own_entries(self, store: Store) -> None:
        trunk = await make.session(store, revision=4)
        await make.fork(store, "fork", "room", 2)
        own = [make.entry(3, "fork 3"), make.entry(4, "fork 4")]
        for entry in own:
            await store.append(Commit("fork", entry, expires=LATER))
        head = make.head("fork", revision=4, parent="room", parent_revision=2)
        assert await store.entries("fork") == own
        assert await store.entries("fork", after=3) == own[1:]
        assert await store.entries("fork", after=1, until=3) == own[:1]
        for at, expected in ((None, own), (4, own), (3, own[:1]), (2, []), (1, [])):
            assert await store.load("fork", at) == Loaded(head, None, expected)
        assert await store.entries("room") == trunk
        assert await store.head("room") == make.head(revision=4)

    async def test_a_fork_can_be_created_with_entries_and_a_snapshot(self, store: Store) -> None:
        await make.session(store, revision=2)
        head = make.head("fork", revision=3, parent="room", parent_revision=2)
        await store.create(head, [make.entry(3, "own")], Snapshot(2, b"state 2"))
        assert await store.entries("fork") == [make.entry(3, "own")]
        assert await store.load("fork") == Loaded(head, Snapshot(2, b"state 2"), [make.entry(3, "own")])
        assert await store.load("fork", 2) == Loaded(head, Snapshot(2, b"state 2"), [])
        assert await store.load("fork", 1) == Loaded(head, None, [])

    async def test_a_fork_has_only_its_own_snapshots(self, store: Store) -> None:
        await make.session(store)
        await append(store, "room", 2, snapshot=Snapshot(2, b"room 2"))
        await make.fork(store, "fork", "room", 2)
        await append(store, "fork", 3)
        await append(store, "fork", 4, snapshot=Snapshot(4, b"fork 4"))
        await append(store, "fork", 5)
        head = make.head("fork", revision=5, parent="room", parent_revision=2)
        assert await store.load("fork") == Loaded(head, Snapshot(4, b"fork 4"), [make.entry(5)])
        assert await store.load("fork", 3) == Loaded(head, None, [make.entry(3)])
        assert (await store.load("room")).snapshot == Snapshot(2, b"room 2")

    async def test_a_fork_and_its_parent_go_on_apart(self, store: Store) -> None:
        await make.session(store, revision=2)
        await make.fork(store, "fork", "room", 1)
        await append(store, "room", 3, body=b"room")
        await append(store, "fork", 2, body=b"fork", expires=MUCH_LATER, closes=True)
        assert (await store.head("room")) == make.head(revision=3)
        assert [entry.body for entry in await store.entries("fork")] == [b"fork"]
        await check_refused(SessionClosed, append(store, "fork", 3))
        await append(store, "room", 4)

    async def test_a_fork_can_be_forked(self, store: Store) -> None:
        await make.session(store, revision=2)
        await make.fork(store, "fork", "room", 2, revision=4)
        await make.fork(store, "deep", "fork", 3, revision=5)
        await make.fork(store, "early", "fork", 1)  # a revision that the fork has from its parent
        assert [entry.revision for entry in await store.entries("deep")] == [4, 5]
        assert await store.head("early") == make.head("early", revision=1, parent="fork", parent_revision=1)
        await append(store, "early", 2, "own")
        assert await store.entries("early") == [make.entry(2, "own")]

    async def test_a_fork_of_a_revision_that_was_not_reached_is_refused(self, store: Store) -> None:
        await make.session(store, revision=2)
        await check_refused(UnknownRevision, make.fork(store, "fork", "room", 3), session="room")
        assert await outcome(store.head("fork")) is UnknownSession
        await append(store, "room", 3)
        await make.fork(store, "fork", "room", 3)

    async def test_a_closed_or_expired_session_can_be_forked(self, store: Store) -> None:
        await make.session(store, revision=0)
        await append(store, "room", 1, expires=NOW, closes=True)
        await make.fork(store, "fork", "room", 1)
        await append(store, "fork", 2)
        assert await store.head("fork") == make.head("fork", revision=2, parent="room", parent_revision=1)

    # Expiry.

    async def test_a_session_lives_until_the_very_moment_of_its_expiry(self, store: Store) -> None:
        await make.session(store)
        await append(store, "room", 2, at=LATER - 0.001)
        await store.touch("room", now=LATER - 0.001, expires=LATER)
        assert await store.sweep(LATER - 0.001) == 0
        assert await outcome(append(store, "room", 3, at=LATER)) is SessionExpired
        assert await store.sweep(LATER) == 1

    async def test_a_touch_renews_the_expiry_and_nothing_else(self, store: Store) -> None:
        entries = await make.session(store)
        await store.touch("room", now=NOW, expires=MUCH_LATER)
        assert await store.load("room") == Loaded(make.head(revision=1, expires=MUCH_LATER), None, entries)
        assert await store.sweep(LATER) == 0
        await append(store, "room", 2, at=LATER, expires=MUCH_LATER)

    async def test_an_append_renews_the_expiry(self, store: Store) -> None:
        await make.session(store)
        await append(store, "room", 2, expires=MUCH_LATER)
        assert (await store.head("room")).expires == MUCH_LATER
        assert await store.sweep(LATER) == 0

    async def test_an_append_that_renews_nothing_leaves_the_expiry_as_it_is(self, store: Store) -> None:
        await make.session(store)
        await append(store, "room", 2, expires=None)
        head = await store.head("room")
        assert (head.revision, head.expires) == (2, LATER)

    async def test_a_sweep_removes_the_expired_and_only_them(self, store: Store) -> None:
        for number in range(30):
            await make.session(store, f"room {number}", expires=NOW + number)
        await append(store, "room 3", 2, expires=NOW + 3, closes=True)
        await append(store, "room 20", 2, expires=NOW + 20, closes=True)
        kept = {f"room {number}": await everything(store, f"room {number}") for number in range(11, 30)}
        assert await store.sweep(NOW + 10) == 11
        assert {head.id for head in await store.heads()} == set(kept)
        for session, before in kept.items():
            assert await everything(store, session) == before
        for number in range(11):
            assert await outcome(store.head(f"room {number}")) is UnknownSession
        assert await store.sweep(NOW + 10) == 0

    async def test_an_id_that_was_swept_begins_anew(self, store: Store) -> None:
        await store.create(make.head(revision=2), [make.entry(1, "a"), make.entry(2, "b")], Snapshot(2, b"old"))
        await append(store, "room", 3, "c", snapshot=Snapshot(3, b"old"))
        assert await store.sweep(LATER) == 1
        for call in (store.load("room"), store.entries("room"), store.find_call("room", "a")):
            assert await outcome(call) is UnknownSession
        head = make.head(created=MUCH_LATER, expires=2 * MUCH_LATER)
        await store.create(head)
        assert await store.load("room") == Loaded(head, None, [])
        for call_id in ("a", "b", "c"):
            assert await store.find_call("room", call_id) is None
        await append(store, "room", 1, "a", at=MUCH_LATER, expires=2 * MUCH_LATER)
        assert (await store.load("room")).entries == [make.entry(1, "a", at=MUCH_LATER)]
        assert await store.heads() == [replace(head, revision=1)]

    async def test_a_sweep_keeps_a_parent_as_long_as_a_fork_reads_it(self, store: Store) -> None:
        entries = await make.session(store, revision=3)
        await make.fork(store, "fork", "room", 2, expires=MUCH_LATER)
        await make.fork(store, "short fork", "room", 2)
        assert await store.sweep(LATER) == 1
        assert {head.id for head in await store.heads()} == {"room", "fork"}
        assert await store.entries("room") == entries
        assert await outcome(append(store, "room", 4, at=LATER, expires=MUCH_LATER)) is SessionExpired
        assert await store.sweep(MUCH_LATER) == 2
        assert await store.heads() == []

    async def test_a_sweep_keeps_a_whole_chain_of_parents(self, store: Store) -> None:
        await make.session(store, "a")
        await make.fork(store, "b", "a", 1)
        await make.fork(store, "c", "b", 1)
        await make.fork(store, "d", "c", 1, expires=MUCH_LATER)
        await make.fork(store, "side", "c", 1)
        assert await store.sweep(LATER) == 1
        assert {head.id for head in await store.heads()} == {"a", "b", "c", "d"}
        assert await store.sweep(MUCH_LATER) == 4
        assert await store.heads() == []

    async def test_a_fork_does_not_die_with_its_live_parent(self, store: Store) -> None:
        await make.session(store, expires=MUCH_LATER)
        await make.fork(store, "fork", "room", 1)
        await make.fork(store, "fork of fork", "fork", 1, expires=MUCH_LATER)
        assert await store.sweep(LATER) == 0
        await store.touch("fork of fork", now=LATER, expires=LATER + 1)
        assert await store.sweep(LATER + 1) == 2
        assert [head.id for head in await store.heads()] == ["room"]

    async def test_a_sweep_and_a_fork_at_the_same_time_leave_no_orphan(self, store: Store) -> None:
        for number in range(10):
            parent, fork = f"room {number}", f"fork {number}"
            await make.session(store, parent)
            made = outcome(make.fork(store, fork, parent, 1, expires=MUCH_LATER))
            await race(made, store.sweep(LATER), flipped=number % 2)
            has_fork = await outcome(store.head(fork)) is not UnknownSession
            has_parent = await outcome(store.head(parent)) is not UnknownSession
            assert has_fork == has_parent

    async def test_a_sweep_never_takes_a_session_that_was_just_renewed(self, store: Store) -> None:
        for number in range(10):
            session = f"room {number}"
            await make.session(store, session)
            renewal = (
                append(store, session, 2, expires=MUCH_LATER)
                if number % 4 < 2
                else store.touch(session, now=NOW, expires=MUCH_LATER)
            )
            renewed, _ = await race(outcome(renewal), store.sweep(LATER), flipped=number % 2)
            assert (renewed is None) == (await outcome(store.head(session)) is not UnknownSession)

    # Deletion.

    async def test_a_deleted_session_is_gone_and_only_that(self, store: Store) -> None:
        for name in ("room", "room2", "other"):
            head = make.head(name, revision=2)
            await store.create(head, [make.entry(1, "a"), make.entry(2, "b")], Snapshot(2, b"state"))
        kept = [await everything(store, name) for name in ("room2", "other")]
        await store.delete("room")
        for call in (
            store.head("room"),
            store.load("room"),
            store.entries("room"),
            store.find_call("room", "a"),
            append(store, "room", 3),
            store.touch("room", now=NOW, expires=LATER),
            store.delete("room"),
        ):
            assert await outcome(call) is UnknownSession
        assert [await everything(store, name) for name in ("room2", "other")] == kept
        assert {head.id for head in await store.heads()} == {"room2", "other"}
        assert await store.sweep(LATER) == 2

    async def test_closed_and_expired_sessions_can_be_deleted(self, store: Store) -> None:
        await make.session(store, "closed")
        await append(store, "closed", 2, closes=True)
        await make.session(store, "expired", expires=0.0)
        for name in ("closed", "expired"):
            await store.delete(name)
            assert await outcome(store.head(name)) is UnknownSession
        assert await store.heads() == []

    async def test_an_id_that_was_deleted_begins_anew(self, store: Store) -> None:
        await store.create(make.head(revision=2), [make.entry(1, "a"), make.entry(2, "b")], Snapshot(2, b"old"))
        await store.delete("room")
        head = make.head(owner="another")
        await store.create(head)
        assert await store.load("room") == Loaded(head, None, [])
        assert await store.find_call("room", "a") is None
        await append(store, "room", 1, "a", body=b"new")
        assert (await store.load("room")).entries == [make.entry(1, "a", body=b"new")]

    async def test_a_deleted_parent_can_no_longer_be_used_and_its_forks_can(self, store: Store) -> None:
        entries = await make.session(store, revision=3)
        await make.fork(store, "fork", "room", 2, revision=4)
        fork = await everything(store, "fork")
        for _ in range(2):  # to delete it again changes nothing
            await store.delete("room")
            assert await store.head("room") == make.head(revision=3, expires=0.0)
        for at in (0.0, NOW):
            assert await outcome(append(store, "room", 4, at=at)) is SessionExpired
            assert await outcome(store.touch("room", now=at, expires=LATER)) is SessionExpired
        assert await outcome(store.create(make.head())) is StoreError
        assert await everything(store, "fork") == fork
        assert await store.entries("room") == entries
        assert await store.load("room", 2) == Loaded(make.head(revision=3, expires=0.0), None, entries[:2])
        await append(store, "fork", 5)

    async def test_a_deleted_parent_goes_with_its_last_fork(self, store: Store) -> None:
        await make.session(store, "a")
        await make.fork(store, "b", "a", 1)
        await make.fork(store, "c", "b", 1)
        await make.fork(store, "side", "a", 1)
        await store.delete("a")
        await store.delete("b")
        assert await store.sweep(NOW) == 0
        await store.delete("side")
        assert await outcome(store.head("side")) is UnknownSession
        assert await store.sweep(NOW) == 0
        await store.delete("c")
        assert await store.sweep(NOW) == 2
        assert await store.heads() == []

    async def test_a_deleted_fork_no_longer_holds_its_parent(self, store: Store) -> None:
        await make.session(store)
        await make.fork(store, "fork", "room", 1)
        await store.delete("fork")
        await store.delete("room")
        assert await outcome(store.head("room")) is UnknownSession
        await make.session(store)
        assert await store.head("room") == make.head(revision=1)

    async def test_a_deletion_and_an_append_at_the_same_time_leave_nothing(self, store: Store) -> None:
        for number in range(10):
            await make.session(store)
            commit = append(store, "room", 2, "call", snapshot=Snapshot(2, b"state"))
            calls = [outcome(call) for call in (commit, store.delete("room"), store.delete("room"))]
            committed, *deleted = await race(*calls, flipped=number % 2)
            assert {*deleted} == {None, UnknownSession}
            assert committed in (None, UnknownSession)
            assert await store.heads() == []
            head = make.head()
            await store.create(head)
            assert await store.load("room") == Loaded(head, None, [])
            assert await store.find_call("room", "call") is None
            await store.delete("room")

    async def test_a_deletion_and_a_fork_at_the_same_time_leave_no_orphan(self, store: Store) -> None:
        for number in range(10):
            parent, fork = f"room {number}", f"fork {number}"
            await make.session(store, parent)
            made = outcome(make.fork(store, fork, parent, 1))
            await race(made, outcome(store.delete(parent)), flipped=number % 2)
            has_fork = await outcome(store.head(fork)) is not UnknownSession
            has_parent = await outcome(store.head(parent)) is not UnknownSession
            assert has_fork == has_parent
            assert not has_parent or (await store.head(parent)).expires == 0.0
