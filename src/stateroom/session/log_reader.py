"""A session's log for people: its steps, and the changes of each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Container, Iterator
from contextlib import aclosing, suppress
from typing import Any, Self, TypedDict, cast

import msgspec
from pydantic_core import to_jsonable_python

from stateroom.errors import UnknownRevision
from stateroom.session.history import History
from stateroom.session.lifecycle import Item, text_of
from stateroom.session.log import PATCHED, LogEntry
from stateroom.session.recorded_call import parsed
from stateroom.state import MAX_VALUE_CHARACTERS, ChangeData, brief, describe, differences, to_json
from stateroom.store import Head, SessionBasics, Status, Store

MAX_LINE = 80
"""Characters of each message that an entry's line shows."""


def entry_title(entry: LogEntry) -> str:
    """The title of an entry: the tool of a call, else its kind."""
    is_of_tool = entry.kind in ("call", "started", "failed", "asked")
    return entry.name if is_of_tool and entry.name else entry.kind


def entry_line(entry: LogEntry) -> str:
    """The content of an entry, without its kind."""
    facts = entry.facts
    if "session" in facts:  # in the log of a shared state: the session that changed it
        return f"of session {facts['session']}, revision {facts['revision']}"
    match entry.kind:
        case "call":
            return f"{_call(entry)} → {brief(entry.output)}"
        case "started":
            return f"{_call(entry)} started"
        case "failed":
            return f"{_call(entry)} failed: {facts['error']}"
        case "asked":
            return f"{_call(entry)} asked: {facts['question']}"
        case "seed":
            return _task_line(entry.input)
        case "rewind":
            to, undone = facts["to"], facts.get("undone", facts["to"])
            return f"back to revision {to}" + ("" if to == undone else f"; {undone} can be redone")
        case "edit":
            return str(facts["reason"])
        case "record":
            return f"{entry.name} {brief(entry.data)}"
        case "message":
            lines = [f"{speaker}: {cut(line)}" for item in facts["items"] for speaker, line in item_lines(item)]
            return "; ".join(lines) or facts.get("reason") or ""
        case "compaction":
            items = len(facts["items"])
            return f"the model's view starts from {items:,} {'item' if items == 1 else 'items'}"
        case "verdict":
            reward, reason = facts["verdict"]["reward"], facts["verdict"]["reason"]
            return f"reward {reward:.4g}" + (f": {reason}" if reason else "")
    return entry.name or ""


def item_lines(item: Item, width: int = MAX_VALUE_CHARACTERS) -> list[tuple[str, str]]:
    """An item of a conversation as lines, each with its speaker; values are cut to a width."""
    match item.get("type") or "message":
        case "function_call":
            return [("calls", f"{item.get('name')}({written_arguments(item.get('arguments'), width)})")]
        case "function_call_output":
            output = item.get("output")
            return [("result", output if isinstance(output, str) else brief(output, width))]
        case "message":
            speaker = str(item.get("name") or item.get("role"))
            return [(speaker, line) for line in text_of(item).splitlines() or [""]]
        case kind:
            return [(kind, brief({key: value for key, value in item.items() if key != "type"}, width))]


def cut(line: str) -> str:
    """A line of a message, of at most `MAX_LINE` characters and an ellipsis."""
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"


def written_arguments(arguments: Any, width: int = MAX_VALUE_CHARACTERS) -> str:
    """The arguments of a call as in code, with values that are cut to a width.

    They may be JSON, as a model writes them; a text that cannot be parsed is shown as it is.
    """
    given = parsed(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(given, dict):
        return str(arguments or "")
    return ", ".join(f"{name}={brief(value, width)}" for name, value in given.items())


def _call(entry: LogEntry) -> str:
    return f"{entry.name}({written_arguments(entry.input)})"


def _task_line(row: Any) -> str:
    """A task row, without the fields that only a runner reads; of a shared state, its owner."""
    if not isinstance(row, dict):
        return str(row or "")
    left_out = ("responses_create_params", "agent_ref")
    return brief({name: value for name, value in row.items() if name not in left_out and name[:1] != "_"})


MAX_PAGE_BYTES = 4 << 20
"""Bytes of JSON from which a page takes no more entries; the next page continues."""

MAX_ENTRIES_SCANNED = 1000
"""Entries that a filtered page of a log reads at most; the next page continues."""


UNSEARCHED = frozenset({"revision", "kind", "at", "call_id", "title", "line", "changes"})
"""Fields of an entry that a search skips; the changes are searched separately."""


class LogReader:
    """A session's log, read onwards from a revision, with what each entry changed."""

    def __init__(self, store: Store, session: str, after: int = 0) -> None:
        self.session = session
        self.revision = after
        """The revision of the entry that was read last."""
        self._history = History(store)
        self._state: Any = None
        """The state at that revision, as far as it is known."""

    async def read(self, until: int | None = None) -> AsyncGenerator[tuple[LogEntry, list[ChangeData]]]:
        """The entries up to a revision, by default all, each with its changes."""
        if until is not None and until <= self.revision:
            return
        async for entry in self._history.entries(self.session, after=self.revision, until=until):
            changes = await self._changes(entry)
            self.revision = entry.revision
            yield entry, changes
        if until is not None and self.revision < until:  # what comes last was pruned
            self.revision, self._state = until, None

    async def _changes(self, entry: LogEntry) -> list[ChangeData]:
        if entry.revision > self.revision + 1:  # what lies between was pruned
            self._state = None
        jumps = entry.kind == "rewind" or "schema" in entry.facts
        if entry.kind == "seed" or not (jumps or entry.kind in PATCHED):
            return []
        if self._state is None:
            self._state = await self._state_at(entry.revision - 1)
        if jumps:
            old, self._state = self._state, await self._state_at(entry.revision)
            return [] if old is None or self._state is None else await asyncio.to_thread(differences, old, self._state)
        return [] if self._state is None else describe(self._state, entry.patch)

    async def _state_at(self, revision: int) -> Any:
        """The state at a revision; None if that was pruned, as it may be of the first entry, which stays."""
        with suppress(UnknownRevision):
            return (await self._history.document(self.session, revision)).state
        return None


class EntryData(TypedDict):
    """An entry of a log, as JSON data; it has other fields too, which depend on its kind."""

    revision: int
    kind: str
    at: float
    call_id: str | None
    title: str
    line: str
    """The entry on one line, for people."""
    changes: list[ChangeData]


class LogPage(msgspec.Struct, frozen=True):
    """A part of a log, as JSON data."""

    entries: list[EntryData]
    """In order, whichever way the log is read."""
    next: int | None
    """The `after` of the next page, or its `before` if the log is read backwards; None if there is none.

    With a filter, a page may hold fewer entries than its limit, or none, and not be the last.
    """
    pruned: list[tuple[int, int]]
    """The first and the last revision of each part that was pruned here."""


async def read_page(
    store: Store,
    session: str,
    *,
    after: int = 0,
    before: int | None = None,
    limit: int = 100,
    max_bytes: int | None = None,
    kinds: Container[str] | None = None,
    text: str | None = None,
) -> LogPage:
    """Read the log of a session onwards from `after`, or backwards from `before`, as far as `after`.

    A page ends with the entry that makes it larger than `max_bytes`, by default `MAX_PAGE_BYTES`, of JSON.
    `kinds` and `text` are filters. The text is looked for in the facts of an entry and in what it changed; upper and
    lower case are the same.
    """
    most = MAX_PAGE_BYTES if max_bytes is None else max_bytes
    newest = (await store.head(session)).revision
    width = limit if kinds is None and text is None else max(limit, MAX_ENTRIES_SCANNED)
    if before is None:
        first, last = after, min(newest, after + width)
    else:
        last = min(newest, before - 1)
        first = max(after, last - width)
    page: deque[tuple[int, EntryData, int]] = deque()
    """Revisions, entries and their bytes."""
    total = 0
    cut = False
    pruned: list[tuple[int, int]] = []
    seen = first
    async with aclosing(LogReader(store, session, first).read(last)) as entries:
        async for entry, changes in entries:
            if entry.revision > seen + 1:
                pruned.append((seen + 1, entry.revision - 1))
            seen = entry.revision
            data = entry_data(entry, changes)
            if (kinds is None or entry.kind in kinds) and (text is None or _mentions(data, text.casefold())):
                page.append((seen, data, len(to_json(data))))
                total += page[-1][2]
            if before is None and (len(page) == limit or total >= most):
                last = seen
                break
            while len(page) > 1 and (len(page) > limit or total > most):  # backwards the newest stay
                total -= page.popleft()[2]
                cut = True
            await asyncio.sleep(0)  # a long page does not keep others waiting
    if seen < last:
        pruned.append((seen + 1, last))
    if before is None:
        onwards = last if last < newest else None
    else:
        first = page[0][0] - 1 if cut else first
        onwards = first + 1 if first > after else None
    return LogPage([data for _, data, _ in page], onwards, [each for each in pruned if each[1] > first])


def _mentions(data: EntryData, text: str) -> bool:
    """Whether a text in lower case is in an entry's facts, or in what it changed."""
    values = [value for name, value in data.items() if name not in UNSEARCHED]
    values += [(change["place"], change["before"], change["after"]) for change in data["changes"]]
    return any(text in part.casefold() for part in _texts(values))


def _texts(value: Any) -> Iterator[str]:
    """All texts, keys and numbers in JSON data."""
    if isinstance(value, dict):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif value is not None:
        yield str(value)


def entry_data(entry: LogEntry, changes: list[ChangeData]) -> EntryData:
    """An entry as JSON data."""
    call_id = (entry.call_id or "").partition("\n")[0] or None  # what follows is a suffix of the session's own
    fields = {"revision": entry.revision, "kind": entry.kind, "at": entry.at, "call_id": call_id}
    facts = dict(entry.facts)
    if (schema := facts.pop("schema", None)) and entry.kind != "seed":
        facts["migrated_to"] = schema[0]
    if events := facts.get("events"):  # whose fields may be of types that JSON lacks
        facts["events"] = to_jsonable_python(events, bytes_mode="base64")
    data = {**fields, "title": entry_title(entry), "line": entry_line(entry), **facts, "changes": changes}
    return cast(EntryData, data)


class ForkPoint(msgspec.Struct, frozen=True):
    """A session and one of its revisions."""

    session: str
    revision: int


class SessionSummary(SessionBasics, frozen=True, kw_only=True):
    """A session as it is listed, without a look at its log."""

    status: Status
    phase: str | None
    """The phase of its agent; None until an agent does something in it."""
    reward: float | None
    """The reward of its verdict."""
    parent: ForkPoint | None
    """For a fork: the session and the revision that it was forked from."""

    @classmethod
    def of(cls, head: Head, now: float, **more: Any) -> Self:
        """The session with this head; `more` are the fields of a class that has more of them."""
        return cls(
            **{name: getattr(head, name) for name in SessionBasics.__struct_fields__},
            status=head.status(now),
            phase=head.phase,
            reward=head.reward,
            parent=None if head.parent is None else ForkPoint(head.parent, head.parent_revision),
            **more,
        )
