"""Playing an episode, and noting all by which it can be told from another."""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple

from stateroom.agent import act
from stateroom.errors import SessionError, StateroomError, TimedOut
from stateroom.model import Item, ModelSource
from stateroom.rollout.checking.actors import Actor
from stateroom.rollout.checking.finding import listed
from stateroom.rollout.checking.stage import Seated, Stage
from stateroom.rollout.files import RunFiles
from stateroom.rollout.plan import Plan
from stateroom.rollout.world import Row
from stateroom.session import Result, Session, Verdict
from stateroom.session.containment import contained
from stateroom.session.reader import Reader
from stateroom.state import Patch, decode, encode, encode_patch
from stateroom.state.describe import differences, readable
from stateroom.state.event_context import committed
from stateroom.state.sameness import Sameness

LARGE = 4096
"""Bytes from which a commit is worth a look at how much of the state it has written again."""

Part = Literal["seed", "play", "verify"]


class Step(NamedTuple):
    """A call, or something said to the environment's user, and what came back."""

    name: str
    input: Any
    call_id: str | None
    content: Any
    code: str | None
    seconds: float
    is_reply: bool = False


class Change(NamedTuple):
    """What a committed call did to the state."""

    name: str
    patch: Patch
    size: int
    """Bytes of the patch."""
    rewritten: float
    """The share of the state before that it has written again, if it is large."""


class Broke(NamedTuple):
    """Where, and of what, an episode has broken down."""

    where: Part
    why: str
    is_stuck: bool
    """Whether it would go on for ever."""


@dataclass
class Play:
    """An episode that was played."""

    task: int
    actor: Actor
    steps: list[Step] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    verdict: Verdict | None = None
    again: Verdict | None = None
    """What the verifier said when it was asked once more, if it was."""
    strayed: str | None = None
    """After which call the state was another than what is stored, and in what."""
    response: Any = None
    waits: str | None = None
    """What somebody would have to answer before it can go on."""
    broke: Broke | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    """How long the seed and the verdict took."""


class _Place:
    """A session in which each step is noted."""

    def __init__(self, session: Session[Any], played: Play, hurried: Set[str], reader: Reader | None) -> None:
        self._session = session
        self._played = played
        self._steps = played.steps
        self._hurried = hurried
        """The tools that have a timeout of their own."""
        self._reader = reader
        """What reads the state again from the store after each call."""

    @property
    def replies(self) -> bool:
        return self._session.replies

    def reads(self, name: str) -> bool:
        return False  # so that calls are made, and noted, one after another

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Result:
        start = perf_counter()
        result = await self._session.call(name, arguments, call_id=call_id)
        seconds = perf_counter() - start
        self._steps.append(Step(name, dict(arguments), call_id, result.content, result.code, seconds))
        if result.code == "timeout" and name not in self._hurried:
            raise TimedOut(f"{result.error}; if it may take longer, give it a timeout=")
        if self._reader is not None and self._played.strayed is None:
            held, read = committed(self._session.state), (await self._reader.read(self._session.id))[0].state
            if not Sameness()(held, read):
                told = differences(*(readable(decode(encode(state))) for state in (read, held)))
                self._played.strayed = f"after {name}: {listed(told) or 'a type differs'}"
        return result

    async def reply(self, message: str, *, call_id: str) -> str | None:
        start = perf_counter()
        said = await self._session.reply(message, call_id=call_id)
        self._steps.append(Step("reply", message, call_id, said, None, perf_counter() - start, is_reply=True))
        return said


async def play(stage: Stage, actor: Actor, task: int, row: Row, *, closely: bool = False) -> Play:
    """Play a task once; `closely` also asks the verifier a second time, and looks at what the calls have written."""
    played = Play(task, actor)
    where: Part = "seed"
    start = perf_counter()
    try:
        with contained:
            async with stage.seat(task, row) as seated:
                played.seconds["seed"] = perf_counter() - start
                where = "play"
                await _act(stage, row, played, seated, closely)
                await _note_changes(played, seated.session, closely)
                where = "verify"
                if played.waits is None:
                    await _judge(played, seated, closely)
    except Exception as error:  # noqa: BLE001 - whatever an author's own code raises
        words = f"{_words(error)}{stage.watched.place_of(error)}"
        played.broke = Broke(where, words, isinstance(error, TimedOut))
    return played


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, StateroomError) else f"{type(error).__name__}: {error}"


async def _act(stage: Stage, row: Row, played: Play, seated: Seated, closely: bool) -> None:
    actor, session, state = played.actor, seated.session, stage.environment.state_type
    reader = Reader(seated.store, state) if closely and state is not None else None
    source = ModelSource(actor.name, lambda seed: actor.make(seed, row))
    plan = Plan(stage.environment, source, [], RunFiles(Path()))  # of which no file is written
    agent, tools = plan.new_agent(row, played.task, actor.max_steps), plan.tools_for(row)
    if not actor.reaches_outside:
        tools = [tool for tool in tools if not _is_external(stage, tool)]
    hurried = {name for name, tool in stage.environment.tools.items() if tool.procedure.timeout is not None}
    trajectory = await act(_Place(session, played, hurried, reader), session.agent, agent, tools, plan.items_of(row))
    played.waits = (trajectory.question or "") if trajectory.status == "waiting" else None
    played.response = plan.response(trajectory, tools, played.task)


def _is_external(stage: Stage, definition: Item) -> bool:
    tool = stage.environment.tools.get(str(definition.get("name")))
    return tool is None or tool.effect == "external"


async def _judge(played: Play, seated: Seated, closely: bool) -> None:
    session = seated.session
    start = perf_counter()
    played.verdict = await session.verify(played.response)
    played.seconds["verify"] = perf_counter() - start
    if closely and seated.rejudging is None:
        played.again = await session.verify(played.response)
    elif closely and seated.rejudging is not None:
        with suppress(SessionError):  # what it judged by cannot be had again, such as a resource
            played.again = (await seated.rejudging.judge(session.id, played.response)).verdict


async def _note_changes(played: Play, session: Session[Any], closely: bool) -> None:
    async for entry in session.log(kinds={"call"}):
        size, rewritten = len(encode_patch(entry.patch)), 0.0
        if closely and size >= LARGE:
            before = len(encode(await session.state_at(entry.revision - 1)))
            grown = len(encode(await session.state_at(entry.revision))) - before
            rewritten = (size - max(grown, 0)) / before
        played.changes.append(Change(str(entry.name), entry.patch, size, rewritten))


async def repeat(session: Session[Any], step: Step) -> Any:
    """Make a step again in another session; gives what came back."""
    if step.is_reply:
        return await session.reply(step.input, call_id=str(step.call_id))
    return (await session.call(step.name, step.input, call_id=step.call_id)).content
