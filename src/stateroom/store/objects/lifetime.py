"""The life of a session as objects: creation, pruning, restoring, forks and removal.

A fork first writes a note at its parent, then reads the parent, then writes its own head. A removal first marks the
session as in doubt, then reads the notes, then puts a `Gone` in its place. So one of the two sees the other, in any
order: a fork that finds its parent in doubt clears the doubt, and the removal fails; a removal that finds the note of a
fork which has not begun puts a `Gone` in the fork's place, and the fork fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from msgspec.structs import replace

from stateroom.errors import BadData, StateroomError, StoreUnavailable
from stateroom.store.objects import layout
from stateroom.store.objects.access import Access, Part, SessionChange, SessionView
from stateroom.store.objects.backend import Moved
from stateroom.store.objects.layout import Blob, Gone, LogRun, Owner, Root, Segment
from stateroom.store.records import Blobs, Entry, Head, Record, Snapshot, no_snapshot, taken

REMOVAL_SECONDS = 5.0
"""Seconds to wait for the end of a removal before a session of the same id can begin."""


def name_blobs(blobs: Blobs) -> tuple[list[Blob], list[Part]]:
    """Blobs under unique names: as a segment refers to them, and as they are written."""
    rows = [Blob(digest, layout.new_name(), len(body)) for digest, body in blobs.items()]
    return rows, [(row.name, body) for row, body in zip(rows, blobs.values(), strict=True)]


async def begin(access: Access, record: Record) -> None:
    """Add a session."""
    key = layout.key_of(record.head.id)
    lives: set[str] = set()
    give_up = monotonic() + REMOVAL_SECONDS
    while not await _try_to_begin(access, record, lives):
        while isinstance(there := (await access.look(key))[0], Gone):
            if there.life in lives:  # the parent was about to be removed
                await access.backend.remove([layout.head_name(key)])
            elif monotonic() > give_up:
                raise StoreUnavailable(
                    f"{access.backend.url}: the previous session {record.head.id!r} is still being removed"
                )
            else:
                await asyncio.sleep(0.01)


async def _try_to_begin(access: Access, record: Record, lives: set[str]) -> bool:
    """Add a session, unless a `Gone` is in its place. Each attempt is a life of its own."""
    head = record.head
    key, life = layout.key_of(head.id), layout.new_name()
    lives.add(life)
    rows, parts = name_blobs(record.blobs)
    root = Root(head, life, (), layout.make_run(record.entries, record.snapshots, rows))
    if root.tail.weight > layout.TAIL_BYTES:
        segment, data = layout.make_segment(layout.new_name(), root.tail)
        parts.append((segment.name, data))
        root = root.changed(segments=(segment,), tail=LogRun())
    objects = [(f"{layout.data_folder(key, life)}/{name}", data) for name, data in parts]
    objects.append((layout.recent_name(head, life), b""))
    if head.parent is not None:
        objects.append((layout.fork_name(head.parent, head.id, life), b""))
    names = [name for name, _ in objects]
    await access.write(objects)
    try:
        if head.parent is not None:
            await _check_parent(access, head, head.parent)
    except StateroomError:
        await access.discard(names)
        raise
    try:
        begun, version = await access.swap(key, root, None)
    except Moved:
        await access.discard(names)
        if isinstance((await access.look(key))[0], Root):
            raise taken(head.id) from None
        return False
    assert isinstance(begun, Root)
    access.remember(begun, version)
    return True


async def _check_parent(access: Access, head: Head, parent: str) -> None:
    view = await access.fetch(parent)
    head.check_parent(view.root.head.revision)
    if view.root.doubt:
        await access.change(parent, _end_doubt)


async def _end_doubt(view: SessionView) -> SessionChange | None:
    return SessionChange(view.root.changed()) if view.root.doubt else None


class Forks(NamedTuple):
    """The forks of a session."""

    roots: list[Root]
    damaged: bool
    """Whether one of them cannot be read."""
    notes: list[str]
    """The notes at their parent, also of forks that have not begun or are gone."""

    def __bool__(self) -> bool:
        return self.damaged or bool(self.roots)


async def find_forks(access: Access, session: str, *, prevent: bool = False) -> Forks:
    """The forks of a session; `prevent` stops those that have not begun."""
    notes = [each.name for each in await access.backend.list_all(layout.forks_folder(layout.key_of(session)))]
    owners = [(note, owner) for note in notes if (owner := layout.owner_of(note))]
    forks = await asyncio.gather(*(_find_fork(access, note, owner, prevent=prevent) for note, owner in owners))
    roots = [fork for fork in forks if isinstance(fork, Root)]
    return Forks(roots, any(isinstance(fork, BadData) for fork in forks), [note for note, _ in owners])


async def _find_fork(access: Access, note: str, owner: Owner, *, prevent: bool) -> Root | BadData | None:
    key, life = owner
    try:
        there, _ = await access.look(key)
    except BadData as damage:
        return damage
    if there is None and prevent:
        there = await prevent_life(access, key, life)
    if prevent and isinstance(there, Gone) and there.life != life:
        raise Moved(note)  # the fork may begin once that is removed
    return there if isinstance(there, Root) and there.life == life else None


async def prevent_life(access: Access, key: str, life: str) -> Root | Gone | None:
    """Stop a session from beginning; returns what is in its place then."""
    try:
        return (await access.swap(key, Gone(key, life), None))[0]
    except Moved:
        return (await access.look(key))[0]


async def remove(access: Access, session: str, *, expired_at: float | None = None) -> bool:
    """Remove a session, unless forks read it, or it has not expired by `expired_at`; returns whether it was removed.

    If forks read it and no time is given, it expires at once.
    """
    key = layout.key_of(session)
    give_up = monotonic() + REMOVAL_SECONDS
    async with access.turn(session):
        while True:
            if monotonic() > give_up:
                raise StoreUnavailable(
                    f"{access.backend.url}: a fork of {session!r} is still being created or removed; try again"
                )
            view = await access.fetch(session)
            root = view.root
            if expired_at is not None and root.head.expires > expired_at:
                return False
            try:
                if await find_forks(access, session):
                    if expired_at is None:
                        await access.swap(key, root.with_head(expires=0.0), view.version)
                    return False
                _, version = await access.swap(key, replace(root, doubt=True), view.version)
                forks = await find_forks(access, session, prevent=True)
                if forks:  # one has begun since
                    continue
                gone, _ = await access.swap(key, root.gone(), version)
            except Moved:
                await asyncio.sleep(0.001)
                continue
            assert isinstance(gone, Gone)
            await clear(access, gone, forks.notes)
            return True


async def clear(access: Access, gone: Gone, notes: Sequence[str] = ()) -> None:
    """Remove all objects of a session that is gone, and last its `Gone`.

    A bucket removes any object of a name. So the last check comes right before that: if this process has slept so long
    that another one was quicker, there may be a new session.
    """
    data = [each.name for each in await access.backend.list_all(layout.data_folder(gone.key, gone.life))]
    there, _ = await access.look(gone.key)
    mine = [layout.head_name(gone.key)] if there is not None and there.stamp == gone.stamp else []
    await access.backend.remove([*data, *notes, *filter(None, (gone.recent, gone.fork)), *mine])


# Changes of the past.


async def plan_prune(access: Access, view: SessionView, below: int) -> tuple[int, SessionChange | None]:
    """The session without its past before a snapshot, and the number of entries removed."""
    root = view.root
    indexes = await access.read_indexes(view)
    if not any(revision == below for index in indexes for revision, _ in index.snapshots):
        raise no_snapshot(root.head.id, below)
    first = root.head.parent_revision + 1

    def stays(item: Entry | Snapshot) -> bool:
        if isinstance(item, Snapshot):
            return item.revision >= below
        return item.revision == first or item.revision > below

    old = [
        number
        for number, index in enumerate(indexes)
        if any(first != revision <= below for revision, _, _ in index.entries)
        or any(revision < below for revision, _ in index.snapshots)
    ]
    if not old:
        return 0, None
    count = old[-1] + 1
    whole, dead = await _read_runs(access, view, count)
    items = list(layout.read_records(whole.records))
    run = _run([item for item in items if stays(item)], whole)
    gone = sum(isinstance(item, Entry) and not stays(item) for item in items)
    return gone, _replace(view, count, run, dead)


async def plan_restore(access: Access, record: Record, view: SessionView) -> SessionChange:
    """The session with all that a record of a later moment has, and its head."""
    root = view.root
    record.head.check_replaces(root.head, new=False)
    indexes = await access.read_indexes(view)
    have_entries = {revision for index in indexes for revision, _, _ in index.entries}
    have_snapshots = {revision for index in indexes for revision, _ in index.snapshots}
    have_blobs = await access.find_blobs(view)
    entries = [entry for entry in record.entries if entry.revision not in have_entries]
    snapshots = [snapshot for snapshot in record.snapshots if snapshot.revision not in have_snapshots]
    rows, parts = name_blobs({digest: body for digest, body in record.blobs.items() if digest not in have_blobs})
    new = layout.make_run(entries, snapshots, rows)
    newest = max(have_entries | have_snapshots, default=-1)
    missing: list[Entry | Snapshot] = [*entries, *snapshots]
    if all(item.revision > newest for item in missing):
        change = await access.add_run(view, new) if new.weight else SessionChange(root)
    else:  # something is missing in the middle
        whole, dead = await _read_runs(access, view, len(indexes))
        items = [*layout.read_records(whole.records), *missing]
        change = _replace(view, len(indexes), _run(items, layout.join([whole, new])), dead)
    return change._replace(root=change.root.changed(head=record.head), parts=[*change.parts, *parts])


async def _read_runs(access: Access, view: SessionView, count: int) -> tuple[LogRun, list[str]]:
    """The first `count` of the segments and the tail, as one run; and the names of the segments."""
    segments = view.root.segments[:count]
    runs = list(await asyncio.gather(*(access.read_run(view, segment) for segment in segments)))
    if count > len(segments):
        runs.append(view.root.tail)
    return layout.join(runs), [segment.name for segment in segments]


def _run(items: Sequence[Entry | Snapshot], whole: LogRun) -> LogRun:
    """A run of some items, with the blobs of another run."""
    entries = [item for item in items if isinstance(item, Entry)]
    return layout.make_run(entries, [item for item in items if isinstance(item, Snapshot)], whole.index.blobs)


def _replace(view: SessionView, count: int, run: LogRun, dead: list[str]) -> SessionChange:
    """The session with a run in place of the first `count` of its segments and its tail."""
    root = view.root
    tail_too = count > len(root.segments)
    if tail_too and run.weight <= layout.TAIL_BYTES:
        return SessionChange(root.changed(segments=(), tail=run), dead=dead)
    segment, data = layout.make_segment(layout.new_name(), run)
    segments: tuple[Segment, ...] = (segment, *root.segments[count:])
    return SessionChange(
        root.changed(segments=segments, tail=LogRun() if tail_too else root.tail),
        parts=[(segment.name, data)],
        dead=dead,
        indexes={segment.name: run.index},
    )
