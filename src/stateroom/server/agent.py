"""The agent server: a model of the server runs whole episodes, or acts in a client's session, on request.

The endpoints are those of NeMo Gym's agent servers, so that its rollout collection, and trainers written for it, use
our agents. An episode that has an id continues when its request is repeated, in any worker: its session is named after
the id, and all that was said and done is in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from time import perf_counter
from typing import Any
from zlib import crc32

from stateroom.agent import (
    Agent,
    AgentLog,
    Context,
    Outcome,
    ThreadEnvironment,
    Trajectory,
    Workspace,
    WrappedWorkspace,
    act,
    recall,
)
from stateroom.environment import ENV_ARGS, Environment
from stateroom.errors import Busy, Contradiction, ModelFailed, NotFound, SessionLeased, StateroomError
from stateroom.model import Answer, ModelSource, open_model, with_whole_prompts
from stateroom.rollout import (
    EPOCH,
    SESSION,
    EpisodeEnd,
    EpisodeOptions,
    EpisodePlan,
    EpisodeStart,
    Row,
    agent_ref,
    checked_row,
    given_row,
    run_episode,
)
from stateroom.server.asgi import ROLLOUT
from stateroom.server.environment import ServedEnvironment, guard_user_code
from stateroom.server.http import HTTPRequest, HTTPResponse, json_response, wrong_field
from stateroom.server.model import responses
from stateroom.server.model.request import ModelRequest, ModelResponse
from stateroom.server.operation import SLOW, Operation, post
from stateroom.server.services import Services
from stateroom.server.wire import CallHeaders, ResponseObject, ResponsesBody, RunReply
from stateroom.session import AgentInMemory, Session, new_session_id

AGENT_SHARE = 0.75
"""The share of a worker's requests in flight that may be agents at work: the rest is for other requests."""

LEASE_SECONDS = 10.0
"""Seconds after the death of a worker in which its episode with an id waits."""

TAKEOVER_RETRY_SECONDS = 0.1
"""Seconds between two attempts to take over an episode that another request runs."""

RENEWALS_PER_LIFE = 4
"""How often the life of a session is renewed within its time to live, while an agent works in it."""


async def open_models(
    spec: str | None, environments: Sequence[Environment[Any, Any]], api_key_env: str | None, resources: AsyncExitStack
) -> dict[str, ModelSource]:
    """The model of each environment that a spec names, open until `resources` is closed; none without a spec.

    A policy's name is a model for those environments that have the policy, any other spec for all.
    """

    async def open_for(policies: Mapping[str, Any]) -> ModelSource:
        return await resources.enter_async_context(open_model(spec or "", policies, api_key_env=api_key_env))

    if spec is None:
        return {}
    owners = [environment for environment in environments if spec in environment.policies]
    if owners:
        return {owner.name: await open_for(owner.policies) for owner in owners}
    known = {name: policy for environment in environments for name, policy in environment.policies.items()}
    shared = await open_for(known)
    return {environment.name: shared for environment in environments}


def agent_for(services: Services, models: Mapping[str, ModelSource], environment: str, session: str) -> Agent:
    """The agent that continues a session or a thread of an environment; `NotFound` if no model can act there."""
    source, spec = models.get(environment), services.options.model
    if source is None:
        why = "without a model" if spec is None else f"with the model {spec}, which cannot act in {environment}"
        raise NotFound(f"no model can act in {environment}: the server was started {why}")
    seed = crc32(session.encode("utf-8", "surrogatepass"))
    return Agent(source.for_episode(seed), context=Context(services.options.context_tokens), seed=seed)


class AgentAPI:
    """The endpoints of one environment's agent: `run` and `v1/responses`."""

    def __init__(
        self, services: Services, served: ServedEnvironment, model: ModelSource, slots: asyncio.Semaphore
    ) -> None:
        self.served = served
        self.transcripts = services.session_environments[ThreadEnvironment.name]
        """Keeps what is said in requests with an id, where the session does not: as plain threads."""
        options = services.options
        own = EpisodeOptions(context_tokens=options.context_tokens, record_tokens=options.record_tokens)
        self.plan = EpisodePlan(served.environment, model, own)
        self.slots = slots
        """The agents that may be at work in this process, over all environments."""

    def operations(self) -> list[Operation]:
        """The endpoints."""
        served, errors = self.served, (409, 410, *SLOW)
        turn = {**served.asking, "headers": CallHeaders}
        return [
            post("/run", self.run, detail=lambda: served.task, reply=RunReply, headers=CallHeaders, errors=errors),
            post("/v1/responses", self.responses, body=ResponsesBody, reply=ResponseObject, **turn),
        ]

    async def run(self, request: HTTPRequest) -> HTTPResponse:
        """Run a whole episode with the server's agent.

        The body is the whole task row. The reply has the same keys, the agent's `response` and the fields of the
        verdict; of an episode that fails it has `_ng_failure_class` instead. With an id, a request that is sent again
        goes on with the episode, or gives the same reply; `_ng_rollout_id` in the row is an id too. When the client
        disconnects, the agent stops.
        """
        self.served.admit_newcomer(request)
        row = self._row(request.json())
        episode = _episode_id(request, row)
        name = episode and f"run/{request.key}/{episode}"
        return await self._work(request, lambda: self._episode(request, row, name))

    async def responses(self, request: HTTPRequest) -> HTTPResponse:
        """Let the server's agent act in the session.

        The body is a request of OpenAI's Responses API. The agent calls the session's tools until it is done, and
        `output` of the reply has all that was said, tool results included.
        """
        subject = self.served.subject_of(request)
        asked = responses.read(request.json())
        if asked.stream:
            raise wrong_field("stream", "not supported: this server sends whole responses")
        name = request.call_id and f"responses/{subject or request.key}/{request.call_id}"
        return await self._work(request, lambda: self._turn(subject, asked, name))

    async def _work(self, request: HTTPRequest, work: Callable[[], Coroutine[Any, Any, Row]]) -> HTTPResponse:
        """Let an agent work while its client waits."""
        if self.slots.locked():
            raise Busy("too many agents are running; send the request again later")
        async with self.slots:
            return json_response(await request.while_connected(work()))

    # Whole episodes.

    def _row(self, body: Row) -> Row:
        row = {"agent_ref": agent_ref(self.served.environment), **given_row(checked_row(body, self.served.environment))}
        self.plan.model.check_task(row)
        return row

    async def _episode(self, request: HTTPRequest, row: Row, name: str | None) -> Row:
        async with AsyncExitStack() as stack:
            session = await self._session(request, row, name)
            log = session.agent
            if not self.served.stateless:
                await stack.enter_async_context(_in_use(self.served, session, alone=name is not None))
                if name is None:  # then no request can go on with it
                    stack.push_async_callback(self._close, session)
            elif name is not None:
                log = (await stack.enter_async_context(self._transcript(row, name))).agent

            async def start() -> EpisodeStart:
                return EpisodeStart(session, log)

            began = perf_counter()
            ended = await run_episode(self.plan, start, {**row, SESSION: session.id})
            self._count(ended, perf_counter() - began)
            if ended.waits_in is not None:
                raise _waits(session)
            if ended.session is not None:  # else the request can be repeated, to go on
                await self._close(session)
            return _with_whole_prompts(ended.row)

    def _count(self, ended: EpisodeEnd, seconds: float) -> None:
        """Count an episode's tokens, and its verdict with the time of the whole."""
        metrics, name = self.served.metrics, self.served.name
        metrics.tokens(name, ((ended.row.get("response") or {}).get("usage")) or {})
        if ended.waits_in is None:
            metrics.verdicts(name).count("ok" if not ended.failed else "error", seconds)

    async def _session(self, request: HTTPRequest, row: Row, name: str | None) -> Session[Any]:
        """The session of an episode: a new one, or that of an earlier request with the same id."""
        served = self.served
        ids = [new_session_id()] if name is None else served.signer.session_ids(name)
        seed = self.plan.seed_of_row({**row, SESSION: ids[0]})

        async def new() -> Session[Any]:
            async with served.creating(request):
                work = served.sessions.seed(row, seed=seed, began=EPOCH, session_id=ids[0])
                return await guard_user_code("seed", work)

        if name is None or served.stateless:
            return await new()
        return await served.session_once(ids, row, new, ended=True)

    async def _close(self, session: Session[Any]) -> None:
        """Close a session whose episode is over. Its verdict stays, for a request that is repeated."""
        if not self.served.stateless:
            with suppress(StateroomError):  # else it expires
                await self.served.close(session)

    # Turns in a client's session.

    async def _turn(self, subject: str | None, asked: ModelRequest, name: str | None) -> Row:
        session = await self.served.session(subject)
        async with AsyncExitStack() as stack:
            turn = new_session_id()
            log: AgentLog = AgentInMemory()
            if not self.served.stateless:
                await stack.enter_async_context(_in_use(self.served, session))
            if name is not None:
                row = {"responses_create_params": asked.body}
                transcript = await stack.enter_async_context(self._transcript(row, name))
                turn, log = transcript.id, transcript.agent
            trajectory = await self._act(TurnSession(session, turn), log, asked, self.plan.seed_of(turn))
            return self._response(trajectory, asked, turn)

    async def _act(self, session: Workspace, log: AgentLog, asked: ModelRequest, seed: int) -> Trajectory:
        before, wanted = await recall(log), asked.request
        agent = self.plan.new_agent({"responses_create_params": wanted.settings}, seed)
        tools = [*wanted.tools] or self.plan.tools_for({})
        trajectory = (await act(session, log, agent, tools, wanted.items)).following(before)
        if trajectory.status == "waiting":
            raise Contradiction(
                "a tool asks a question, which this endpoint cannot put to anyone; use /run or a thread"
            )
        if trajectory.status == "failed":  # when the request was sent before
            raise ModelFailed(trajectory.reason)
        return trajectory

    def _response(self, trajectory: Trajectory, asked: ModelRequest, turn: str) -> Row:
        output = with_whole_prompts(trajectory.output)
        answer = Answer(output, trajectory.usage, trajectory.reason == "max_output_tokens")
        made = responses.whole(ModelResponse(asked, answer, self.plan.model.name, turn, EPOCH))
        usage = None if trajectory.usage is None else trajectory.usage.plain()  # what the model reports, no estimate
        self.served.metrics.tokens(self.served.name, usage or {})
        return {**made, "status": trajectory.status, "usage": usage}

    @asynccontextmanager
    async def _transcript(self, row: Row, name: str) -> AsyncIterator[Session[Any]]:
        """The session that keeps what is said in a request with an id: a new one, or that of an earlier request."""
        given = {field: value for field, value in row.items() if field != ENV_ARGS}  # which are another environment's
        session = await self.transcripts.named_session(f"{self.served.name}/{name}", given)
        async with _in_use(self.transcripts, session, alone=True):
            yield session


def _with_whole_prompts(row: Row) -> Row:
    """A row whose reader need not know deltas."""
    response = row.get("response")
    if response is None:
        return row
    return {**row, "response": {**response, "output": with_whole_prompts(response["output"])}}


def agents_of(services: Services, models: Mapping[str, ModelSource]) -> dict[str, AgentAPI]:
    """The agents of a server by environment."""
    slots = asyncio.Semaphore(max(1, int(AGENT_SHARE * services.options.max_calls)))
    served = services.environments
    return {name: AgentAPI(services, served[name], model, slots) for name, model in models.items()}


class TurnSession(WrappedWorkspace):
    """A client's session, whose calls have ids of one turn: the agent of each turn counts its calls from one."""

    def __init__(self, session: Workspace, turn: str) -> None:
        super().__init__(session)
        self._turn = turn

    async def reply(self, message: str, *, call_id: str) -> str | None:
        return await super().reply(message, call_id=f"{self._turn}.{call_id}")

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Outcome:
        return await super().call(name, arguments, call_id=f"{self._turn}.{call_id}")


@asynccontextmanager
async def _in_use(served: ServedEnvironment, session: Session[Any], *, alone: bool = False) -> AsyncIterator[None]:
    """Keep a session from expiring and, if `alone`, all other requests out; it waits until those have ended."""
    async with AsyncExitStack() as stack:
        while alone and not session.closed:
            try:
                await stack.enter_async_context(session.lease(LEASE_SECONDS))
                break
            except SessionLeased:
                await asyncio.sleep(TAKEOVER_RETRY_SECONDS)
                await session.agent.refresh()
        keeping = asyncio.create_task(_keep(served, session.id))
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])


async def _keep(served: ServedEnvironment, session: str) -> None:
    """Renew the life of a session now and then."""
    runtime = served.sessions.runtime
    while True:
        await asyncio.sleep(runtime.limits.ttl / RENEWALS_PER_LIFE)
        now = runtime.now()
        with suppress(StateroomError):  # the next one may succeed
            await runtime.store.touch(session, now=now, expires=now + runtime.limits.ttl)


def _episode_id(request: HTTPRequest, row: Row) -> str | None:
    """The client's own id of an episode, in a header, the path or the row; None if it gives none.

    The indices of a row are none: another run has the same.
    """
    if request.call_id is not None:
        return request.call_id
    prefix = ROLLOUT.match(request.scope["path"])
    if prefix is not None:
        return str(prefix[1])
    episode, attempt = row.get("_ng_rollout_id"), row.get("_ng_attempt_index")
    if episode is None:
        return None
    if not isinstance(episode, str):
        raise wrong_field("_ng_rollout_id", "should be a text")
    return f"{episode}-a{attempt}" if attempt else episode


def _waits(session: Session[Any]) -> Contradiction:
    problem = (
        f"the agent waits for input in session {session.id}: answer with POST /admin/sessions/{session.id}/answer, "
        "and send this request again with the same id; an episode without an id has ended"
    )
    return Contradiction(problem)
