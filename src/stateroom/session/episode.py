"""Episodes, and running their verifiers.

A verifier reads the state, the task and the agent's response. It may look back at the path (the calls and states that
led from the seed to the state), and rehearse other actions.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple, Protocol, overload

from stateroom.errors import BadTask, BadVerdict, DefinitionError, InvalidArguments, TimedOut
from stateroom.session.agent import response_of
from stateroom.session.containment import PathNotLoaded, contained
from stateroom.session.environment import Procedure, SessionEnvironment, SessionTool
from stateroom.session.history import History
from stateroom.session.invocation import NOTHING, READ_ONLY, CallContext, plain_arguments, run_tool
from stateroom.session.log import Document, LogEntry
from stateroom.session.reader import Reader, StateAt, typed
from stateroom.session.recorded_call import RecordedCall, merged, recorded_calls
from stateroom.session.result import Failed, unknown_tool
from stateroom.session.runner import Runner
from stateroom.state import DraftContext, Patch, State, apply, draft_of, patched

REVISIONS_PER_STATE = 64
"""One state in this many is kept; those between are made again from there."""

ONLY_READ = "past states are read-only"


class Path(NamedTuple):
    """The path that a verifier sees when it looks back."""

    calls: Sequence[LogEntry] = ()
    states: Sequence[Any] = ()
    by_response: bool = False
    """Whether the reads among the calls are those of the response: the log has no conversation."""


async def no_path() -> Path:
    """The path of an episode without a state: nothing keeps its calls."""
    return Path()


async def load_path(
    reader: Reader, session: str, revision: int, tools: Mapping[str, SessionTool] = NOTHING, response: Any = None
) -> Path:
    """The path to a revision of a session; raises `UnknownRevision` if its beginning was pruned.

    The reads of `tools` on it are those of the conversation in the log or, if there is none, in the response.
    """
    line = await History(reader.store).line(session, revision)
    logged = response_of(line)
    calls = [entry for entry in line if entry.kind == "call"]
    patches: list[Patch] = []
    """The changes of each call, and of the edits that followed it."""
    starts: list[tuple[int, int]] = []
    """Revisions whose states do not follow from what was stored before, and how many calls led there."""
    for entry in line:
        if entry.kind == "call":
            patches.append(entry.patch)
        if entry.kind == "seed" or "schema" in entry.facts:
            starts.append((entry.revision, len(patches)))
        elif entry.kind == "edit" and starts[-1][1] == len(patches):
            starts[-1] = (entry.revision, len(patches))
        elif entry.kind == "edit":
            patches[-1] = [*patches[-1], *entry.patch]
    stretches: list[tuple[int, Stretch]] = []
    for (start, first), (_, end) in pairwise([*starts, (revision, len(calls) + 1)]):
        stretches.append((first, await _stretch(reader, session, start, patches[first : max(first, end - 1)])))
    made, places = _with_reads(line[0], calls, recorded_calls(logged or response, tools), tools)
    return Path(tuple(made), States(stretches, places), by_response=logged is None and response is not None)


def _with_reads(
    seed: LogEntry, calls: Sequence[LogEntry], recorded: Iterable[RecordedCall], tools: Mapping[str, SessionTool]
) -> tuple[list[LogEntry], list[int]]:
    """Committed calls with the reads between them, and how many of the former led to each state on the way."""
    made: list[LogEntry] = []
    places, before = [0], seed
    for call in merged(calls, [*recorded]):
        if isinstance(call, LogEntry):
            before = call
            places.append(places[-1] + 1)
            made.append(call)
        elif call.error is None and call.name in tools:
            if tools[call.name].effect == "read":
                facts = {"name": call.name, "input": call.input, "output": call.output}
                places.append(places[-1])
                made.append(LogEntry(before.revision, "read", before.at, None, facts))
            elif places[-1] == len(calls):  # it was committed after the revision
                break
    return made, places


async def _stretch(reader: Reader, session: str, revision: int, patches: Sequence[Patch]) -> Stretch:
    standing, _ = await reader.read(session, revision)
    if standing.outdated:
        return _Outdated(await History(reader.store).document(session, revision), reader.state_type, patches)
    return _Current(standing.state, patches)


class Stretch(Protocol):
    """States that follow one from another by patches."""

    def state(self, step: int) -> State:
        """The state after the first `step` patches."""


class _Current:
    """States in the current schema: they share what they have in common."""

    def __init__(self, state: State, patches: Sequence[Patch]) -> None:
        self._patches = patches
        self._kept = {0: state}
        self._last = (0, state)

    def state(self, step: int) -> State:
        at, state = self._nearest(step)
        while at < step:
            state = patched(state, self._patches[at])
            at += 1
            if at % REVISIONS_PER_STATE == 0:
                self._kept[at] = state
        self._last = (at, state)
        return state

    def _nearest(self, step: int) -> tuple[int, State]:
        """The nearest state before that is in memory."""
        at, state = self._last
        if step - REVISIONS_PER_STATE < at <= step:
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

    def __init__(self, stretches: Sequence[tuple[int, Stretch]], places: Sequence[int]) -> None:
        self._stretches = stretches
        self._places = places
        """For each state, how many committed calls led to it."""

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = self._places[index]
        first, stretch = next(each for each in reversed(self._stretches) if each[0] <= number)
        return draft_of(stretch.state(number - first), DraftContext(ONLY_READ))

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))


Action = Mapping[str, Any]
"""A call, `{"name": …, "arguments": {…}}`, or something said to the environment's user, `{"message": …}`.

The arguments may be JSON as a text, as in a model's `function_call`.
"""


@dataclass(frozen=True)
class Rehearsal:
    """Carries out actions on the state that a session was seeded with."""

    environment: SessionEnvironment
    runner: Runner
    session: str
    task: Callable[[], Any]
    seeded: Callable[[], Awaitable[StateAt]]
    reload_tampered: Callable[[], Awaitable[None]]
    """Is to be called when an action may have changed committed state in memory."""

    async def after(self, actions: Iterable[Action], *, external: bool, skip_failures: bool) -> Any:
        """The state after the actions, to be read; `BadTask` says which of them cannot be carried out, and why.

        With `skip_failures` a call that fails for the agent too changes nothing, and the next one follows.
        """
        standing = await self.seeded()
        for number, action in enumerate(actions, 1):
            if not isinstance(action, Mapping) or action.keys().isdisjoint(("name", "message")):
                raise BadTask(f"action {number} needs a `name` or a `message`: {action!r}")
            try:
                standing = await self._act(standing, action, external)
            except (Failed, InvalidArguments) as failure:
                why = str(failure)
                if isinstance(failure, Failed):
                    if failure.tampered:
                        await self.reload_tampered()
                    if failure.code == "needs_input":
                        why = f"it asks a question, which nobody can answer here: {why}"
                if skip_failures and not _is_refusal(failure):
                    continue
                name = action.get("name", "message")
                raise BadTask(f"action {number}, {name}, failed: {why}") from failure
        return draft_of(standing.state, DraftContext(ONLY_READ))

    async def _act(self, standing: StateAt, action: Action, external: bool) -> StateAt:
        operation, given = self._meant(action)
        if operation.effect == "read":
            return standing
        if operation.effect == "external" and not external:
            raise _Refused("it has external effects; to allow them here, call after(…, external=True)")
        if elsewhere := operation.procedure.shared | operation.procedure.resources:
            raise _Refused(f"it needs {', '.join(sorted(elsewhere))}, which is not part of the session's state")
        progress = standing.progress
        call = CallContext(standing.state, progress, self.session, 0, self.task, None, None, NOTHING)
        ran = await run_tool(self.runner, operation, operation.bind(given), call)
        return StateAt(ran.state, progress.after(ran.advanced))

    def _meant(self, action: Action) -> tuple[SessionTool, dict[str, Any]]:
        if "message" not in action:
            arguments = plain_arguments(_parsed(action.get("arguments")), None)
            name, tools = str(action.get("name")), self.environment.tools
            if name not in tools:
                raise unknown_tool(name, tools)
            return tools[name], arguments
        reply_tool = self.environment.reply_tool
        if reply_tool is None:
            raise _Refused("the environment has no `reply` to answer a message")
        return reply_tool, {"message": action["message"]}


class _Refused(Failed):
    """A rehearsal cannot predict the action's result."""


def _is_refusal(failure: Failed | InvalidArguments) -> bool:
    return isinstance(failure, _Refused) or (isinstance(failure, Failed) and failure.code == "needs_input")


def _parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError as error:
        raise Failed(f"its arguments are not JSON: {error}", "invalid_arguments") from error


class Episode:
    """What a verifier judges: the task, the agent's response, and the path that led to the state."""

    __slots__ = ("_path", "_rehearsal", "_response", "path_is_missed", "response_was_read", "task")

    def __init__(self, task: Any, response: Any = None, rehearsal: Callable[[], Rehearsal] | None = None) -> None:
        self.task = task
        self._response = response
        self._rehearsal = rehearsal
        self._path: Path | None = None
        self.response_was_read = False
        """Whether the verdict may depend on the response."""
        self.path_is_missed = False
        """Whether the verifier looked back before the path was loaded; then its verdict does not count."""

    @property
    def response(self) -> Any:
        """The Responses object with the whole trajectory, as a dict, or None."""
        self.response_was_read = True
        return self._response

    def calls(self) -> Sequence[LogEntry]:
        """Return the calls that led from the seed to the state, in order, with `name`, `input`, `output` and `at`.

        A fork's calls begin with its parent's. Calls that a rewind undid are left out. Reads have the `kind` `read`;
        they come from the conversation, with the `at` and `revision` of what they read. Failed calls are only in
        `response`. An environment without a state has no calls here.
        """
        return self._loaded().calls

    def states(self) -> Sequence[Any]:
        """Return the states along the path, read-only: `states()[0]` is the seeded one.

        Call k ran on `states()[k]` and led to `states()[k + 1]`; `states()[-1]` is the final state. A person's edits
        are part of the state that precedes the next call. Each state is computed when you access it. An environment
        without a state has none.
        """
        return self._loaded().states

    async def after(
        self, actions: Iterable[Mapping[str, Any]], *, external: bool = False, skip_failures: bool = False
    ) -> Any:
        """Return the state that other actions lead to from the seed, read-only: `await episode.after(task.gold)`.

        An action is a call, `{"name": "pay", "arguments": {"amount": 3}}` (the arguments may be JSON text), or a
        message to the environment's user, `{"message": "May I?"}`. Nothing is stored, and reads are skipped. External
        tools are refused unless you pass `external=True`, for example because they are mocked.
        Raises `BadTask` if an action fails. With `skip_failures=True`, for lists in which some calls fail by design,
        a failed call changes nothing, as in an episode, and the next one follows.
        """
        if self._rehearsal is None:
            raise DefinitionError("episode.after() needs an environment with a state")
        return await self._rehearsal().after(actions, external=external, skip_failures=skip_failures)

    def look_back(self, path: Path) -> None:
        """Set the path that the verifier reads from now on."""
        self._path, self.path_is_missed = path, False
        self.response_was_read |= path.by_response

    def _loaded(self) -> Path:
        if self._path is None:
            self.path_is_missed = True
            raise PathNotLoaded
        return self._path


@dataclass(frozen=True)
class Verdict:
    """A verifier's result: a reward, and optional details."""

    reward: float
    components: dict[str, float] = field(default_factory=dict)
    """Parts of the reward, by name."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Other numbers worth averaging over episodes."""
    reason: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    """Other data for the episode's row."""


def digest(response: Any) -> str:
    """A digest by which responses are compared."""
    return blake2b(json.dumps(response, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


async def run_verifier(
    runner: Runner,
    procedure: Procedure,
    call: CallContext,
    episode: Episode,
    load_path: Callable[[], Awaitable[Path]],
    lend: Callable[[Procedure, CallContext], Awaitable[CallContext]] | None = None,
) -> Verdict:
    """Run a verifier; its errors are raised as they are.

    The path is loaded only for a verifier that looks back: on its first attempt to do so, it runs again. Before each
    run, `lend` adds resources to its parameters.
    """
    if procedure.function in runner.look_back:
        episode.look_back(await load_path())
    lent = call if lend is None else await lend(procedure, call)
    returned = None
    try:
        returned = await runner.run(procedure, _judges_by(procedure, lent, episode))
    except TimedOut as error:
        raise TimedOut(f"verify did not finish within {error}") from None
    except (Exception, PathNotLoaded):
        if not episode.path_is_missed:
            raise
    if episode.path_is_missed:
        runner.look_back.add(procedure.function)
        return await run_verifier(runner, procedure, call, episode, load_path, lend)
    with contained:  # a number may be of a class of the author's
        verdict = Verdict(float(returned)) if isinstance(returned, int | float) else returned
        if isinstance(verdict, Verdict) and isinstance(verdict.reward, int | float) and isfinite(verdict.reward):
            return verdict
        given = returned if isinstance(returned, int | float) else f"a {type(returned).__name__}"
        raise BadVerdict(f"verify must return a finite number, or a Verdict with one as its reward, not {given}")


def _judges_by(procedure: Procedure, call: CallContext, episode: Episode) -> dict[str, Any]:
    """The read-only parameters of a verifier."""
    arguments: dict[str, Any] = {}
    drafts = {name: draft_of(state, DraftContext(READ_ONLY)) for name, state in call.shared.items()}
    call.fill(
        procedure, arguments, None if call.state is None else draft_of(call.state, DraftContext(READ_ONLY)), drafts
    )
    if "episode" in procedure.needs:
        arguments["episode"] = episode
    return arguments
