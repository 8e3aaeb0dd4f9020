"""Answers that were given before: a model that says again what a rollouts file has on record.

An episode is found by its task's `input`. If the file has several with the same one, the episode that was run with the
request's seed is taken, or else one that the seed decides on. Step `k` gets the `k`-th answer of it, as long as the
conversation is the recorded one up to there: a tool that now says something else would get an answer to what it has not
said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from stateroom.errors import BadTask, ModelFailed
from stateroom.jsonl import parse_object, read_lines
from stateroom.model.items import Item, input_items, is_content, text_of
from stateroom.model.model import Answer, Model, Request

Row = Mapping[str, Any]
Key = tuple[bytes, ...]
"""Items as far as they matter, one by one."""


class Recorded(NamedTuple):
    """An episode on record."""

    key: tuple[int, int]
    """The numbers of its task and of the rollout."""
    id: Any
    """Of its response, which names the seed if the episode was run here."""
    output: list[Item]
    answers: list[range]
    """Where in the output each of the model's answers is."""


class Replayed(Model):
    """Answers as recorded episodes were answered; one instance does for any number of episodes."""

    def __init__(self, rows: Iterable[Row], name: str = "replay") -> None:
        self.name = name
        self._episodes: dict[Key, list[Recorded]] = {}
        for number, row in enumerate(rows, 1):
            opening, recorded = _recorded(row, number)
            self._episodes.setdefault(opening, []).append(recorded)
        for repeats in self._episodes.values():
            repeats.sort(key=lambda episode: episode.key)
        self._lengths = sorted({len(opening) for opening in self._episodes}, reverse=True)

    @classmethod
    def of_file(cls, path: Path, name: str | None = None) -> Replayed:
        """The episodes of a rollouts file."""
        return cls(_rows(path), name or f"replay:{path}")

    async def answer(self, request: Request) -> Answer:
        items = _telling(request.items)
        shown = tuple(map(_essence, items))
        begun, episode = self._find(shown, request)
        if request.step >= len(episode.answers):
            raise ModelFailed(
                f"{self.name}: the episode on record has {len(episode.answers)} answers, "
                f"and is asked for number {request.step + 1}"
            )
        where = episode.answers[request.step]
        self._compare(items[begun:], shown[begun:], _telling(episode.output[: where.start]))
        return Answer(episode.output[where.start : where.stop])

    def _find(self, shown: Key, request: Request) -> tuple[int, Recorded]:
        """How many items the task's input has, and the episode of it that is played again."""
        for length in self._lengths:
            repeats = self._episodes.get(shown[:length]) if length <= len(shown) else None
            if repeats:
                return length, _chosen(repeats, request.seed)
        opening = next((text_of(item) for item in request.items if item.get("role") == "user"), "")
        raise ModelFailed(f"{self.name} has no episode of this task: {opening!r:.200}")

    def _compare(self, items: Sequence[Item], shown: Key, before: list[Item]) -> None:
        """Raise `ModelFailed` unless the conversation is the recorded one so far."""
        for place, (item, essence, old) in enumerate(zip(items, shown, before, strict=False)):
            if essence != _essence(old):
                raise ModelFailed(
                    f"{self.name}: item {place} after the task differs from the episode on record: "
                    f"it is {_text(item):.300}, and was {_text(old):.300}"
                )
        if len(items) != len(before):
            raise ModelFailed(
                f"{self.name}: the conversation has {len(items)} items after the task, "
                f"and the episode on record {len(before)} at this point, reasoning aside"
            )


def _chosen(repeats: list[Recorded], seed: int) -> Recorded:
    name = f"resp_{seed:016x}"
    own = (episode for episode in repeats if episode.id == name)
    chance = int.from_bytes(blake2b(str(seed).encode(), digest_size=8).digest())
    return next(own, repeats[chance % len(repeats)])


def _recorded(row: Row, number: int) -> tuple[Key, Recorded]:
    asked, response = row.get("responses_create_params"), row.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    given = asked.get("input") if isinstance(asked, dict) else None
    if not isinstance(given, str | list) or not isinstance(output, list) or not isinstance(response, dict):
        raise BadTask(f"episode {number} has no responses_create_params.input or no response.output to play again")
    if not all(isinstance(item, dict) and is_content(item.get("content")) for item in [*input_items(given), *output]):
        raise BadTask(f"episode {number} has something in its input or its output that is no item of a conversation")
    opening = tuple(map(_essence, _telling(input_items(given))))
    key = _index(row, "_ng_task_index", 0), _index(row, "_ng_rollout_index", number)
    answers = list(_answers(output))
    if response.get("status") == "completed" and not (output and _is_models(output[-1])):
        answers.append(range(len(output), len(output)))  # it ended because the model had nothing more to say
    return opening, Recorded(key, response.get("id"), output, answers)


def _index(row: Row, name: str, default: int) -> int:
    found = row.get(name)
    return found if isinstance(found, int) else default


def _answers(output: list[Item]) -> Iterator[range]:
    """The runs of items that are the model's own; between two of them are results of tools, or a word of the user's."""
    start = 0
    for place, item in enumerate([*output, None]):
        if item is not None and _is_models(item):
            continue
        if place > start:
            yield range(start, place)
        start = place + 1


def _is_models(item: Item) -> bool:
    kind = item.get("type", "message")
    return kind != "function_call_output" and (kind != "message" or item.get("role") == "assistant")


def _telling(items: Iterable[Item]) -> list[Item]:
    """The items by which a conversation is known; a model's reasoning, and an empty message, do not get everywhere."""
    return [item for item in items if item.get("type") != "reasoning" and not _is_empty(item)]


def _is_empty(item: Item) -> bool:
    said = item.get("type", "message") == "message" and item.get("role") == "assistant"
    return said and not text_of(item) and not _others(item.get("content"))


def _essence(item: Item) -> bytes:
    """What two items must have in common to be the same: not how a server has named them, or how they are written."""
    kind = item.get("type", "message")
    match kind:
        case "message":
            told: Any = [item.get("role"), text_of(item), _others(item.get("content"))]
        case "function_call":
            told = [item.get("call_id"), item.get("name"), item.get("arguments")]
        case "function_call_output":
            told = [item.get("call_id"), item.get("output")]
        case _:
            told = {name: value for name, value in item.items() if name not in ("id", "status")}
    return blake2b(json.dumps([kind, told], sort_keys=True).encode(), digest_size=16).digest()


def _others(content: Any) -> list[Any]:
    """The parts of a content that are no text."""
    return [part for part in content if "text" not in part] if isinstance(content, list) else []


def _text(item: Item) -> str:
    return json.dumps(item, ensure_ascii=False)


def _rows(path: Path) -> Iterator[Row]:
    for number, line in read_lines(path):
        try:
            yield parse_object(line)
        except ValueError as error:
            raise BadTask(f"{path}, line {number}: {error}") from None
