"""Checkpoints as they were: read from the revisions of the session at which they stood in its state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from stateroom.adapters.langgraph.thread import Channels, Current, Saved, Thread, Writes
from stateroom.errors import UnknownRevision
from stateroom.session.cached_session import CachedSession
from stateroom.session.history import History
from stateroom.state import patched

NEAR = 100
"""Revisions no further apart than this are read on from one to the next."""

Name = tuple[str, str]
"""A namespace and the id of a checkpoint."""


class Whole(NamedTuple):
    """A checkpoint and its writes."""

    checkpoint: Current
    parent: str | None
    channels: Channels
    writes: Writes


async def whole(cached: CachedSession, names: Iterable[Name]) -> dict[Name, Whole]:
    """Checkpoints of a thread, read together; those that are not there, or were pruned with the log, are left out."""
    now: Thread = cached.state
    before: dict[Name, Saved] = {}
    found: dict[Name, Whole] = {}
    for name in names:
        saved = now.find(*name)
        if saved is None:
            continue
        if now.is_current(*name):
            found[name] = _whole(now, name, saved, now)
        else:
            before[name] = saved
    states = await _states(cached, sorted({saved.at for saved in before.values()}))
    for name, saved in before.items():
        if (then := states.get(saved.at)) is not None:
            found[name] = _whole(then, name, saved, now)
    return found


def _whole(then: Thread, name: Name, saved: Saved, now: Thread) -> Whole:
    namespace, _ = name
    writes = {**then.writes_of(*name), **now.writes_of(*name)}
    return Whole(then.current[namespace], saved.parent, then.channels[namespace], writes)


async def writes_of(cached: CachedSession, namespace: str, checkpoint: str) -> Writes:
    """All writes that belong to a checkpoint, which need not be there yet."""
    name = (namespace, checkpoint)
    found = await whole(cached, [name])
    return found[name].writes if name in found else cached.state.writes_of(*name)


def ancestors(thread: Thread, namespace: str, checkpoint: str) -> Iterator[str]:
    """The parent of a checkpoint, the parent's parent, and so on."""
    seen = {checkpoint}
    saved = thread.find(namespace, checkpoint)
    while saved is not None and saved.parent is not None and saved.parent not in seen:
        seen.add(saved.parent)
        yield saved.parent
        saved = thread.find(namespace, saved.parent)


async def _states(cached: CachedSession, revisions: list[int]) -> dict[int, Thread]:
    found: dict[int, Thread] = {}
    for run in _runs(revisions):
        try:
            state: Thread = (await cached.at(run[0])).state
        except UnknownRevision:
            found |= await _states(cached, run[1:])
            continue
        found[run[0]] = state
        if len(run) == 1:
            continue
        async for entry in History(cached.store).entries(cached.head.id, after=run[0], until=run[-1]):
            state = patched(state, entry.patch)
            if entry.revision in run:
                found[entry.revision] = state
    return found


def _runs(revisions: list[int]) -> Iterator[list[int]]:
    """Revisions in order, those together that are near to each other."""
    run = revisions[:1]
    for last, revision in pairwise(revisions):
        if revision - last > NEAR:
            yield run
            run = []
        run.append(revision)
    if run:
        yield run
