"""The path of an episode: the calls and states that lead from the seed to what is judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, overload

from stateroom.session.history import Document, History
from stateroom.session.journal import LogEntry
from stateroom.session.reading import Reader, typed
from stateroom.state import Desk, Patch, State, apply, draft_of, patched

STRIDE = 64
"""One in so many states is kept once it was made; those between are made again from there."""

ONLY_READ = "a state of the past may only be read"


class Path(NamedTuple):
    """What a verifier sees when it looks back."""

    calls: Sequence[LogEntry] = ()
    states: Sequence[Any] = ()


async def no_path() -> Path:
    """The path of an episode without a state: nothing keeps its calls."""
    return Path()


async def load_path(reader: Reader, session: str, revision: int) -> Path:
    """The path to a revision of a session; raises `UnknownRevision` if its beginning was pruned."""
    line = await History(reader.store).line(session, revision)
    calls = [entry for entry in line if entry.kind == "call"]
    starts: list[tuple[int, int]] = []
    """Revisions whose states do not follow from what was stored before, and how many calls led there."""
    number = 0
    for entry in line:
        number += entry.kind == "call"
        if entry.kind == "seed" or "schema" in entry.facts:
            starts.append((entry.revision, number))
    stretches: list[tuple[int, Stretch]] = []
    for (start, first), (_, end) in pairwise([*starts, (revision, len(calls) + 1)]):
        patches = [call.patch for call in calls[first : max(first, end - 1)]]
        stretches.append((first, await _stretch(reader, session, start, patches)))
    return Path(tuple(calls), States(stretches, len(calls) + 1))


async def _stretch(reader: Reader, session: str, revision: int, patches: Sequence[Patch]) -> Stretch:
    standing, _ = await reader.read(session, revision)
    if standing.outdated:
        return _Outdated(await History(reader.store).document(session, revision), reader.state_type, patches)
    return _Current(standing.state, patches)


class Stretch(Protocol):
    """States that follow one from another by patches."""

    def state(self, step: int) -> State:
        """The state after so many of the patches."""


class _Current:
    """States in the schema of now: they share what they have in common."""

    def __init__(self, state: State, patches: Sequence[Patch]) -> None:
        self._patches = patches
        self._kept = {0: state}
        self._last = (0, state)

    def state(self, step: int) -> State:
        at, state = self._nearest(step)
        while at < step:
            state = patched(state, self._patches[at])
            at += 1
            if at % STRIDE == 0:
                self._kept[at] = state
        self._last = (at, state)
        return state

    def _nearest(self, step: int) -> tuple[int, State]:
        """The nearest state before that is at hand."""
        at, state = self._last
        if step - STRIDE < at <= step:
            return at, state
        at = max(kept for kept in self._kept if kept <= step)
        return at, self._kept[at]


class _Outdated:
    """States that were stored in an older schema: each is brought up to date by itself."""

    def __init__(self, document: Document, state_type: type[State], patches: Sequence[Patch]) -> None:
        self._document = document
        self._state_type = state_type
        self._patches = patches
        self._at, self._data = 0, deepcopy(document.state)

    def state(self, step: int) -> State:
        if step < self._at:
            self._at, self._data = 0, deepcopy(self._document.state)
        for patch in self._patches[self._at : step]:
            apply(self._data, patch)
        self._at = step
        return typed(self._document._replace(state=deepcopy(self._data)), self._state_type)


class States(Sequence[Any]):
    """The states along a path, each made when it is asked for, and to be read."""

    def __init__(self, stretches: Sequence[tuple[int, Stretch]], length: int) -> None:
        self._stretches = stretches
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._length))]
        number = range(self._length)[index]
        first, stretch = next(each for each in reversed(self._stretches) if each[0] <= number)
        return draft_of(stretch.state(number - first), Desk(ONLY_READ))

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(self._length))
