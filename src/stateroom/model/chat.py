"""Convert conversations between Responses items and Chat Completions messages.

An assistant turn is one message in chat, but several items in Responses: reasoning, a message, tool calls. So not every
list of items has an exact equivalent in chat. The **normal form** of a conversation is the result of
`items_of(messages_of(items))`; converting it again changes nothing:

- In a turn the reasoning comes first, as one `reasoning_text`, then one message, then the calls in their order.
  Consecutive reasoning items or messages stay separate turns, unless earlier calls wait for their results: chat needs
  all calls of a turn in one message, and the results right after it.
- Content with a single text is a string, except for the assistant, whose content is a list of `output_text` and
  `refusal`.
- Chat cannot represent an empty text next to other parts of a turn, ids and statuses of items, annotations, the summary
  of reasoning with text, and encrypted reasoning, so these are lost.
- The last item of a turn has its tokens (see `segments`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from secrets import token_hex
from typing import Any

from stateroom.errors import ModelFailed
from stateroom.model.items import Item, function_call_output, with_names
from stateroom.model.segments import TOKEN_FIELDS, without_tokens
from stateroom.session import parsed

Message = dict[str, Any]
"""A Chat Completions message."""

REASONING, OLD_REASONING = "reasoning", "reasoning_content"
"""The field names of servers for reasoning; most servers read only their own."""

CHAT_FIELD = "chat_field"
"""The field of a reasoning item with its original field name, if that was the newer one."""


def messages_of(items: Iterable[Item]) -> list[Message]:
    """Convert items to messages. Raises `ModelFailed` for an item that chat cannot express."""
    messages: list[Message] = []
    turn = _AssistantTurn()
    for place, item in enumerate(with_names(items)):
        kind, role = item.get("type", "message"), item.get("role")
        if kind in ("reasoning", "function_call") or (kind == "message" and role == "assistant"):
            if turn.is_over_before(kind, item):
                messages.append(turn.message())
                turn = _AssistantTurn()
            turn.add(kind, item)
            continue
        if turn:
            messages.append(turn.message())
            turn = _AssistantTurn()
        if kind == "message" and isinstance(role, str):
            messages.append({"role": role, "content": _chat_content(item.get("content"))})
        elif kind == "function_call_output":
            content = _chat_content(item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        else:
            raise ModelFailed(f"item {place} of the conversation, a {kind!r}, cannot be expressed in Chat Completions")
    return [*messages, turn.message()] if turn else messages


def items_of(messages: Iterable[Message]) -> list[Item]:
    """Convert messages to items. Raises `ModelFailed` for an invalid message."""
    items: list[Item] = []
    for place, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        match role:
            case "system" | "developer" | "user":
                items.append({"type": "message", "role": role, "content": _content(message.get("content"))})
            case "tool" if isinstance(message.get("tool_call_id"), str):
                items.append(function_call_output(message["tool_call_id"], _content(message.get("content"))))
            case "assistant":
                items += _turn_items(message)
            case _:
                raise ModelFailed(
                    f"messages[{place}] must be a system, developer, user, assistant or tool message "
                    f"(with a tool_call_id), not {message!r:.200}"
                )
    return items


def completion_items(message: Any) -> list[Item]:
    """Convert the message of a completion to items. A call without an id gets one."""
    if not isinstance(message, dict) or message.get("role", "assistant") != "assistant":
        raise ModelFailed(f"a completion must have an assistant message, not {message!r:.200}")
    items = _turn_items(message)
    for item in items:
        if item["type"] == "function_call" and not item["call_id"]:
            item["call_id"] = f"call_{token_hex(12)}"
    return items


def completion_message(items: Iterable[Item]) -> Message:
    """Convert the items of an answer to the message of a completion."""
    turn = _AssistantTurn()
    for item in items:
        kind = item.get("type", "message")
        if kind not in ("message", "reasoning", "function_call"):
            raise ModelFailed(f"an answer with a {kind!r} cannot be expressed in Chat Completions")
        turn.add(kind, item)
    message = turn.message()
    if isinstance(message["content"], list):
        message["content"] = "".join(part.get("text") or "" for part in message["content"])
    return message


def template_messages(items: Iterable[Item], instructions: str | None = None) -> list[Message]:
    """Convert items to messages for chat templates, with arguments as objects and a text in every message."""
    messages = messages_of(without_tokens(items))
    for message in messages:
        message["content"] = _joined(message["content"] or "")
        if REASONING in message:
            message[OLD_REASONING] = message.pop(REASONING)  # the name that templates use
        for call in message.get("tool_calls", ()):
            call["function"] = {**call["function"], "arguments": parsed(call["function"]["arguments"])}
    return [*([{"role": "system", "content": instructions}] if instructions else []), *messages]


def chat_tools(tools: Iterable[Item]) -> list[Item]:
    """Convert tools of Responses to tools of chat."""
    return [{"type": "function", "function": _without(_function(tool), "type")} for tool in tools]


def responses_tools(tools: Iterable[Item]) -> list[Item]:
    """Convert tools of chat to tools of Responses."""
    return [{"type": "function", **_function(tool)["function"]} for tool in tools]


class _AssistantTurn:
    """The reasoning, messages and calls of the assistant, up to the next item of another role."""

    def __init__(self) -> None:
        self.thoughts: list[str] = []
        self.thoughts_name = OLD_REASONING
        self.said: list[Item] = []
        self.refusals: list[str] = []
        self.calls: list[Item] = []
        self.training: Item = {}
        self.spoke = False

    def __bool__(self) -> bool:
        return bool(self.thoughts or self.spoke or self.calls)

    def is_over_before(self, kind: str, item: Item) -> bool:
        """Whether an item begins another turn; never while calls wait for their results."""
        if self.calls or kind == "function_call":
            return False
        has_spoken = bool(self.said or self.refusals)
        if kind == "reasoning":
            return bool((has_spoken or self.thoughts) and _thought(item))
        return has_spoken and any(_words(part) for part in _parts(item.get("content")))

    def add(self, kind: str, item: Item) -> None:
        if kind == "reasoning":
            self.thoughts += filter(None, [_thought(item)])
            self.thoughts_name = REASONING if item.get(CHAT_FIELD) == REASONING else OLD_REASONING
        elif kind == "function_call":
            self.calls.append(_tool_call(item))
        else:
            self.spoke = True
            self._say(item.get("content"))
        self.training |= _training(item)

    def _say(self, content: Any) -> None:
        for part in _parts(content):
            if part.get("type") == "refusal":
                self.refusals += filter(None, [part.get("refusal")])
            elif _words(part):
                self.said.append(_chat_part(part))

    def message(self) -> Message:
        empty = None if self.calls or self.refusals else ""
        message: Message = {"role": "assistant", "content": _simplest(self.said) if self.said else empty}
        if self.refusals:
            message["refusal"] = "".join(self.refusals)
        if self.thoughts:
            message[self.thoughts_name] = "\n\n".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message | self.training


def _turn_items(message: Message) -> list[Item]:
    items: list[Item] = []
    for name, mark in ((REASONING, {CHAT_FIELD: REASONING}), (OLD_REASONING, {})):
        thought = message.get(name)
        if thought and isinstance(thought, str):
            content = [{"type": "reasoning_text", "text": thought}]
            items.append({"type": "reasoning", "summary": [], "content": content, **mark})
            break
    calls = [_function_call(call) for call in _tool_calls(message)]
    said = _said(message, alone=not items and not calls)
    if said:
        items.append({"type": "message", "role": "assistant", "status": "completed", "content": said})
    items += calls
    if items:
        items[-1] |= _training(message)
    return items


def _said(message: Message, *, alone: bool) -> list[Item]:
    """The content of an assistant message; an empty text only if the turn has nothing else."""
    parts = [_output_part(part) for part in _parts(message.get("content")) if _words(part)]
    if message.get("refusal"):
        parts.append({"type": "refusal", "refusal": message["refusal"]})
    return parts or ([{"type": "output_text", "text": "", "annotations": []}] if alone else [])


def _parts(content: Any) -> list[Item]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ModelFailed(f"the content of a message must be a text or a list of parts, not {content!r:.200}")
    return content


def _words(part: Item) -> Any:
    """The text of a part, or the part itself; empty for an empty text."""
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return part.get("text")
        case "refusal":
            return part.get("refusal")
    return part


def _simplest(parts: list[Item]) -> str | list[Item]:
    """Parts of chat; a single text becomes a string."""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"} and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def _chat_content(content: Any) -> str | list[Item]:
    return _simplest([_chat_part(part) for part in _parts(content)])


def _joined(content: str | list[Item]) -> str | list[Item]:
    """Content as a single text if possible, because few templates accept parts."""
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        return "".join(part["text"] for part in content)
    return content


def _content(content: Any) -> Any:
    """The content of a message of another role than the assistant."""
    parts = _simplest(_parts(content))
    return parts if isinstance(parts, str) else [_input_part(part) for part in parts]


def _chat_part(part: Item) -> Item:
    """A part of a message; an unknown one passes unchanged."""
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": part.get("text") or ""}
        case "input_image":
            rest = {("url" if name == "image_url" else name): part[name] for name in _without(part, "type")}
            return {"type": "image_url", "image_url": rest}
        case "input_file":
            return {"type": "file", "file": _without(part, "type")}
    return part


def _input_part(part: Item) -> Item:
    match part.get("type"):
        case "text":
            return {"type": "input_text", "text": part.get("text") or ""}
        case "image_url":
            image = part.get("image_url")
            image = {"url": image} if isinstance(image, str) else _fields_of(part, "image_url")
            return {"type": "input_image"} | {("image_url" if key == "url" else key): image[key] for key in image}
        case "file":
            return {"type": "input_file"} | _fields_of(part, "file")
    return part


def _fields_of(part: Item, name: str) -> Item:
    fields = part.get(name) or {}
    if not isinstance(fields, dict):
        raise ModelFailed(f"the {name} of a message part must be an object, not {fields!r:.200}")
    return fields


def _output_part(part: Item) -> Item:
    if part.get("type") != "text":
        return part
    return {"type": "output_text", "text": part.get("text") or "", "annotations": []}


def _thought(item: Item) -> str:
    """The text of a reasoning item, or its summary without a text."""
    parts: Sequence[Item] = item.get("content") or item.get("summary") or ()
    return "\n\n".join(part.get("text") or "" for part in parts)


def _tool_call(item: Item) -> Item:
    function = {"name": item.get("name"), "arguments": _arguments(item.get("arguments"))}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _tool_calls(message: Message) -> list[Any]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ModelFailed(f"the tool calls of a message must be a list, not {calls!r:.200}")
    return calls


def _function_call(call: Any) -> Item:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ModelFailed(f"a tool call must have a function with a name, not {call!r:.200}")
    return {
        "type": "function_call",
        "call_id": call.get("id") or "",
        "name": function["name"],
        "arguments": _arguments(function.get("arguments")),
        "status": "completed",
    }


def _arguments(given: Any) -> str:
    """Arguments as text; some servers send an object."""
    return given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)


def _function(tool: Any) -> Item:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise ModelFailed(f"tools must be functions in Chat Completions, not {tool!r:.200}")
    return tool


def _training(source: Mapping[str, Any]) -> Item:
    return {name: source[name] for name in TOKEN_FIELDS if source.get(name) is not None}


def _without(fields: Item, name: str) -> Item:
    return {key: value for key, value in fields.items() if key != name}
