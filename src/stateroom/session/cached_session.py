"""A session as one process caches it: its newest state, and all that a commit needs in one round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from secrets import token_hex
from time import monotonic
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from stateroom.errors import Busy, InvalidState, SessionSealed, StoreError, StoreUnavailable, TooLarge, UnknownSession
from stateroom.session.history import History
from stateroom.session.log import (
    BEYOND_LIMIT,
    PATCHED,
    Document,
    LogEntry,
    Stored,
    Weight,
    WorldStart,
    progress_after,
    read_stored,
    weight_of_snapshot,
    write_body,
    write_document,
)
from stateroom.session.progress import Progress
from stateroom.session.reader import Reader, StateAt, schema_facts
from stateroom.session.resources import SessionResources
from stateroom.session.runtime import SessionLimits
from stateroom.state import Patch, References, State, decode, encode_json, patched
from stateroom.store import NO_BLOBS, Blobs, Commit, Entry, Head, Snapshot

STATES_IN_MEMORY = 8
"""Number of newest revisions whose states stay in memory, so that going back to one costs nothing."""

MIN_SNAPSHOT = 4096
"""Changes of fewer bytes than this are never worth a snapshot."""

SNAPSHOT_RATIO = 2
"""A snapshot is written when the changes since the last one weigh this many times as much as it does."""

LARGE_PER_BYTE = 64
"""Bytes of large values that weigh as much as one byte of a snapshot, which needs their digests."""


MAX_ANCESTORS = 16
"""Number of ancestors whose call ids and large values a fork remembers."""


SMALL_STATE_BYTES = 64 * 1024
"""Up to this size, a state with the changes that lead to it is read at once when a session goes back."""

LOG_IS_FULL = (
    "you can still read, verify, fork and close the session; to continue, prune its past (`stateroom store prune`)"
)

MAX_READS = 8
"""Concurrent reads of one session; all sessions share the memory and the threads."""

OWN_CALL_ID = "\n"
"""The prefix of our own call ids; no caller's id has it."""


class HeldLease(msgspec.Struct):
    """A lease that this process has."""

    token: str
    """The holder's name in the store."""
    sure_until: float = 0.0
    """The time, by the monotonic clock, until which no other process can have changed the session."""


class CallCount:
    """Counts the calls of a session that run or wait: each is inside a `with` block."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.calls = 0

    def __enter__(self) -> None:
        if self.calls >= self.most:
            raise Busy(f"{self.most} calls of this session are already in flight; wait for some to end")
        self.calls += 1

    def __exit__(self, *_: object) -> None:
        self.calls -= 1


class PreparedCommit(msgspec.Struct, frozen=True, gc=False):
    """A prepared commit, and the cached data after it."""

    commit: Commit
    after: StateAt
    weight: Weight
    verdict_facts: dict[str, Any] | None
    """The content of a verdict."""


class CachedSession:
    """The newest state of a session, and what is needed to commit to it with one round trip to the store."""

    def __init__(self, reader: Reader, head: Head, limits: SessionLimits) -> None:
        self.reader = reader
        self.store = reader.store
        self.state_type = reader.state_type
        self.limits = limits
        self.head = head
        self.lock = asyncio.Lock()
        self.reads = asyncio.Semaphore(MAX_READS)
        """Limits the reads that run in parallel."""
        self.calls = CallCount(limits.max_calls)
        self.state: Any = None
        """The newest state; None when it is not loaded."""
        self.progress = Progress(0, 0.0)
        """After a fork or a rewind that left the state unread, only what is pending is known, and the agent's phase."""
        self.knows_progress = False
        """Whether the progress is completely known."""
        self.outdated = False
        """Whether the state is stored in an older schema than the current one."""
        self.stale = True
        """Whether the store may be ahead of this cache, or have diverged from it."""
        self.call_ids: tuple[set[str], ...] = (set(),)
        """Call ids that may be in the log: those committed here, and those of the sessions it was forked from."""
        self.all_call_ids_known = False
        """Whether the log has no other call ids."""
        self.digests: tuple[set[str], ...] = (set(),)
        """Of large values that are stored for this session, and for those that it was forked from. Only the first set
        grows; the others are shared with forks."""
        self.seeded = Entry(0, "seed", 0.0, b"")
        """The seed entry with its large values, as bytes, which take less memory than the decoded task."""
        self.verdict_facts: dict[str, Any] | None = None
        """The facts of the verdict's entry, if there is one: it seals the session."""
        self.lease: HeldLease | None = None
        """This process's lease, if any."""
        self.resources: SessionResources | None = None
        """The session's resources that this process has, if any were asked for."""
        self.user: str | None = None
        """The task's user, if known."""
        self.pool: dict[int, Any] = {}
        """Drafts of wide containers that one call leaves for the next."""
        self._trail: dict[int, StateAt] = {}
        self._weight = Weight()
        self._whole_under: int | None = None
        """The fence under which nothing was found to be pruned."""

    def set_newest(self, after: StateAt) -> None:
        """Cache this state as the one at the head's revision."""
        self.state, self.progress, self.outdated = after.state, after.progress, after.outdated
        self.knows_progress = after.state is not None
        self.stale = not self.knows_progress  # the next use loads it
        trail, newest = self._trail, self.head.revision
        if not self.stale:
            trail[newest] = after
        while trail and (oldest := next(iter(trail))) <= newest - STATES_IN_MEMORY:  # others may have gone on by many
            del trail[oldest]

    def is_leased_elsewhere(self, now: float) -> bool:
        """Whether another process has the lease, as far as this one knows."""
        mine = self.lease is not None and self.lease.token == self.head.holder
        return not mine and self.head.leased(now)

    @property
    def is_fresh(self) -> bool:
        """Whether this process would know of every change of the session."""
        return not self.stale and self.lease is not None and monotonic() < self.lease.sure_until

    async def check_newest(self) -> bool:
        """Ask the store whether another process has changed the session; if so, the next use loads the changes."""
        newest = self.is_fresh or (await self.store.head(self.head.id)).revision == self.head.revision
        self.stale = self.stale or not newest
        return newest

    def ensure_unsealed(self) -> None:
        """Raise if the session has its verdict."""
        if self.verdict_facts is not None:
            raise SessionSealed(self.head.id)

    def forget(self) -> None:
        """Drop the cached states: the next use reads the state from the store."""
        self.state, self.stale = None, True
        self.pool.clear()
        self._trail.clear()

    def load(self, after: StateAt, document: Document) -> None:
        """Cache the data that was read from the store."""
        self.head = document.head
        self._weight = document.weight
        self.digests[0].update(document.digests)
        self.set_newest(after)
        if self._weight.log >= self.limits.max_log:
            self.stale = True  # perhaps some of it was pruned: the next use looks

    async def refresh(self, *, load_state: bool = True) -> None:
        """Load what other processes have committed, with the state if `load_state`."""
        while True:
            known, state, progress = self.head.revision, self.state, self.progress
            head = await self.store.head(self.head.id)
            if head.created != self.head.created:  # it was deleted, and another one seeded that has its id
                raise UnknownSession(head.id)
            news = await self.store.entries(head.id, after=known, until=head.revision)
            stored = [read_stored(entry) for entry in news]
            digests = {value.digest for each in stored for value in each.large}
            pruned = len(news) < head.revision - known
            written, growth = sum(len(entry.body) for entry in news), sum(each.growth for each in stored)
            large = sum(value.size for each in stored for value in each.large)
            weight = self._weight.after(written, growth, large)
            for each in stored:
                one = each.entry
                progress = progress_after(progress, one.kind, one.call_id, one.facts, one.revision)
            anew = state is None or self.outdated or pruned or any(_begins_anew(each.entry) for each in stored)
            if anew and load_state:
                after, document = await self.reader.read(head.id, head.revision)
                weight, digests = document.weight, digests | document.digests
            else:
                after = StateAt(None if anew else await self._patched(head, stored), progress)
            if weight.log >= self.limits.max_log:
                weight = replace(weight, log=(await self.store.size(head.id)).bytes)
            verdicts = await History(self.store).whole(head, [each for each in stored if each.entry.kind == "verdict"])
            if self.head.revision == known and self.state is state:  # else a task of this process came in between
                break
        self._weight = weight
        self.digests[0].update(digests)
        self.call_ids[0].update(entry.call_id for entry in news if entry.call_id is not None)
        self.verdict_facts = verdicts[0].facts if verdicts else self.verdict_facts
        self.head = head
        self.set_newest(after)

    async def _patched(self, head: Head, news: Iterable[Stored]) -> Any:
        """The cached state after the changes of other processes."""
        state = self.state
        for entry in await History(self.store).whole(head, [each for each in news if each.entry.kind in PATCHED]):
            try:
                state = patched(state, entry.patch)
            except InvalidState as error:  # not by the code that it names
                message = f"revision {entry.revision} of session {head.id!r} is not valid here: {error}"
                raise InvalidState((), message) from error
        return state

    def prepare(
        self,
        kind: str,
        facts: dict[str, Any],
        patch: Patch = [],  # noqa: B006 - never changed
        after: StateAt | None = None,
        call_id: str | None = None,
        *,
        saved: Blobs = NO_BLOBS,
        decided: bool = False,
    ) -> PreparedCommit:
        """The commit that enters these facts; `after` is the state and progress then, by default the current ones.

        `saved` is what was saved of resources, which is stored with it. What was `decided` before, when a change of a
        shared state was announced, may exceed the limits.
        If the state is stored in an older schema, no patch can build on that: a snapshot in the new one is written.
        """
        limits = self.limits
        if self._weight.log >= limits.max_log and not (
            kind in BEYOND_LIMIT or decided or call_id in self.progress.pending
        ):
            self.stale = True  # should some of it be pruned, the next attempt finds that out
            raise TooLarge(f"the session's log has reached its limit of {limits.max_log:,} bytes: {LOG_IS_FULL}")
        large = self.store.large
        after = after or StateAt(self.state, progress_after(self.progress, kind, call_id, facts), self.outdated)
        unread = after.state is None
        migrates = self.outdated and not unread
        if migrates:
            facts = {**facts, "schema": schema_facts(self.state_type)}
        body = write_body(facts, patch, large)
        head, at = self.head, limits.now()
        expires = None if head.expires - at > limits.renew_below else at + limits.ttl
        if call_id is None and self.store.remote:
            call_id = OWN_CALL_ID + token_hex(8)  # the answer to a commit can be lost: this id finds it
        entry = Entry(head.revision + 1, kind, at, body.data, call_id)
        blobs = self._unstored({**body.blobs, **saved}) if body.blobs or saved else NO_BLOBS
        verdict_facts = decode(encode_json(facts)) if kind == "verdict" else None
        reward = float(facts["verdict"]["reward"]) if kind == "verdict" else None
        moves = "agent" in facts or (kind == "rewind" and head.phase is not None)
        phase = after.progress.agent.phase if moves and after.progress.agent.phase != head.phase else None
        weight = self._weight.after(len(body.data), body.growth, _size(blobs) if blobs else 0)
        # No state is larger than its last snapshot and what it has grown by since: it is weighed near the limit only.
        fits = not patch or weight.state <= limits.max_state
        needs_no_snapshot = fits and (weight.tail <= MIN_SNAPSHOT or _has_light_tail(weight))
        if unread or (not migrates and (needs_no_snapshot or after.outdated)):
            commit = Commit(head.id, entry, expires, head.fence, None, blobs, kind == "close", phase, reward)
            return PreparedCommit(commit, after, weight, verdict_facts)
        references = References(large)
        snapshot = Snapshot(entry.revision, write_document(after.state, after.progress, references, log=weight.log))
        both = self._unstored({**blobs, **references.blobs})
        log = weight.log + len(snapshot.body) + _size(both) - _size(blobs)
        weight = weight_of_snapshot(len(snapshot.body), references.size, log)
        if patch and not decided and weight.state > limits.max_state:
            raise TooLarge(f"the state would exceed its limit of {limits.max_state:,} bytes")
        after = StateAt(after.state, after.progress)
        commit = Commit(head.id, entry, expires, head.fence, snapshot, both, kind == "close", phase, reward)
        return PreparedCommit(commit, after, weight, verdict_facts)

    def _unstored(self, blobs: dict[str, bytes]) -> Blobs:
        """The large values that are not known to be stored."""
        if not blobs:
            return blobs
        new = [digest for digest in blobs if not any(digest in known for known in self.digests)]
        return blobs if len(new) == len(blobs) else {digest: blobs[digest] for digest in new}

    async def create(self, first: PreparedCommit | None) -> None:
        """Store a fork that is new, with its first own entry if there is one."""
        if first is None:
            await self.store.create(self.head)
            return
        commit = first.commit
        head = replace(self.head, revision=commit.entry.revision)
        await self.store.create(head, [commit.entry], commit.snapshot, commit.blobs)
        self._apply_commit(first)

    async def append(self, prepared: PreparedCommit) -> None:
        """Append a prepared commit."""
        self.stale = True  # until the store has said yes, whatever happens
        await self.store.append(prepared.commit)
        self._apply_commit(prepared)

    def _apply_commit(self, prepared: PreparedCommit) -> None:
        """Cache the result of a commit."""
        commit, entry = prepared.commit, prepared.commit.entry
        self._weight = prepared.weight
        if commit.blobs:
            self.digests[0].update(commit.blobs)
        self.head = self.head.after(commit)
        if entry.call_id is not None and not entry.call_id.startswith(OWN_CALL_ID):
            self.call_ids[0].add(entry.call_id)
        self.verdict_facts = prepared.verdict_facts or self.verdict_facts
        self.set_newest(prepared.after)

    def in_memory(self, revision: int) -> StateAt | None:
        """The state and progress at a revision, if they are in memory."""
        return self._trail.get(revision)

    async def at(self, revision: int) -> StateAt:
        """The state and progress at a revision."""
        known = self.in_memory(revision)
        if known is not None:
            return known
        standing, document = await self.reader.read(self.head.id, revision)
        self.digests[0].update(document.digests)
        return standing

    async def ensure_kept(self, revision: int) -> None:
        """Raise `UnknownRevision` if the session's past at a revision was pruned.

        A process that prunes a session takes its lease. So what was whole is whole while the fence is the same.
        """
        head, history = self.head, History(self.store)
        if revision > head.parent_revision:
            if self._whole_under != head.fence and await history.is_whole(head):
                self._whole_under = head.fence
            if self._whole_under == head.fence:
                return
        await history.ensure_kept(head, revision)

    @property
    def is_small(self) -> bool:
        """Whether the state is small enough to be read at once."""
        return self._weight.state + self._weight.tail <= SMALL_STATE_BYTES

    def is_new(self, call_id: str) -> bool:
        """Whether this process knows that no entry has this call id."""
        return self.all_call_ids_known and not any(call_id in known for known in self.call_ids)

    async def find_call(self, call_id: str) -> LogEntry | None:
        """The entry of an earlier call, also of another process; then the cached state is updated."""
        if self.is_new(call_id):
            return None
        entry = await History(self.store).find_call(self.head.id, call_id)
        if entry is not None and entry.revision > self.head.revision:
            await self.refresh()
        return entry

    def branch(self, head: Head, after: StateAt) -> CachedSession:
        """The cached session of a fork of this session, which shares the state."""
        fork = CachedSession(self.reader, head, self.limits)
        fork.seeded = self.seeded
        fork.call_ids = (set(), *self.call_ids[:MAX_ANCESTORS])
        fork.all_call_ids_known = self.all_call_ids_known and len(self.call_ids) <= MAX_ANCESTORS
        if self.digests[0]:
            self.digests = (set(), *self.digests[:MAX_ANCESTORS])
        fork.digests = (set(), *self.digests[1:])
        fork._weight = replace(self._weight, log=0)
        fork.set_newest(after)
        return fork


def _begins_anew(entry: LogEntry) -> bool:
    """Whether the state after an entry does not follow from the one before it and the patch."""
    return entry.kind == "rewind" or "schema" in entry.facts


def _size(blobs: Blobs) -> int:
    return sum(map(len, blobs.values())) if blobs else 0


def _has_light_tail(weight: Weight) -> bool:
    """Whether the changes since the last snapshot are not yet worth another."""
    return weight.tail <= SNAPSHOT_RATIO * (weight.snapshot + weight.large // LARGE_PER_BYTE)


class NewSession(NamedTuple):
    """A session that is about to be created, with its first entry and snapshot, and its large values."""

    cached: CachedSession
    entries: Sequence[Entry]
    snapshot: Snapshot
    blobs: Blobs

    async def create(self) -> CachedSession:
        await self.cached.store.create(self.cached.head, self.entries, self.snapshot, self.blobs)
        return self.cached

    async def create_once(self) -> CachedSession | None:
        """Store a session that other processes may store too; None if one of them was quicker."""
        try:
            return await self.create()
        except StoreUnavailable:
            raise
        except StoreError:
            return None


def new_session(
    reader: Reader,
    head: Head,
    state: State,
    progress: Progress,
    facts: dict[str, Any],
    limits: SessionLimits,
    start: WorldStart | None = None,
) -> NewSession:
    """A session that is about to be created; `start` is what the state follows from, if that is stored."""
    made = CachedSession(reader, head, limits)
    large = made.store.large
    facts = {**facts, "schema": schema_facts(made.state_type)}
    if start is not None:
        facts["world"] = start.world
    body = write_body(facts, [], large)
    entry = Entry(head.revision, "seed", head.created, body.data)
    references = References(large)
    log = len(body.data)
    snapshot = Snapshot(head.revision, write_document(state, progress, references, start, log=log))
    blobs = body.blobs | references.blobs
    log += len(snapshot.body) + _size(blobs)
    made._weight = weight_of_snapshot(len(snapshot.body) + (start.size if start else 0), references.size, log)
    if made._weight.state > limits.max_state:
        raise TooLarge(f"the seeded state exceeds its limit of {limits.max_state:,} bytes")
    made.seeded = replace(entry, body=write_body(facts, []).data) if body.blobs else entry
    made.all_call_ids_known = True
    made.digests[0].update(blobs)
    made.set_newest(StateAt(state, progress))
    return NewSession(made, [entry], snapshot, blobs)
