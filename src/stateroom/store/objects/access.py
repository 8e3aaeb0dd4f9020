"""One session at a time: its head is read, changed and swapped, and its segments are read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from random import uniform
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

from stateroom.errors import BadData, StateroomError, StoreUnavailable, UnknownSession
from stateroom.lru import LRU
from stateroom.store.contract import DAMAGE, damaged
from stateroom.store.objects.head import Gone, Root, decode_head, encode_head
from stateroom.store.objects.log import TAIL, Index, Run, Segment, count_merged, decode_index, join, make_segment
from stateroom.store.objects.names import data_folder, head_name, key_of, new_name
from stateroom.store.objects.place import Missing, Moved, Place, Version

T = TypeVar("T")

KNOWN = 1_000
"""How many sessions are remembered, so that an append to one of them need not read it first."""
ATTEMPTS = 100
"""How often a change is tried, when others are quicker each time."""

Part = tuple[str, bytes]
"""The short name of a segment or blob, and its content."""


class View(NamedTuple):
    """A session as it was when its head was last read or written."""

    root: Root
    version: Version
    indexes: dict[str, Index]
    """Those of its segments that have been read: they never change."""


class Draft(NamedTuple):
    """What a session is to become: a new root, with what must be written before it, and what may go after it."""

    root: Root
    parts: Sequence[Part] = ()
    dead: Sequence[str] = ()
    indexes: dict[str, Index] = {}
    """Of the segments among the parts."""


class Access:
    """Reads and changes sessions at a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._views: LRU[str, View] = LRU(KNOWN)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # Heads.

    def turn(self, session: str) -> asyncio.Lock:
        """Who holds this is the only one in this process to change the session."""
        lock = self._turns.get(session)
        if lock is None:
            lock = self._turns[session] = asyncio.Lock()
        return lock

    async def fetch(self, session: str) -> View:
        """The session as it is now."""
        known = self._views.get(session)
        name = head_name(key_of(session))
        try:
            found = await (self.place.read_changed(name, known.version) if known else self.place.read(name))
        except Missing:
            raise self._unknown(session) from None
        if found is None and known is not None:
            return known
        assert found is not None
        content = decode_head(found.data, name)
        if isinstance(content, Gone):
            raise self._unknown(session)
        return self.remember(content, found.version)

    def _unknown(self, session: str) -> UnknownSession:
        self._views.pop(session, None)
        return UnknownSession(session)

    def remember(self, root: Root, version: Version, indexes: dict[str, Index] | None = None) -> View:
        """Keep a session as it is now, for a change that comes next."""
        session = root.head.id
        known = self._views.get(session)
        have = {**(known.indexes if known else {}), **(indexes or {})}
        of_segments = {segment.name: have[segment.name] for segment in root.segments if segment.name in have}
        return self._views.keep(session, View(root, version, of_segments))

    async def look(self, key: str) -> tuple[Root | Gone | None, Version]:
        """What is in the place of a head."""
        name = head_name(key)
        try:
            found = await self.place.read(name)
        except Missing:
            return None, None
        return decode_head(found.data, name), found.version

    async def swap(self, key: str, content: Root | Gone, version: Version | None) -> tuple[Root | Gone, Version]:
        """Put a head object in the place of one, or of nothing; it as it is then, and its version. Else `Moved`."""
        stamped, data = encode_head(content)
        return stamped, await self.place.swap(head_name(key), data, version)

    # Changes.

    async def change(self, session: str, plan: Callable[[View], Awaitable[Draft | None]]) -> Root:
        """Make of a session what `plan` makes of it, which may refuse, or want nothing changed.

        It is first asked about the session as it is remembered. If it then wants a change, the swap tells whether the
        session is still so; what it says otherwise counts only for the session as it is now.
        """
        async with self.turn(session):
            view = self._views.get(session)
            fresh = view is None
            missing = b""
            for attempt in range(ATTEMPTS):
                if view is None:
                    view, fresh = await self.fetch(session), True
                try:
                    draft = await plan(view)
                    if draft is None and fresh:
                        return view.root
                    done = await self._commit(view, draft) if draft is not None else None
                    if done is not None:
                        return done
                except Missing as error:  # a segment was merged since; if not, it is lost
                    if fresh and missing == view.root.stamp:
                        raise self._lost(session, error) from None
                    missing = view.root.stamp
                except StoreUnavailable:
                    raise
                except StateroomError:
                    if fresh:
                        raise
                view = None
                if attempt > 1:
                    await asyncio.sleep(uniform(0, 0.002 * min(attempt, 20)))
        raise StoreUnavailable(f"{self.place.url}: too many others change session {session!r}; try again")

    async def _commit(self, view: View, draft: Draft) -> Root | None:
        """Write a draft; None if the session has changed since, and nothing is written."""
        head, life = draft.root.head, draft.root.life
        key = key_of(head.id)
        folder = data_folder(key, life)
        await self.write((f"{folder}/{name}", data) for name, data in draft.parts)
        try:
            root, version = await self.swap(key, draft.root, view.version)
        except Moved:
            await self.discard(f"{folder}/{name}" for name, _ in draft.parts)
            return None
        except BaseException:  # whether it is written is not known
            self._views.pop(head.id, None)
            raise
        assert isinstance(root, Root)
        self.remember(root, version, {**view.indexes, **draft.indexes})
        await self.discard(f"{folder}/{name}" for name in draft.dead)
        return root

    async def write(self, objects: Iterable[Part]) -> None:
        """Write objects under names of their own, all or none."""
        objects = list(objects)
        done = await asyncio.gather(*(self.place.write(*each) for each in objects), return_exceptions=True)
        failed = [error for error in done if isinstance(error, BaseException)]
        if failed:
            await self.discard(name for name, _ in objects)
            raise failed[0]

    async def discard(self, names: Iterable[str]) -> None:
        """Remove what nothing mentions any more; what stays is found by a vacuum."""
        names = list(names)
        if names:
            with suppress(StoreUnavailable):
                await self.place.remove(names)

    async def add_run(self, view: View, run: Run) -> Draft:
        """The session with a run more: in its head while that is small, else in a segment, with smaller ones."""
        root = view.root
        tail = join([root.tail, run])
        if tail.weight <= TAIL:
            return Draft(root.changed(tail=tail))
        merged = count_merged(root.segments, len(tail.records))
        stay, merge = root.segments[: len(root.segments) - merged], root.segments[len(root.segments) - merged :]
        whole = join([*await asyncio.gather(*(self.read_run(view, segment) for segment in merge)), tail])
        segment, data = make_segment(new_name(), whole)
        return Draft(
            root.changed(segments=(*stay, segment), tail=Run()),
            parts=[(segment.name, data)],
            dead=[each.name for each in merge],
            indexes={segment.name: whole.index},
        )

    # Segments.

    async def read(self, session: str, reader: Callable[[View], Awaitable[T]]) -> T:
        """What `reader` finds in a session as it is now; once more if it changes so that a segment is gone."""
        missing = b""
        while True:
            view = await self.fetch(session)
            try:
                return await reader(view)
            except Missing as error:
                if missing == view.root.stamp:
                    raise self._lost(session, error) from None
                missing = view.root.stamp
            except (BadData, *DAMAGE) as error:
                raise damaged(session, error) from error

    def _lost(self, session: str, error: Missing) -> BadData:
        return BadData(f"{self.place.url}: session {session!r} is damaged, an object is missing: {error}")

    async def read_part(self, view: View, name: str, start: int, end: int) -> bytes:
        """Some bytes of a segment or blob."""
        if end <= start:
            return b""
        root = view.root
        return await self.place.read_part(f"{data_folder(key_of(root.head.id), root.life)}/{name}", start, end)

    async def read_run(self, view: View, segment: Segment) -> Run:
        """A segment, whole."""
        data = await self.read_part(view, segment.name, 0, segment.size + segment.index_size)
        index = view.indexes[segment.name] = decode_index(data[segment.size :])
        return Run(data[: segment.size], index)

    async def read_index(self, view: View, segment: Segment) -> Index:
        """What is in a segment."""
        index = view.indexes.get(segment.name)
        if index is None:
            data = await self.read_part(view, segment.name, segment.size, segment.size + segment.index_size)
            index = view.indexes[segment.name] = decode_index(data)
        return index

    async def read_indexes(self, view: View) -> list[Index]:
        """What is in all segments and the tail, from the oldest."""
        root = view.root
        indexes = await asyncio.gather(*(self.read_index(view, segment) for segment in root.segments))
        return [*indexes, root.tail.index]
