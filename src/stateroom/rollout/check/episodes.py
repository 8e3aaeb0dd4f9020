"""The episodes of the checks: each is played, recorded, and played again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest
from time import perf_counter
from typing import Any, Literal, NamedTuple, Self

from stateroom.agent import WrappedWorkspace, act, task_items
from stateroom.environment import Environment, make_environment
from stateroom.errors import EnvironmentFailed, SessionError, StateroomError, TimedOut
from stateroom.model import Item, ModelSource
from stateroom.rollout.check.findings import listed
from stateroom.rollout.check.instance import CheckSession, Instance
from stateroom.rollout.check.policies import CheckPolicy, idle_policy, random_policy, reference_policy, shortcut_policy
from stateroom.rollout.metrics import SOLVED
from stateroom.rollout.options import EpisodeOptions
from stateroom.rollout.plan import EpisodePlan
from stateroom.rollout.rows import Row
from stateroom.session import Cause, Reader, Result, Session, Verdict, contained, same
from stateroom.state import (
    Patch,
    brief,
    brief_pair,
    committed,
    decode,
    deep_equal,
    diff,
    encode,
    encode_patch,
    readable,
)

LARGE_PATCH_BYTES = 4096
"""The size from which a patch is compared with the state, in bytes."""

Phase = Literal["seed", "play", "verify"]


class PlayedStep(NamedTuple):
    """A call, or a message to the environment's user, and the result."""

    name: str
    input: Any
    call_id: str | None
    content: Any
    code: str | None
    seconds: float
    is_reply: bool = False
    cause: Cause | None = None
    """Unexpected errors and effects of the tool."""

    def __str__(self) -> str:
        """The step, as in code."""
        if self.is_reply or not isinstance(self.input, dict):
            return f"{self.name}({brief(self.input)})"
        return f"{self.name}({', '.join(f'{name}={brief(value)}' for name, value in self.input.items())})"

    def action(self) -> dict[str, Any]:
        """The step as one of a task's gold actions."""
        return {"message": self.input} if self.is_reply else {"name": self.name, "arguments": self.input}

    async def repeat(self, session: Session[Any]) -> Any:
        """The result of the same step in another session."""
        if self.is_reply:
            return await session.reply(self.input, call_id=str(self.call_id))
        return (await session.call(self.name, self.input, call_id=self.call_id)).content


class StateChange(NamedTuple):
    """The effect of a committed call on the state."""

    name: str
    patch: Patch
    size: int
    """Bytes of the patch."""
    rewritten: float
    """The share of the old state that the patch repeats, if the patch is large."""


class PlayFailure(NamedTuple):
    """The phase in which an episode failed, and why."""

    phase: Phase
    why: str
    timed_out: bool
    """Whether the episode does not end."""


@dataclass
class Play:
    """A played episode."""

    task: int
    policy: CheckPolicy
    steps: list[PlayedStep] = field(default_factory=list)
    changes: list[StateChange] = field(default_factory=list)
    verdict: Verdict | None = None
    second_verdict: Verdict | None = None
    """The second verdict on the same episode, if the verifier ran twice."""
    unstored: str | None = None
    """The call after which the state in memory differed from the stored one, and the difference."""
    response: Any = None
    question: str | None = None
    """A question that a person must answer before the episode can continue."""
    failure: PlayFailure | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    """The times of the seed and the verifier."""

    def difference(self, other: Play) -> str | None:
        """The first difference from another episode of the same task and policy, if any."""
        failure, equal = self.failure or other.failure, deep_equal
        if failure is not None and (self.failure is None or other.failure is None):
            return f"only one of two episodes failed ({failure.why})"
        for number, (step, again) in enumerate(zip_longest(self.steps, other.steps), 1):
            if step is None or again is None or not equal((step.name, step.input), (again.name, again.input)):
                return f"the policy differs at step {number}"
            if not same(step.content, again.content):
                return f"{step} returns {', then '.join(brief_pair(step.content, again.content))}"
        for change, again_change in zip(self.changes, other.changes, strict=False):
            if not equal(change.patch, again_change.patch):
                patches = brief_pair(change.patch, again_change.patch)
                return f"{change.name} changes the state by {', then by '.join(patches)}"
        verdict, verdict_again = (None if each.verdict is None else vars(each.verdict) for each in (self, other))
        if verdict != verdict_again and not same(verdict, verdict_again):
            return f"the verdict is {', then '.join(brief_pair(verdict, verdict_again))}"
        return None


class _RecordingSession(WrappedWorkspace):
    """A session that records each step of its agent."""

    def __init__(self, session: Session[Any], play: Play, limited: Set[str], reader: Reader | None) -> None:
        super().__init__(session)
        self._session = session
        self._play = play
        self._limited = limited
        """Tools with a timeout."""
        self._reader = reader
        """Reads the state again from the store after each call."""

    def reads(self, name: str) -> bool:
        return False  # so calls run and are recorded one after another

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Result:
        start = perf_counter()
        result = await self._session.call(name, arguments, call_id=call_id)
        seconds = perf_counter() - start
        step = PlayedStep(name, dict(arguments), call_id, result.content, result.code, seconds, cause=result.cause)
        self._play.steps.append(step)
        if result.code == "timeout" and name not in self._limited:
            raise TimedOut(f"{result.error}; to allow more time, set timeout=")
        if self._reader is not None and self._play.unstored is None:
            held, read = committed(self._session.state), (await self._reader.read(self._session.id))[0].state
            if not deep_equal(held, read):
                lines = list(diff(*(readable(decode(encode(state))) for state in (read, held))))
                self._play.unstored = f"after {name}: {listed(lines) or 'a type differs'}"
        return result

    async def reply(self, message: str, *, call_id: str) -> str | None:
        start = perf_counter()
        answer = await self._session.reply(message, call_id=call_id)
        step = PlayedStep("reply", message, call_id, answer, None, perf_counter() - start, is_reply=True)
        self._play.steps.append(step)
        return answer


async def _play(instance: Instance, policy: CheckPolicy, task: int, row: Row, *, closely: bool = False) -> Play:
    """Play a task once; `closely` also runs the verifier twice and measures the patches."""
    play = Play(task, policy)
    phase: Phase = "seed"
    start = perf_counter()
    try:
        with contained:
            async with instance.seed(task, row) as seeded:
                play.seconds["seed"] = perf_counter() - start
                phase = "play"
                await _act(instance, row, play, seeded, closely)
                await _measure_changes(play, seeded.session, closely)
                phase = "verify"
                if play.question is None:
                    await _verify(play, seeded, closely)
    except Exception as error:  # noqa: BLE001 - the author's code may raise anything
        words = str(error) if isinstance(error, StateroomError) else f"{type(error).__name__}: {error}"
        play.failure = PlayFailure(phase, words + instance.watched.place_of(error), isinstance(error, TimedOut))
    return play


async def _act(instance: Instance, row: Row, play: Play, seeded: CheckSession, closely: bool) -> None:
    policy, session, environment = play.policy, seeded.session, instance.environment
    state = environment.state_type
    reader = Reader(seeded.store, state) if closely and state is not None else None
    source = ModelSource(policy.name, lambda seed: policy.make(seed, row))
    plan = EpisodePlan(environment, source, EpisodeOptions())
    agent, tools = plan.new_agent(row, play.task, policy.max_steps), plan.tools_for(row)
    if not policy.calls_external:
        tools = [tool for tool in tools if not _is_external(environment, tool)]
    limited = {name for name, tool in environment.tools.items() if tool.procedure.timeout is not None}
    recording = _RecordingSession(session, play, limited, reader)
    trajectory = await act(recording, session.agent, agent, tools, task_items(row))
    play.question = (trajectory.question or "") if trajectory.status == "waiting" else None
    play.response = plan.response(trajectory, tools, play.task)


def _is_external(environment: Environment[Any, Any], definition: Item) -> bool:
    tool = environment.tools.get(str(definition.get("name")))
    return tool is None or tool.effect == "external"


async def _verify(play: Play, seeded: CheckSession, closely: bool) -> None:
    session = seeded.session
    start = perf_counter()
    play.verdict = await session.verify(play.response)
    play.seconds["verify"] = perf_counter() - start
    if closely and seeded.rescorer is None:
        play.second_verdict = await session.verify(play.response)
    elif closely and seeded.rescorer is not None:
        with suppress(SessionError):  # something that it read is gone, such as a resource
            play.second_verdict = (await seeded.rescorer.judge(session.id, play.response)).verdict


async def _measure_changes(play: Play, session: Session[Any], closely: bool) -> None:
    async for entry in session.log(kinds={"call"}):
        size, rewritten = len(encode_patch(entry.patch)), 0.0
        if closely and size >= LARGE_PATCH_BYTES:
            before = len(encode(await session.state_at(entry.revision - 1)))
            grown = len(encode(await session.state_at(entry.revision))) - before
            rewritten = (size - max(grown, 0)) / before
        play.changes.append(StateChange(str(entry.name), entry.patch, size, rewritten))


class Episodes:
    """An environment, some of its tasks by number, and their episodes. Use it as an async context manager.

    All are played in order on one instance, and in reverse order on another. Instances stay open in the block.
    """

    instance: Instance
    other: Instance

    def __init__(
        self,
        environment: type[Environment[Any, Any]],
        env_args: Mapping[str, Any],
        rows: Mapping[int, Row],
        on_play: Callable[[], None],
    ) -> None:
        self.environment = environment
        self._env_args = env_args
        self.rows = rows
        self.reference: list[Play] = []
        """Episodes of the reference policy or, without one, of the tasks' gold actions."""
        self.random: list[Play] = []
        """Episodes of the random policy, which calls all tools except external ones."""
        self.idle: list[Play] = []
        """Episodes of the idle policy."""
        self.shortcuts: list[Play] = []
        """The solved `reference` episodes, without their final reads and last message."""
        self.again: list[Play] = []
        """The `active` episodes, played again."""
        self.endless: Play | None = None
        """The episode that did not end, which is the last one played."""
        self._on_play = on_play
        self._instances = AsyncExitStack()

    @property
    def active(self) -> list[Play]:
        """The episodes with tool calls: those of the reference policy and the random one."""
        return [*self.reference, *self.random]

    async def __aenter__(self) -> Self:
        async with self._instances:  # if an episode cannot be played
            await self._play()
            self._instances = self._instances.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._instances.aclose()

    async def _play(self) -> None:
        """Play all episodes that the checks need."""
        self.instance, self.other = await self.new_instance(), await self.new_instance()
        reference = reference_policy(self.environment, self.rows.values())
        if reference is not None:
            self.reference = await self._play_all(reference, closely=True)
        self.random = await self._play_all(random_policy(), closely=reference is None)
        self.idle = await self._play_all(idle_policy())
        for play in self.reference:
            await self._play_shortcut(play)
        if self.endless is None:
            self.again = [await self.play_again(self.other, each) for each in reversed(self.active)][::-1]

    async def new_instance(self) -> Instance:
        """A new instance of the environment to play on."""
        try:
            made = make_environment(self.environment, self._env_args)
        except StateroomError as error:
            raise EnvironmentFailed(f"cannot create another instance: {error}") from error
        return await self._instances.enter_async_context(Instance(made))

    async def play_again(self, instance: Instance, play: Play) -> Play:
        """Play the same episode on another instance."""
        self._on_play()
        return await _play(instance, play.policy, play.task, self.rows[play.task])

    def last_reads(self, play: Play) -> list[PlayedStep]:
        """The reads at the end of an episode, on which no later call depends."""
        tools = self.instance.environment.tools
        reads = takewhile(lambda step: step.name in tools and tools[step.name].effect == "read", reversed(play.steps))
        return [*reads][::-1]

    async def _play_shortcut(self, play: Play) -> None:
        reads = self.last_reads(play)
        kept = play.steps[: len(play.steps) - len(reads)]
        if self.endless is None and kept and reads and play.verdict is not None and play.verdict.reward >= SOLVED:
            policy = shortcut_policy([step.action() for step in kept])
            self.shortcuts.append(await _play(self.instance, policy, play.task, self.rows[play.task]))
            self._on_play()

    async def _play_all(self, policy: CheckPolicy, *, closely: bool = False) -> list[Play]:
        plays: list[Play] = []
        for task, row in self.rows.items():
            if self.endless is None:
                play = await _play(self.instance, policy, task, row, closely=closely)
                plays.append(play)
                self._on_play()
                self.endless = play if play.failure is not None and play.failure.timed_out else None
        return plays
