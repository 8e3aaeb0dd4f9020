"""`Replayed`: a model that repeats the answers in a rollouts file.

It finds an episode by the task's `input`. If the file has several episodes with the same input, it takes the one with
the request's seed, otherwise the seed chooses one. Step `k` gets the `k`-th answer, as long as the conversation equals
the recorded one: an old answer does not fit a changed tool result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from stateroom.errors import BadTask, ModelFailed
from stateroom.jsonl import parse_object, read_lines
from stateroom.model.items import Item, answers_in, input_items, is_content, is_models, text_of
from stateroom.model.model import Answer, Model, Request
from stateroom.session import parsed, result_of

Row = Mapping[str, Any]
Key = tuple[bytes, ...]
"""A digest of each item."""


class RecordedEpisode(NamedTuple):
    """A recorded episode."""

    key: tuple[int, int]
    """The indices of its task and rollout."""
    id: Any
    """The id of its response, which contains the seed if Stateroom ran the episode."""
    output: list[Item]
    answers: list[range]
    """The positions of each answer in the output."""


class Replayed(Model):
    """Repeats recorded answers; one instance serves any number of episodes."""

    def __init__(self, rows: Iterable[Row], name: str = "replay") -> None:
        self.name = name
        self._episodes: dict[Key, list[RecordedEpisode]] = {}
        for number, row in enumerate(rows, 1):
            opening, recorded = _recorded(row, number)
            self._episodes.setdefault(opening, []).append(recorded)
        for repeats in self._episodes.values():
            repeats.sort(key=lambda episode: episode.key)
        self._lengths = sorted({len(opening) for opening in self._episodes}, reverse=True)

    @classmethod
    def of_file(cls, path: Path, name: str | None = None) -> Replayed:
        """Read the episodes of a rollouts file. Raises `NotFound` or `BadTask`."""
        return cls(_rows(path), name or f"replay:{path}")

    async def answer(self, request: Request) -> Answer:
        items = _significant(request.items)
        shown = tuple(map(_digest, items))
        begun, episode = self._find(shown, request)
        if request.step >= len(episode.answers):
            raise ModelFailed(
                f"{self.name}: the recorded episode has no answer {request.step + 1}; "
                f"its last is answer {len(episode.answers)}"
            )
        where = episode.answers[request.step]
        self._compare(items[begun:], shown[begun:], _significant(episode.output[: where.start]))
        return Answer(episode.output[where.start : where.stop])

    def _find(self, shown: Key, request: Request) -> tuple[int, RecordedEpisode]:
        """The length of the task's input, and the episode to replay."""
        for length in self._lengths:
            repeats = self._episodes.get(shown[:length]) if length <= len(shown) else None
            if repeats:
                return length, _chosen(repeats, request.seed)
        opening = next((text_of(item) for item in request.items if item.get("role") == "user"), "")
        raise ModelFailed(f"{self.name} has no episode for this task: {opening!r:.200}")

    def _compare(self, items: Sequence[Item], shown: Key, before: list[Item]) -> None:
        """Raise `ModelFailed` unless the conversation so far equals the recorded one."""
        for place, (item, digest, old) in enumerate(zip(items, shown, before, strict=False)):
            if digest != _digest(old):
                raise ModelFailed(
                    f"{self.name}: item {place} after the task differs from the recorded episode: "
                    f"it is {_text(item):.300}, but was {_text(old):.300}"
                )
        if len(items) != len(before):
            raise ModelFailed(
                f"{self.name}: the conversation has {len(items)} items after the task, but the recorded episode has "
                f"{len(before)} at this point, without reasoning"
            )


def _chosen(repeats: list[RecordedEpisode], seed: int) -> RecordedEpisode:
    name = f"resp_{seed:016x}"
    own = (episode for episode in repeats if episode.id == name)
    chance = int.from_bytes(blake2b(str(seed).encode(), digest_size=8).digest())
    return next(own, repeats[chance % len(repeats)])


def _recorded(row: Row, number: int) -> tuple[Key, RecordedEpisode]:
    asked, response = row.get("responses_create_params"), row.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    given = asked.get("input") if isinstance(asked, dict) else None
    if not isinstance(given, str | list) or not isinstance(output, list) or not isinstance(response, dict):
        raise BadTask(f"episode {number} cannot be replayed without responses_create_params.input and response.output")
    if not all(isinstance(item, dict) and is_content(item.get("content")) for item in [*input_items(given), *output]):
        raise BadTask(f"episode {number} has an input or output item that is not an item of a conversation")
    opening = tuple(map(_digest, _significant(input_items(given))))
    key = _index(row, "_ng_task_index", 0), _index(row, "_ng_rollout_index", number)
    answers = answers_in(output)
    if response.get("status") == "completed" and not (output and is_models(output[-1])):
        answers.append(range(len(output), len(output)))  # the model ended with an empty answer
    return opening, RecordedEpisode(key, response.get("id"), output, answers)


def _index(row: Row, name: str, default: int) -> int:
    index = row.get(name)
    return index if isinstance(index, int) else default


def _significant(items: Iterable[Item]) -> list[Item]:
    """The items that identify a conversation, without reasoning and empty messages, which some APIs drop."""
    return [item for item in items if item.get("type") != "reasoning" and not _is_empty(item)]


def _is_empty(item: Item) -> bool:
    is_answer = item.get("type", "message") == "message" and item.get("role") == "assistant"
    return is_answer and not text_of(item) and not _others(item.get("content"))


def _digest(item: Item) -> bytes:
    """A digest of an item's content without ids; arguments and outputs are compared by value."""
    kind = item.get("type", "message")
    match kind:
        case "message":
            content: Any = [item.get("role"), text_of(item), _others(item.get("content"))]
        case "function_call":
            content = [item.get("call_id"), item.get("name"), parsed(item.get("arguments"))]
        case "function_call_output":
            content = [item.get("call_id"), result_of(item)]
        case _:
            content = {name: value for name, value in item.items() if name not in ("id", "status")}
    return blake2b(json.dumps([kind, content], sort_keys=True).encode(), digest_size=16).digest()


def _others(content: Any) -> list[Any]:
    """The parts of a message that are not text."""
    return [part for part in content if "text" not in part] if isinstance(content, list) else []


def _text(item: Item) -> str:
    return json.dumps(item, ensure_ascii=False)


def _rows(path: Path) -> Iterator[Row]:
    for number, line in read_lines(path):
        try:
            yield parse_object(line)
        except ValueError as error:
            raise BadTask(f"{path}, line {number}: {error}") from None
