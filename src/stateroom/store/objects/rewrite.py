"""Changes that touch what is already in a session's log: forgetting its past, and adding what another store has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stateroom.errors import StoreError, UnknownRevision
from stateroom.store.contract import Entry, Record, Snapshot
from stateroom.store.objects.access import Access, Draft, View
from stateroom.store.objects.creation import name_blobs
from stateroom.store.objects.log import TAIL, Run, Segment, join, make_run, make_segment, read_records
from stateroom.store.objects.names import new_name
from stateroom.store.objects.reader import find_blobs


async def plan_prune(access: Access, view: View, below: int) -> tuple[int, Draft | None]:
    """The session without its past before a snapshot, and how many entries have gone."""
    root = view.root
    indexes = await access.read_indexes(view)
    if not any(revision == below for index in indexes for revision, _ in index.snapshots):
        raise UnknownRevision(root.head.id, f"session {root.head.id!r} has no snapshot at revision {below}")
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
    items = list(read_records(whole.records))
    run = _run([item for item in items if stays(item)], whole)
    gone = sum(isinstance(item, Entry) and not stays(item) for item in items)
    return gone, _replace(view, count, run, dead)


async def plan_restore(access: Access, view: View, record: Record) -> Draft:
    """The session with all that a record of a later moment has, and its head."""
    root = view.root
    if not record.head.continues(root.head):
        raise StoreError(f"there is another session {root.head.id!r} already, or a later moment of this one")
    indexes = await access.read_indexes(view)
    have_entries = {revision for index in indexes for revision, _, _ in index.entries}
    have_snapshots = {revision for index in indexes for revision, _ in index.snapshots}
    have_blobs = await find_blobs(access, view)
    entries = [entry for entry in record.entries if entry.revision not in have_entries]
    snapshots = [snapshot for snapshot in record.snapshots if snapshot.revision not in have_snapshots]
    rows, parts = name_blobs({digest: body for digest, body in record.blobs.items() if digest not in have_blobs})
    new = make_run(entries, snapshots, rows)
    newest = max(have_entries | have_snapshots, default=-1)
    missing: list[Entry | Snapshot] = [*entries, *snapshots]
    if all(item.revision > newest for item in missing):
        draft = await access.add_run(view, new) if new.weight else Draft(root)
    else:  # something is missing in the middle
        whole, dead = await _read_runs(access, view, len(indexes))
        items = [*read_records(whole.records), *missing]
        draft = _replace(view, len(indexes), _run(items, join([whole, new])), dead)
    return draft._replace(root=draft.root.changed(head=record.head), parts=[*draft.parts, *parts])


async def _read_runs(access: Access, view: View, count: int) -> tuple[Run, list[str]]:
    """The first of the segments, and the tail where that is among so many, as one; the segments' names."""
    segments = view.root.segments[:count]
    runs = list(await asyncio.gather(*(access.read_run(view, segment) for segment in segments)))
    if count > len(segments):
        runs.append(view.root.tail)
    return join(runs), [segment.name for segment in segments]


def _run(items: Sequence[Entry | Snapshot], whole: Run) -> Run:
    """A run of some items, with all blobs of another."""
    entries = [item for item in items if isinstance(item, Entry)]
    return make_run(entries, [item for item in items if isinstance(item, Snapshot)], whole.index.blobs)


def _replace(view: View, count: int, run: Run, dead: list[str]) -> Draft:
    """The session with a run in the place of the first of its segments, and of its tail where that is among them."""
    root = view.root
    tail_too = count > len(root.segments)
    if tail_too and run.weight <= TAIL:
        return Draft(root.changed(segments=(), tail=run), dead=dead)
    segment, data = make_segment(new_name(), run)
    segments: tuple[Segment, ...] = (segment, *root.segments[count:])
    return Draft(
        root.changed(segments=segments, tail=Run() if tail_too else root.tail),
        parts=[(segment.name, data)],
        dead=dead,
        indexes={segment.name: run.index},
    )
