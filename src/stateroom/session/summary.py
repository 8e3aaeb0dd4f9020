"""An entry of a log, and an item of a conversation, in a line for people."""

from __future__ import annotations

from typing import Any

from stateroom.session.lifecycle import Item, text_of
from stateroom.session.log import LogEntry
from stateroom.session.recorded_call import parsed
from stateroom.state import WIDTH, brief

MAX_LINE = 80
"""Characters of each message that an entry's line shows."""


def entry_title(entry: LogEntry) -> str:
    """What an entry is about: the tool of a call, else its kind."""
    is_of_tool = entry.kind in ("call", "started", "failed", "asked")
    return entry.name if is_of_tool and entry.name else entry.kind


def entry_line(entry: LogEntry) -> str:
    """What an entry says, without its kind."""
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


def item_lines(item: Item, width: int = WIDTH) -> list[tuple[str, str]]:
    """An item of a conversation as lines, each with its speaker; values in it are cut to a width."""
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


def written_arguments(arguments: Any, width: int = WIDTH) -> str:
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
