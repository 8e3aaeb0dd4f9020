"""Chat templates: convert conversations to tokens of a transformers tokenizer, and tokens to messages."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from secrets import token_hex
from typing import Any

from stateroom.errors import InvalidModel
from stateroom.model.chat import Message
from stateroom.model.items import Item

CHATML = """\
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- if system or tools %}
{{- '<|im_start|>system\\n' + system }}
{%- if tools %}
{{- '\\n\\n' if system }}
{{- 'To call a tool, write <tool_call>{"name": NAME, "arguments": {…}}</tool_call>. Its result comes in ' }}
{{- '<tool_response>. These are the tools:' }}
{%- for tool in tools %}{{ '\\n' + (tool.function | tojson) }}{% endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in (messages[1:] if messages[0].role == 'system' else messages) %}
{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' }}
{{- '<tool_response>' + message.content + '</tool_response>' if message.role == 'tool' else message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' if add_generation_prompt }}"""
"""The template for models whose own template does not support tools: ChatML, with calls as JSON in a tag."""

CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
"""A tool call in a text, in the format of most ChatML models."""

ANSWER = token_hex(8)
"""A placeholder for an answer in a rendered conversation, to find the text after it."""

ASKED: list[Message] = [{"role": "user", "content": ""}]


class ChatTemplate:
    """The chat template of a tokenizer, or `CHATML` if it does not support tool calls."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._template = tokenizer.chat_template
        if not self._shows_calls():
            self._template = CHATML
        self._end: int = self._encoded(self._text_after(()))[0]
        """The token with which the template ends a message."""
        if self._end not in tokenizer.added_tokens_decoder:
            raise InvalidModel(
                "the tokenizer has no special token that ends a message in its chat template or in ChatML"
            )

    @property
    def ends(self) -> set[int]:
        """The tokens that end an answer."""
        return {self._end, self._tokenizer.eos_token_id} - {None}

    def prompt(self, messages: Sequence[Message], tools: Sequence[Item]) -> list[int]:
        """The tokens of a conversation and of the start of an answer."""
        return self._encoded(self._text(messages, tools))

    def reply(self, messages: Sequence[Message]) -> list[int]:
        """The tokens from the end of an answer (exclusive) to the start of the next."""
        return self._encoded(self._text_after(messages))[1:]

    def answer(self, message: Message) -> list[int]:
        """The tokens of an assistant message as a model would write it, including its end."""
        start = self._text(ASKED)
        tokens = self._encoded(self._text([*ASKED, message], starts_answer=False)[len(start) :])
        return tokens[: tokens.index(self._end) + 1]

    def parse(self, ids: Sequence[int]) -> Message:
        """Parse the tokens of an answer into a message. A call that is not a JSON object with a name stays text."""
        written = [token for token in ids if token not in self.ends]
        text = self._tokenizer.decode(written, clean_up_tokenization_spaces=False)
        calls = [*filter(None, map(_call, CALL.findall(text)))]
        content = CALL.sub("", text) if calls else text
        return {"role": "assistant", "content": content.strip(), "tool_calls": calls}

    def _shows_calls(self) -> bool:
        if not self._template:
            return False
        call = {"type": "function", "function": {"name": ANSWER, "arguments": {}}}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        return ANSWER in self._text([*ASKED, answer])

    def _text_after(self, messages: Sequence[Message]) -> str:
        """The text of a conversation after an answer."""
        whole = self._text([*ASKED, {"role": "assistant", "content": ANSWER}, *messages])
        return whole.rpartition(ANSWER)[2]

    def _text(self, messages: Sequence[Message], tools: Sequence[Item] = (), *, starts_answer: bool = True) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [*messages],
            tools=[*tools] or None,
            chat_template=self._template,
            add_generation_prompt=starts_answer,
            tokenize=False,
        )
        return text

    def _encoded(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return tokens


def _call(text: str) -> Item | None:
    """Parse a tool call; None if the text is not one."""
    try:
        call = json.loads(text)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = json.dumps(call.get("arguments") or {}, ensure_ascii=False)
    return {"type": "function", "function": {"name": call["name"], "arguments": arguments}}
