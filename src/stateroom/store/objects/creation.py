"""How a session begins, and how forks and removals keep out of each other's way.

A fork first leaves a note at its parent, then looks at the parent, then puts its own head in place. Who removes a
session first puts it in doubt, then looks at the notes, then puts a `Gone` in its place. So one of the two sees the
other, whatever happens in between: a fork that finds its parent in doubt ends the doubt, and the removal fails; a
removal that finds the note of a fork which has not begun puts a `Gone` in the fork's place, and the fork fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from msgspec.structs import replace

from stateroom.errors import BadData, StateroomError, StoreError, StoreUnavailable, UnknownRevision
from stateroom.store.contract import Blobs, Entry, Head, Snapshot
from stateroom.store.objects.access import Access, Draft, Part, View
from stateroom.store.objects.head import Gone, Root
from stateroom.store.objects.log import TAIL, Blob, Run, make_run, make_segment
from stateroom.store.objects.names import (
    Owner,
    data_folder,
    fork_name,
    forks_folder,
    head_name,
    key_of,
    new_name,
    owner_of,
    recent_name,
)
from stateroom.store.objects.place import Moved

PATIENCE = 5.0
"""For how many seconds to wait for the end of a removal, before a session of the same id can begin."""


def name_blobs(blobs: Blobs) -> tuple[list[Blob], list[Part]]:
    """Blobs under names of their own: as a segment mentions them, and as they are written."""
    rows = [Blob(digest, new_name(), len(body)) for digest, body in blobs.items()]
    return rows, [(row.name, body) for row, body in zip(rows, blobs.values(), strict=True)]


async def begin(
    access: Access, head: Head, entries: Sequence[Entry], snapshots: Sequence[Snapshot], blobs: Blobs
) -> None:
    """Add a session."""
    key = key_of(head.id)
    lives: set[str] = set()
    give_up = monotonic() + PATIENCE
    while not await _try_to_begin(access, head, entries, snapshots, blobs, lives):
        while isinstance(there := (await access.look(key))[0], Gone):
            if there.life in lives:  # the parent was about to be removed
                await access.place.remove([head_name(key)])
            elif monotonic() > give_up:
                raise StoreUnavailable(f"{access.place.url}: the last session {head.id!r} is still being removed")
            else:
                await asyncio.sleep(0.01)


async def _try_to_begin(
    access: Access,
    head: Head,
    entries: Sequence[Entry],
    snapshots: Sequence[Snapshot],
    blobs: Blobs,
    lives: set[str],
) -> bool:
    """Add a session, unless something that is gone is in its place. Each attempt is a life of its own."""
    key, life = key_of(head.id), new_name()
    lives.add(life)
    rows, parts = name_blobs(blobs)
    root = Root(head, life, (), make_run(entries, snapshots, rows))
    if root.tail.weight > TAIL:
        segment, data = make_segment(new_name(), root.tail)
        parts.append((segment.name, data))
        root = root.changed(segments=(segment,), tail=Run())
    objects = [(f"{data_folder(key, life)}/{name}", data) for name, data in parts]
    objects.append((recent_name(head, life), b""))
    if head.parent is not None:
        objects.append((fork_name(head.parent, head.id, life), b""))
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
            raise StoreError(f"there is a session {head.id!r} already") from None
        return False
    assert isinstance(begun, Root)
    access.remember(begun, version)
    return True


async def _check_parent(access: Access, head: Head, parent: str) -> None:
    view = await access.fetch(parent)
    if view.root.head.revision < head.parent_revision:
        raise UnknownRevision(parent, f"session {parent!r} has no revision {head.parent_revision}")
    if view.root.doubt:
        await access.change(parent, _end_doubt)


async def _end_doubt(view: View) -> Draft | None:
    return Draft(view.root.changed()) if view.root.doubt else None


class Forks(NamedTuple):
    """The forks of a session."""

    roots: list[Root]
    damaged: bool
    """Whether there is one more that cannot be read; or may be."""
    notes: list[str]
    """What they, and those that have not begun or are gone, have left at their parent."""

    def __bool__(self) -> bool:
        return self.damaged or bool(self.roots)


async def find_forks(access: Access, session: str, *, prevent: bool = False) -> Forks:
    """The forks of a session. Those that have not begun yet can be prevented."""
    notes = [each.name async for some in access.place.list(forks_folder(key_of(session))) for each in some]
    owners = [(note, owner) for note in notes if (owner := owner_of(note))]
    found = await asyncio.gather(*(_find_fork(access, note, owner, prevent=prevent) for note, owner in owners))
    roots = [fork for fork in found if isinstance(fork, Root)]
    return Forks(roots, any(isinstance(fork, BadData) for fork in found), [note for note, _ in owners])


async def _find_fork(access: Access, note: str, owner: Owner, *, prevent: bool) -> Root | BadData | None:
    key, life = owner
    try:
        there, _ = await access.look(key)
    except BadData as damage:
        return damage
    if there is None and prevent:
        there = await prevent_life(access, key, life)
    if prevent and isinstance(there, Gone) and there.life != life:
        raise Moved(note)  # it may begin once that is removed
    return there if isinstance(there, Root) and there.life == life else None


async def prevent_life(access: Access, key: str, life: str) -> Root | Gone | None:
    """See to it that a session which has not begun never does; what is in its place then."""
    try:
        return (await access.swap(key, Gone(key, life), None))[0]
    except Moved:
        return (await access.look(key))[0]


async def remove(access: Access, session: str, *, expired_at: float | None = None) -> bool:
    """Remove a session, unless forks read it, or it is to have expired by a time and has not.

    If forks read it and no time is given, it expires at once.
    """
    key = key_of(session)
    give_up = monotonic() + PATIENCE
    async with access.turn(session):
        while True:
            if monotonic() > give_up:
                raise StoreUnavailable(
                    f"{access.place.url}: a fork of {session!r} is neither there nor gone; try again"
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
    """Remove all objects of a session that is gone, at last what stands in its place.

    A bucket removes whatever it finds under a name. So the last look is right before that: should this process have
    slept so long that another has done it, there may be a new session.
    """
    data = [each.name async for some in access.place.list(data_folder(gone.key, gone.life)) for each in some]
    there, _ = await access.look(gone.key)
    mine = [head_name(gone.key)] if there is not None and there.stamp == gone.stamp else []
    await access.place.remove([*data, *notes, *filter(None, (gone.recent, gone.fork)), *mine])
