"""All sessions of a backend: counting, sweeping, sizes, and orphans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from stateroom.errors import BadData, UnknownSession
from stateroom.store.concurrency import gated, in_turn
from stateroom.store.contract import Maintenance, Store
from stateroom.store.objects import layout
from stateroom.store.objects.access import Access, SessionChange, SessionView
from stateroom.store.objects.backend import Listed, Moved
from stateroom.store.objects.layout import Gone, Owner, Root, Segment
from stateroom.store.objects.lifetime import clear, prevent_life, remove
from stateroom.store.records import Head, Record, Size

MAX_CONCURRENT = 32
"""Most sessions read, or removed, at the same time."""
LEFT_BEHIND = timedelta(minutes=10)
"""Age at which unfinished writes count as abandoned; if one is finished after all, it fails without harm."""
REMOVAL_LEFT_BEHIND = timedelta(minutes=10)
"""The same for removals, which check more often that they still own the session."""


class SeenHead(NamedTuple):
    """The remembered data of a session between two looks at all heads."""

    listed: Listed
    life: str
    head: Head | None
    """None if it is gone, and its removal is not finished."""
    parts: tuple[Segment, ...] = ()
    """Its segments, and its tail as a segment."""


@gated
class ObjectMaintenance(Maintenance):
    """Reads every head; those that a listing shows as unchanged are not read again."""

    def __init__(self, store: Store, access: Access) -> None:
        super().__init__(store)
        self.access = access
        self._seen: dict[str, SeenHead] = {}
        self._damages: dict[str, str] = {}
        """The errors of heads that could not be read the last time, by their names."""

    async def export(self, session: str) -> Record:
        return await self.access.read(session, self.access.read_all)

    async def _take(self) -> list[SeenHead]:
        """All heads that can be read."""
        listed = await self.access.backend.list_all(layout.HEADS)
        self._damages = {}
        seen = await in_turn(listed, self._look, MAX_CONCURRENT)
        self._seen = {each.listed.name: each for each in seen if each is not None}
        return list(self._seen.values())

    async def _look(self, listed: Listed) -> SeenHead | None:
        known = self._seen.get(listed.name)
        if known is not None and listed.tag is not None and listed.tag == known.listed.tag:
            return known
        try:
            there, _ = await self.access.look(layout.key_in(listed.name))
        except BadData as error:
            self._damages[listed.name] = str(error)
            return None
        if there is None:
            return None
        if isinstance(there, Gone):
            return SeenHead(listed, there.life, None)
        return SeenHead(listed, there.life, there.head, (*there.segments, layout.make_segment("", there.tail)[0]))

    async def count(self, now: float) -> int:
        """The number of live sessions."""
        heads = [seen.head for seen in await self._take()]
        return sum(head is not None and head.status(now) == "live" for head in heads)

    # Removing.

    async def sweep(self, now: float) -> int:
        """Remove the sessions that have expired, unless remaining forks read them; returns their number."""
        seen = await self._take()
        heads = _heads_of(seen)
        expired = [head.id for head in heads.values() if head.expires <= now]
        swept = await self._remove_families(heads, expired, now)
        await self._finish_removals(seen)
        return swept

    async def _remove_families(self, heads: dict[str, Head], chosen: Collection[str], now: float | None) -> int:
        """Remove sessions, forks before their parents."""
        forks: defaultdict[str, set[str]] = defaultdict(set)
        for head in heads.values():
            if head.parent is not None:
                forks[head.parent].add(head.id)

        async def try_to_remove(session: str) -> bool:
            try:
                return await remove(self.access, session, expired_at=now)
            except (UnknownSession, BadData):  # another has removed it, or it can no longer be read
                return False

        rest, removed = set(chosen), 0
        while childless := [session for session in rest if not forks[session]]:
            done = await in_turn(childless, try_to_remove, MAX_CONCURRENT)
            removed += sum(done)
            rest.difference_update(childless)
            for session in childless:
                parent = heads[session].parent
                if parent is not None:
                    forks[parent].discard(session)  # if it stays after all, its note says so
        return removed

    async def _finish_removals(self, seen: Iterable[SeenHead]) -> None:
        """Finish the removals of processes that died. Of many that try, only one does it."""
        for each in seen:
            if each.head is None and _is_left_behind(each.listed, REMOVAL_LEFT_BEHIND):
                key = layout.key_in(each.listed.name)
                try:
                    gone, version = await self.access.look(key)
                except BadData:
                    continue
                if not isinstance(gone, Gone) or gone.life != each.life:
                    continue
                try:
                    mine, _ = await self.access.swap(key, gone, version)
                except Moved:
                    continue
                assert isinstance(mine, Gone)
                await clear(self.access, mine)

    # Sizes.

    async def sizes(self) -> dict[str, Size]:
        sessions = [seen for seen in await self._take() if seen.head is not None]
        parts = [part for seen in sessions for part in seen.parts]
        tails = sum(seen.parts[-1].size for seen in sessions)
        objects = await self.access.backend.list_all("")
        return {
            "sessions": Size(len(sessions), sum(seen.listed.size for seen in sessions) - tails),
            "entries": Size(
                sum(part.entries for part in parts), sum(part.size - part.snapshot_bytes for part in parts)
            ),
            "snapshots": Size(sum(part.snapshots for part in parts), sum(part.snapshot_bytes for part in parts)),
            "blobs": Size(sum(part.blobs for part in parts), sum(part.blob_bytes for part in parts)),
            "objects": Size(len(objects), sum(listed.size for listed in objects)),
        }

    # Orphans.

    async def orphans(self) -> list[str]:
        strays, unreferenced, seen = await self._find_strays()
        words = [*self._damages.values()]
        foreign = [listed.name for listed in await self._owned() if layout.owner_of(listed.name) is None]
        words += [f"object {name}, which Stateroom did not write" for name in foreign]
        words += [f"object {name} of a session that does not exist" for names in strays.values() for name in names]
        words += [
            f"object {name} that session {session!r} does not refer to"
            for session, names in unreferenced.items()
            for name in names
        ]
        words += [
            f"object {each.listed.name} of an unfinished removal"
            for each in seen
            if each.head is None and _is_left_behind(each.listed, REMOVAL_LEFT_BEHIND)
        ]
        return words + [
            f"session {head.id!r}, whose parent {head.parent!r} does not exist" for head in await self._lost(seen)
        ]

    async def vacuum(self) -> None:
        """Remove orphans; safe while others write.

        A head does not refer yet to what a writer has under way. So before an unreferenced object is removed, its
        session is changed, or stopped from beginning: then the writer cannot refer to the object any more.
        """
        strays, unreferenced, seen = await self._find_strays()
        await in_turn(strays.items(), self._remove_strays, MAX_CONCURRENT)
        for session, names in unreferenced.items():
            await self._remove_unreferenced(session, names)
        await self._finish_removals(seen)
        heads = _heads_of(seen)
        await self._remove_families(heads, _with_forks(heads, await self._lost(seen)), None)
        await self.access.backend.vacuum()

    async def _find_strays(self) -> tuple[dict[Owner, list[str]], dict[str, list[str]], list[SeenHead]]:
        """Objects of sessions that do not exist, by owner; unreferenced objects of those that do; all heads."""
        old: defaultdict[Owner, list[str]] = defaultdict(list)
        for listed in await self._owned():
            owner = layout.owner_of(listed.name)
            if owner is not None and _is_left_behind(listed, LEFT_BEHIND):
                old[owner].append(listed.name)
        seen = await self._take()
        alive = {Owner(layout.key_of(each.head.id), each.life): each.head.id for each in seen if each.head is not None}
        ending = {Owner(layout.key_in(each.listed.name), each.life) for each in seen if each.head is None}
        unread = {layout.key_in(name) for name in self._damages}
        strays = {
            owner: names
            for owner, names in old.items()
            if owner not in alive and owner not in ending and owner.key not in unread
        }
        unreferenced: dict[str, list[str]] = {}
        for owner, names in old.items():
            data = [name for name in names if name.startswith(f"{layout.DATA}/")]
            if owner in alive and (found := await self._unreferenced(alive[owner], data)):
                unreferenced[alive[owner]] = found
        if strays:  # except those of a removal that has just ended
            there = {listed.name for listed in await self._owned()}
            strays = {owner: kept for owner, names in strays.items() if (kept := [n for n in names if n in there])}
        return strays, unreferenced, seen

    async def _unreferenced(self, session: str, names: Collection[str]) -> list[str]:
        async def find(view: SessionView) -> list[str]:
            return await self._without_referenced(view, names)

        try:
            return await self.access.read(session, find)
        except (UnknownSession, BadData):
            return []

    async def _owned(self) -> list[Listed]:
        """The notes and the data of all sessions."""
        return [listed for folder in layout.OWNED for listed in await self.access.backend.list_all(folder)]

    async def _without_referenced(self, view: SessionView, names: Collection[str]) -> list[str]:
        referenced = {segment.name for segment in view.root.segments}
        if any(name.rpartition("/")[2] not in referenced for name in names):
            referenced |= {blob.name for index in await self.access.read_indexes(view) for blob in index.blobs}
        return [name for name in names if name.rpartition("/")[2] not in referenced]

    async def _remove_strays(self, found: tuple[Owner, list[str]]) -> None:
        (key, life), names = found
        there = await prevent_life(self.access, key, life)
        if not isinstance(there, Root) or there.life != life:
            await self.access.backend.remove(names)

    async def _remove_unreferenced(self, session: str, names: Collection[str]) -> None:
        async def change(view: SessionView) -> SessionChange | None:
            dead = [name.rpartition("/")[2] for name in await self._without_referenced(view, names)]
            return SessionChange(view.root.changed(), dead=dead) if dead else None

        try:
            await self.access.change(session, change)
        except (UnknownSession, BadData):
            return

    async def _lost(self, seen: Iterable[SeenHead]) -> list[Head]:
        """Sessions whose parent is gone."""
        heads = _heads_of(seen)
        suspects = [head for head in heads.values() if head.parent is not None and head.parent not in heads]

        async def is_lost(head: Head) -> bool:
            try:
                parent, _ = await self.access.look(layout.key_of(head.parent or ""))
                there, _ = await self.access.look(layout.key_of(head.id))
            except BadData:
                return False
            return isinstance(there, Root) and not isinstance(parent, Root)

        lost = await in_turn(suspects, is_lost, MAX_CONCURRENT)
        return [head for head, is_gone in zip(suspects, lost, strict=True) if is_gone]


def _heads_of(seen: Iterable[SeenHead]) -> dict[str, Head]:
    return {each.head.id: each.head for each in seen if each.head is not None}


def _with_forks(heads: dict[str, Head], lost: Iterable[Head]) -> set[str]:
    """Sessions, and all that were forked from them."""
    chosen = {head.id for head in lost}
    while more := {head.id for head in heads.values() if head.parent in chosen} - chosen:
        chosen |= more
    return chosen


def _is_left_behind(listed: Listed, time: timedelta) -> bool:
    return listed.written < datetime.now(UTC) - time
