"""Episodes on a Stateroom server, or any server with the protocol of NeMo Gym's resources servers."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, get_args

import aiohttp
from msgspec import Raw
from yarl import URL

from stateroom.agent import AgentLog, Outcome, request_of
from stateroom.environment import RESERVED, Environment
from stateroom.errors import BadTask, BadVerdict, JudgeFailed, NotFound, ServerFailed, ServerUnavailable
from stateroom.model import Item, function_call, message, response_object
from stateroom.rollout.backend import EpisodeSession
from stateroom.rollout.client import (
    AdminClient,
    ServerConnection,
    ServerReply,
    Verbatim,
    bearer,
    checked_reward,
    find_admin_api,
    is_stateless,
)
from stateroom.rollout.rows import SESSION, Row, given_row
from stateroom.rollout.tasks import RemoteEnvironment
from stateroom.session import AgentInMemory, Code, Lifecycle, Result, Verdict, result_of_failure, unknown_tool

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 60.0
"""The time limit of a request, in seconds."""

KEEPALIVE_SECONDS = 4.0
"""The time to keep an idle connection, in seconds: shorter than servers do, to avoid dead connections."""

FOR_THE_MODEL = frozenset(get_args(Code))
"""The codes of failed calls that are reported to the model; any other ends the episode."""

RUNNERS_FIELDS = ("response", "responses_create_params")
"""Fields of a verdict that are ignored, because the runner measures them itself."""

SESSION_ID = "resources_session_id"
"""A seed request with this field always gets the same session. It is not sent, as each episode needs its own."""

_NAME = re.compile(r"[\w-]+")


class RemoteSession:
    """A session on a server."""

    def __init__(
        self,
        backend: RemoteBackend,
        connection: ServerConnection,
        seeded: Row,
        row: Row,
        restart: Callable[[], Awaitable[RemoteSession]],
        parent: tuple[str, int] | None = None,
    ) -> None:
        self._backend = backend
        self._connection = connection
        self._row = row
        self.seeded = seeded
        """The server's reply to the seed request."""
        self.restart = restart
        """Seeds an identical session."""
        self.parent = parent
        session_id = seeded.get("session_id", seeded.get(SESSION_ID))
        self.id = session_id if isinstance(session_id, str) else None
        self.is_stateroom = "session_id" in seeded
        """Whether this is a Stateroom server, which runs a request with the same id only once."""
        self._tools = backend.callable_in(row)
        self.agent: AgentLog = AgentInMemory(backend.lifecycle)

    @property
    def was_found(self) -> bool:
        """Whether the server reports that the session existed before the seed request."""
        return self.is_stateroom and "seed_key" not in self.seeded

    @property
    def replies(self) -> bool:
        return self.is_stateroom and self.seeded.get("replies") is True

    @property
    def opens(self) -> bool:
        return self.is_stateroom and self.seeded.get("opens") is True

    def reads(self, name: str) -> bool:
        return self._backend.reads(name)

    def fork(self, session: str, token: str, revision: int) -> RemoteSession:
        """The session for a fork that the server created at a revision."""
        cookie = f"stateroom_{self.seeded['mcp']['server_name']}"  # the server reads the session's token there
        connection = self._connection.with_cookies({cookie: token})
        seeded, parent = {**self.seeded, "session_id": session}, (self.seeded["session_id"], revision)
        return RemoteSession(self._backend, connection, seeded, self._row, self.restart, parent)

    async def instructions(self) -> str:
        if not (self.is_stateroom and self.seeded.get("instructs") is True):
            return ""
        reply = await self._connection.get("/instructions")
        instructions = reply.expect("instructions").get("instructions")
        if not isinstance(instructions, str):
            raise reply.failure("instructions")
        return instructions

    async def reply(self, message: str, *, call_id: str) -> str | None:
        if not self.replies:
            return None
        headers = {"Idempotency-Key": call_id}
        reply = await self._connection.post("/reply", {"message": message}, headers, repeatable=True)
        answer = reply.expect("reply").get("reply", ...)
        if not isinstance(answer, str | None):
            raise reply.failure("reply")
        return answer

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Outcome:
        if name not in self._tools:  # the model must not reach other endpoints of the server
            return result_of_failure(unknown_tool(name, self._tools))
        headers = {} if call_id is None else {"Idempotency-Key": call_id}
        repeatable = self.is_stateroom and call_id is not None
        reply = await self._connection.post(f"/{name}", arguments, headers, repeatable=repeatable)
        code = reply.error.get("code") if reply.status >= 400 else None
        if self.is_stateroom and reply.status >= 400 and code not in FOR_THE_MODEL:
            raise reply.failure(name)
        if code == "needs_input":
            asked = reply.error.get("message")
            raise ServerFailed(f"{name} asks {asked!r}, but an agent on a server cannot wait for an answer")
        return Verbatim(Raw(reply.text.encode()), code)

    async def verify(self, response: Any = None) -> Verdict:
        sent = {**given_row(self._row), "response": response}
        headers = {"Prefer": "return=minimal"}  # the reply need not repeat the row
        reply = await self._connection.post("/verify", sent, headers, repeatable=self.is_stateroom)
        if reply.error.get("code") == "judge_failed":
            raise JudgeFailed(reply.error.get("message") or reply.text)
        reply.expect("verify")
        details = _added(sent, reply)
        if "reward" not in details:
            raise BadVerdict(f"the server's reply to verify has no reward: {reply.text:.100}")
        reward = checked_reward(details.pop("reward"), "verify")
        components = details.pop("reward_components") if isinstance(details.get("reward_components"), dict) else {}
        reason = details.pop("reason") if isinstance(details.get("reason"), str) else ""
        return Verdict(reward, components, reason=reason, details=details)

    async def close(self) -> None:
        """Close the session. If that fails, it expires; the verdict stays valid."""
        if self.id is None:
            return
        episode = {"rollout_id": f"{self._row['_ng_task_index']}-{self._row['_ng_rollout_index']}", "attempt": 0}
        body = {SESSION_ID: self.id, "episode_id": episode}
        try:
            await self._connection.post("/close_session", body, {}, repeatable=self.is_stateroom)
        except ServerUnavailable as error:
            logger.info("session %s was not closed: %s", self.id, error)


def _added(sent: Row, reply: ServerReply) -> Row:
    """The fields of a reply to verify that were not in the request."""
    fields = reply.content
    if reply.headers.get("Preference-Applied") == "return=minimal":
        return fields
    return {
        name: value
        for name, value in fields.items()
        if name == "reward" or (name not in RUNNERS_FIELDS and not _same(sent.get(name, _ABSENT), value))
    }


_ABSENT = object()


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


class RemoteBackend:
    """The sessions of an environment on a server. Without tools here, only the server knows the environment."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        root: str,
        environment: Environment[Any, Any],
        api_key: str | None,
        admin_token: str | None,
    ) -> None:
        self._client = client
        self._root = root
        self._tools = environment.tools
        self.lifecycle = environment.lifecycle
        self._api_key = api_key
        self._admin_token = admin_token
        self._admin: AdminClient | None = None
        self.is_gymnasium = False
        """Whether the server is Gymnasium-style; known after `check`."""

    async def admin(self) -> AdminClient:
        """The server's admin API. Raises an error if it has none or refuses the token."""
        if self._admin is None:
            self._admin = await find_admin_api(self._client, self._root, self._admin_token)
        return self._admin

    async def seed(self, row: Row, *, seed: int, began: float) -> EpisodeSession:
        return await (self._reset(row) if self.is_gymnasium else self._seed(row, seed=seed, began=began))

    async def _reset(self, row: Row) -> GymnasiumSession:
        connection = ServerConnection(self._client, self._root)
        reply = await connection.post("/reset", given_row(row), {}, repeatable=True)
        return GymnasiumSession(connection, row, reply.expect("reset"), self.lifecycle)

    async def _seed(self, row: Row, *, seed: int, began: float) -> RemoteSession:
        connection = ServerConnection(self._client, self._root)
        headers = {"Stateroom-Seed": str(seed), "Stateroom-Began": repr(began), **bearer(self._api_key)}
        if SESSION in row:
            headers["Stateroom-Session"] = row[SESSION]
        task = {name: value for name, value in given_row(row).items() if name != SESSION_ID}
        # Safe to repeat on any server: an unused session of an earlier attempt expires.
        reply = await connection.post("/seed_session", task, headers, repeatable=True)
        restart = partial(self._seed, row, seed=seed, began=began)
        return RemoteSession(self, connection, reply.expect("seed_session"), row, restart)

    async def find(self, row: Row, *, seed: int, began: float) -> EpisodeSession | None:
        if self.is_gymnasium:
            return None
        session = await self._seed(row, seed=seed, began=began)  # a Stateroom server finds it, if it exists
        if session.was_found:
            return session
        stateless = session.is_stateroom and await is_stateless(ServerConnection(self._client, self._root))
        return session if stateless else None

    async def revision(self, session: Any) -> int | None:
        admin = await self.admin()
        return None if admin.stateless else await admin.revision(session.seeded["session_id"])

    async def fork(
        self, session: Any, n: int, at: int | None = None, ids: Sequence[str] | None = None
    ) -> Sequence[EpisodeSession]:
        admin = await self.admin()
        if admin.stateless:
            return [await session.restart() for _ in range(n)]
        parent = session.seeded["session_id"]
        revision = await admin.revision(parent) if at is None else at
        return [session.fork(fork["id"], fork["token"], revision) for fork in await admin.fork(parent, n, revision)]

    def callable_in(self, row: Row) -> set[str]:
        """The callable tools: the environment's or, if it is unknown here, those in the row."""
        if self._tools:
            return {*self._tools}
        offered = request_of(row).get("tools") or []
        names = {tool["name"] for tool in offered if isinstance(tool.get("name"), str)}
        return {name for name in names if _NAME.fullmatch(name) and name not in RESERVED}

    def reads(self, name: str) -> bool:
        """Whether a tool is known to only read the state."""
        tool = self._tools.get(name)
        return tool is not None and tool.effect == "read"

    async def check(self) -> None:
        """Raise an error unless an environment's server answers at the URL."""
        try:
            reply = await ServerConnection(self._client, self._root).get_once("/")
        except ServerUnavailable as error:
            raise ServerUnavailable(f"{error}; start one with: stateroom serve ENV") from error
        if reply.status != 200 or reply.content.get("status") != "ok":
            self.is_gymnasium = await self._has_steps()
            if self.is_gymnasium:
                return
            raise NotFound(
                f"{self._root} is not the server of an environment: GET / returned {reply.status} without "
                '{"status": "ok"}'
            )

    async def _has_steps(self) -> bool:
        """Whether the server describes itself as one with only `/reset` and `/step`."""
        paths = (await ServerConnection(self._client, self._root).get_once("/openapi.json")).content.get("paths")
        return isinstance(paths, dict) and {"/reset", "/step"} <= paths.keys() and "/seed_session" not in paths

    def check_tools(self, rows: Iterable[Row]) -> None:
        """Raise `BadTask` for a row without tools, if the environment is unknown here."""
        for place, row in enumerate(rows):
            if not self.callable_in(row):
                needed = "responses_create_params.tools: required unless you name the environment"
                raise BadTask(f"task {place}: {needed}")


@asynccontextmanager
async def remote_backend(
    server: str,
    environment: Environment[Any, Any],
    connections: int,
    *,
    rows: Iterable[Row] = (),
    timeout: float = TIMEOUT_SECONDS,
    forks: bool = False,
    api_key: str | None = None,
    admin_token: str | None = None,
) -> AsyncIterator[RemoteBackend]:
    """Connect to the server at a URL for episodes of rows; with `forks`, it must be able to fork sessions."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=KEEPALIVE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),  # each episode keeps its own cookies
        timeout=aiohttp.ClientTimeout(total=timeout),
    ) as client:
        backend = RemoteBackend(client, _root(server), environment, api_key, admin_token)
        await backend.check()
        if isinstance(environment, RemoteEnvironment) and not backend.is_gymnasium:
            backend.check_tools(rows)
        if forks:
            await backend.admin()
        yield backend


def _root(server: str) -> str:
    try:
        url = URL(server)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host or url.query_string or url.fragment:
        raise NotFound(f"{server!r} is not the URL of a server, such as http://127.0.0.1:8000")
    return str(url).rstrip("/")


# Gymnasium-style servers of NeMo Gym: `/reset` begins an episode, and `/step` does the rest.

STEP_ID = "_ng_step_request_id"


class GymnasiumSession:
    """An episode of a Gymnasium-style server. Its reward is the sum over its steps.

    A step takes a response of the model, with tool calls or a message, and returns a reward. Here each call is a
    separate step, because the runner makes the calls of an answer one by one.
    """

    id: str | None = None
    parent: tuple[str, int] | None = None
    replies = True
    opens = False

    def __init__(self, connection: ServerConnection, row: Row, begun: Row, lifecycle: Lifecycle) -> None:
        self._connection = connection
        self._row = given_row(row)
        self._first = _observed(begun)
        info = begun.get("info")
        self._repeatable = isinstance(info, dict) and info.get("supports_step_idempotency") is True
        self._reward = 0.0
        self._over = False
        self.agent: AgentLog = AgentInMemory(lifecycle)

    def reads(self, name: str) -> bool:
        return False

    async def instructions(self) -> str:
        """The server's first observation."""
        return self._first or ""

    async def reply(self, message_: str, *, call_id: str) -> str | None:
        """The server's reply to a message; None when the episode is over."""
        if self._over:
            return None
        stepped = await self._step(message(message_), call_id)
        return None if self._over else _observed(stepped) or ""

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Outcome:
        """The output of a call, followed by the server's other observations."""
        if self._over:
            return Result(False, None, "the episode is over, so tools are no longer available", "unknown_tool")
        call = function_call(name, call_id or "call", **arguments)
        stepped = await self._step(call, call_id)
        info = stepped.get("info")
        outputs = info.get("tool_outputs") if isinstance(info, dict) else None
        results = [each["output"] for each in outputs or () if isinstance(each, dict) and "output" in each]
        texts = [each if isinstance(each, str) else json.dumps(each) for each in (*results, _observed(stepped) or "")]
        return Verbatim(Raw("\n\n".join(filter(None, texts)).encode()))

    async def verify(self, response: Any = None) -> Verdict:
        return Verdict(self._reward)

    async def close(self) -> None:
        """Do nothing; the server ends the episode itself."""

    async def _step(self, item: Item, step_id: str | None) -> Row:
        response = response_object(str(step_id), "stateroom", [item])
        repeatable = self._repeatable and step_id is not None
        body = {**self._row, "response": response, **({STEP_ID: step_id} if repeatable else {})}
        reply = await self._connection.post("/step", body, {}, repeatable=repeatable)
        stepped = reply.expect("step")
        self._reward += checked_reward(stepped.get("reward", 0.0), "step")
        self._over = bool(stepped.get("terminated") or stepped.get("truncated"))
        return stepped


def _observed(reply: Row) -> str | None:
    observation = reply.get("observation")
    return observation if observation is None or isinstance(observation, str) else json.dumps(observation)
