"""Promises about fences and leases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from stateroom.errors import Conflict, DuplicateCall, SessionClosed, SessionExpired, SessionLeased, UnknownSession
from stateroom.store import Commit, Head, Snapshot, Store, open_store
from stateroom.store.conformance import make
from stateroom.store.conformance.helpers import NAMES, Suite, append, check_refused, everything, outcome, race
from stateroom.store.conformance.make import LATER, MUCH_LATER, NOW

SOON = NOW + 10.0


class LeasePromises(Suite):
    """One worker at a time has a session, and one that wakes up late can do no harm."""

    # The fence.

    async def test_a_session_begins_at_the_fence_it_was_given(self, store: Store) -> None:
        head = make.head(fence=7, holder="maker", leased_until=SOON)
        await store.create(head)
        assert await store.head("room") == head
        assert await store.heads() == [head]
        await append(store, "room", 1, fence=7)
        assert await store.head("room") == replace(head, revision=1)

    @pytest.mark.parametrize("fence", [0, 6, 8, 70])
    async def test_a_writer_at_another_fence_is_refused_and_changes_nothing(self, store: Store, fence: int) -> None:
        await make.session(store, fence=7)
        before = await everything(store, "room")
        rest: dict[str, Any] = {"snapshot": Snapshot(2, b"wrong"), "blobs": make.blobs(b"wrong"), "closes": True}
        wrong = append(store, "room", 2, "call", expires=MUCH_LATER, fence=fence, **rest)
        await check_refused(Conflict, wrong, session="room")
        assert await everything(store, "room") == before
        assert await store.find_call("room", "call") is None
        await append(store, "room", 2, "call", fence=7)

    async def test_the_fence_is_looked_at_last(self, store: Store) -> None:
        await store.create(make.head(revision=1, fence=3), [make.entry(1, "call")])
        duplicate = make.entry(2, "call")
        assert await outcome(store.append(Commit("room", duplicate, expires=LATER))) is DuplicateCall
        late = make.entry(2, "call", at=LATER)
        assert await outcome(store.append(Commit("room", late, expires=MUCH_LATER))) is SessionExpired
        await append(store, "room", 2, fence=3, closes=True)
        assert await outcome(append(store, "room", 3, "call")) is SessionClosed

    async def test_a_fence_may_be_a_large_number(self, store: Store) -> None:
        fence = 2**53 - 2
        await make.session(store, fence=fence)
        await append(store, "room", 2, fence=fence)
        head = await store.lease("room", "me", now=NOW, until=SOON)
        assert head.fence == (await store.head("room")).fence == fence + 1
        assert await outcome(append(store, "room", 3, fence=fence)) is Conflict
        await append(store, "room", 3, fence=fence + 1)

    async def test_of_appends_that_come_together_only_those_at_the_fence_are_done(self, store: Store) -> None:
        for number in range(12):
            await make.session(store, f"room {number}", fence=number % 2)
        done = await asyncio.gather(*(outcome(append(store, f"room {n}", 2, expires=None, fence=1)) for n in range(12)))
        assert done == [Conflict, None] * 6
        heads = [await store.head(f"room {number}") for number in range(12)]
        assert [head.revision for head in heads] == [1, 2] * 6

    # Having and renewing.

    async def test_a_lease_raises_the_fence_and_changes_nothing_else(self, store: Store) -> None:
        entries = await make.session(store, revision=2)
        leased = make.head(revision=2, fence=1, holder="me", leased_until=SOON + 0.125)
        assert await store.lease("room", "me", now=NOW, until=SOON + 0.125) == leased
        assert await store.head("room") == leased
        assert await store.heads() == [leased]
        assert (await store.load("room")).head == leased
        assert await store.entries("room") == entries

    async def test_commits_go_on_under_the_fence_of_the_lease(self, store: Store) -> None:
        await make.session(store)
        leased = await store.lease("room", "me", now=NOW, until=SOON)
        assert await outcome(append(store, "room", 2)) is Conflict
        await append(store, "room", 2, expires=None, fence=1)
        await append(store, "room", 3, fence=1, snapshot=Snapshot(3, b"state"))
        await store.touch("room", now=NOW, expires=MUCH_LATER)
        assert await store.head("room") == replace(leased, revision=3, expires=MUCH_LATER)

    async def test_a_commit_needs_the_fence_and_no_lease(self, store: Store) -> None:
        await make.session(store)
        await store.lease("room", "me", now=NOW, until=SOON)
        await append(store, "room", 2, at=SOON + 1, fence=1)
        await store.release("room", "me")
        await append(store, "room", 3, at=SOON + 2, fence=1)

    async def test_the_holder_renews_a_lease_at_the_same_fence(self, store: Store) -> None:
        await make.session(store)
        first = await store.lease("room", "me", now=NOW, until=SOON)
        assert await store.lease("room", "me", now=NOW + 1, until=SOON + 1) == replace(first, leased_until=SOON + 1)
        # No other holder has had it since it ran out, so nothing can have changed.
        late = await store.lease("room", "me", now=SOON + 100, until=SOON + 101)
        assert late == await store.head("room") == replace(first, leased_until=SOON + 101)
        shorter = await store.lease("room", "me", now=SOON + 100, until=SOON + 100.5)
        assert shorter.leased_until == SOON + 100.5

    async def test_a_lease_in_use_is_refused_to_others(self, store: Store) -> None:
        await make.session(store)
        leased = await store.lease("room", "me", now=NOW, until=SOON)
        for now in (NOW, SOON - 0.001):
            another = store.lease("room", "another", now=now, until=MUCH_LATER)
            await check_refused(SessionLeased, another, session="room")
        assert await store.head("room") == leased

    async def test_a_lease_ends_at_the_very_moment_it_was_given_until(self, store: Store) -> None:
        await make.session(store)
        await store.lease("room", "me", now=NOW, until=SOON)
        taken = await store.lease("room", "another", now=SOON, until=SOON + 10)
        assert taken == make.head(revision=1, fence=2, holder="another", leased_until=SOON + 10)

    async def test_a_holder_that_wakes_up_late_is_refused(self, store: Store) -> None:
        await make.session(store)
        mine = await store.lease("room", "me", now=NOW, until=SOON)
        await append(store, "room", 2, fence=mine.fence)
        theirs = await store.lease("room", "another", now=SOON, until=SOON + 10)
        late = append(store, "room", 3, "late", fence=mine.fence)
        assert await outcome(late) is Conflict
        assert await outcome(store.lease("room", "me", now=SOON, until=SOON + 20)) is SessionLeased
        await store.release("room", "me")  # another holder has the lease now
        assert await store.head("room") == theirs
        await append(store, "room", 3, fence=theirs.fence)
        assert await store.find_call("room", "late") is None

    async def test_a_release_lets_others_in_at_once(self, store: Store) -> None:
        await make.session(store)
        await store.lease("room", "me", now=NOW, until=SOON)
        await store.release("room", "me")
        assert await store.head("room") == make.head(revision=1, fence=1)
        await store.release("room", "me")
        taken = await store.lease("room", "another", now=NOW, until=SOON)
        assert taken == make.head(revision=1, fence=2, holder="another", leased_until=SOON)

    async def test_a_lease_after_ones_own_release_is_a_new_one(self, store: Store) -> None:
        await make.session(store)
        await store.lease("room", "me", now=NOW, until=SOON)
        await store.release("room", "me")
        assert (await store.lease("room", "me", now=NOW, until=SOON)).fence == 2

    async def test_a_lease_that_ran_out_can_still_be_released(self, store: Store) -> None:
        await make.session(store)
        await store.lease("room", "me", now=NOW, until=NOW)
        await store.release("room", "me")
        assert await store.head("room") == make.head(revision=1, fence=1)

    # Whose, and of what.

    async def test_closed_and_expired_sessions_can_be_leased_and_stay_so(self, store: Store) -> None:
        await make.session(store, "closed")
        await append(store, "closed", 2, closes=True)
        await make.session(store, "expired", expires=NOW - 1)
        for name in ("closed", "expired"):
            before = await store.head(name)
            leased = await store.lease(name, "me", now=NOW, until=SOON)
            assert leased == replace(before, fence=1, holder="me", leased_until=SOON)
            await store.release(name, "me")
            assert await store.head(name) == replace(before, fence=1)
        assert await outcome(append(store, "closed", 3, fence=1)) is SessionClosed
        assert await outcome(append(store, "expired", 2, fence=1)) is SessionExpired

    async def test_any_text_can_be_a_holder(self, store: Store) -> None:
        await make.session(store)
        for fence, name in enumerate(NAMES, 1):
            await store.lease("room", name, now=NOW, until=SOON)
            for other in NAMES:
                if other != name:
                    assert await outcome(store.lease("room", other, now=NOW, until=SOON)) is SessionLeased
                    await store.release("room", other)
            head = make.head(revision=1, fence=fence, holder=name, leased_until=SOON)
            assert await store.head("room") == head
            await store.release("room", name)

    async def test_a_lease_is_of_one_session(self, store: Store) -> None:
        for name in NAMES:
            await make.session(store, name)
        for number, name in enumerate(NAMES):
            await store.lease(name, f"holder {number}", now=NOW, until=SOON)
        await make.fork(store, "fork", NAMES[0], 1)
        heads = [await store.head(name) for name in NAMES]
        assert [(head.fence, head.holder) for head in heads] == [(1, f"holder {n}") for n in range(len(NAMES))]
        assert await store.head("fork") == make.head("fork", revision=1, parent=NAMES[0], parent_revision=1)

    async def test_a_leased_session_is_swept_and_deleted_like_any_other(self, store: Store) -> None:
        for name in ("swept", "deleted"):
            await make.session(store, name)
            await store.lease(name, "me", now=NOW, until=MUCH_LATER)
        await store.delete("deleted")
        assert await store.sweep(LATER) == 1
        for name in ("swept", "deleted"):
            assert await outcome(store.lease(name, "me", now=NOW, until=SOON)) is UnknownSession
            await make.session(store, name)
            assert await store.head(name) == make.head(name, revision=1)

    # Many at once.

    async def test_of_many_who_ask_at_once_one_gets_the_lease(self, store: Store) -> None:
        await make.session(store)
        for turn in range(1, 4):
            now = NOW + 20 * turn
            asked = [outcome(store.lease("room", f"{turn}/{number}", now=now, until=now + 10)) for number in range(10)]
            done = await asyncio.gather(*asked)
            given = [answer for answer in done if isinstance(answer, Head)]
            assert [(head.fence, head.leased_until) for head in given] == [(turn, now + 10)]
            assert done.count(SessionLeased) == 9
            assert await store.head("room") == given[0]

    async def test_of_many_stores_that_ask_at_once_one_gets_the_lease(self, url: str) -> None:
        self.needs_shared()
        async with open_store(url) as one, open_store(url) as two, open_store(url) as three:
            await make.session(one)
            stores = {"one": one, "two": two, "three": three}
            for turn in range(1, 8):
                now = NOW + 20 * turn
                done = await asyncio.gather(
                    *(outcome(store.lease("room", name, now=now, until=now + 10)) for name, store in stores.items())
                )
                (given,) = (answer for answer in done if isinstance(answer, Head))
                assert [await store.head("room") for store in stores.values()] == [given] * 3
                assert done.count(SessionLeased) == 2
                await stores[given.holder or ""].release("room", given.holder or "")
                assert given.fence == turn

    async def test_a_commit_and_a_takeover_at_the_same_time_agree(self, store: Store) -> None:
        for number in range(10):
            name = f"room {number}"
            await make.session(store, name)
            mine = await store.lease(name, "me", now=NOW, until=SOON)
            commit = outcome(append(store, name, 2, expires=None, fence=mine.fence))
            takeover = outcome(store.lease(name, "another", now=SOON, until=SOON + 10))
            committed, theirs = await race(commit, takeover, flipped=number % 2)
            assert isinstance(theirs, Head)
            assert committed in (None, Conflict)
            revision = 2 if committed is None else 1
            assert await store.head(name) == replace(theirs, revision=revision)
            assert len(await store.entries(name)) == revision
