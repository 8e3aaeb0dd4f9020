"""Episodes on a server: one of Stateroom's own, or any that speaks the protocol of NeMo Gym's resources servers."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import isfinite
from typing import Any, NamedTuple, get_args

import aiohttp
from msgspec import Raw
from yarl import URL

from stateroom.agent import AgentLog, Outcome
from stateroom.environment import RESERVED, Environment
from stateroom.errors import BadVerdict, JudgeFailed, NotFound, ServerFailed, ServerUnavailable
from stateroom.rollout.forking import Forking, find_forking, is_stateless
from stateroom.rollout.wire import Reply, Wire
from stateroom.rollout.world import SESSION, Origin, Row, Seat, given_row
from stateroom.session import AgentInMemory, Code, Result

logger = logging.getLogger(__name__)

SECONDS = 60.0
"""What a request may take."""

KEPT = 4.0
"""Seconds that an idle connection is kept: less than servers keep theirs, so that a dead one is never used."""

FOR_THE_MODEL = frozenset(get_args(Code))
"""The codes of failed calls that a model may read and act on; any other ends the episode."""

OURS = ("responses_create_params", "response")
"""What the runner knows better than a server that sends it back."""

NAMES_A_SESSION = "resources_session_id"
"""With this field a seed asks for one session however often it comes. Each episode needs one of its own."""

_NAME = re.compile(r"[\w-]+")


class Verbatim(NamedTuple):
    """What a server replied to a call: its letters are what the model is shown."""

    content: Raw
    code: str | None = None
    """Why the call failed, if the server tells."""


class Seeding(NamedTuple):
    """How a session came to be."""

    reply: Row
    row: Row
    again: Callable[[], Awaitable[Seat]]
    """Seeds another one just like it."""


class RemoteSeat:
    """A session that a server keeps."""

    def __init__(self, world: RemoteWorld, wire: Wire, seeding: Seeding, origin: Origin | None = None) -> None:
        self._world = world
        self._wire = wire
        self._seeding = seeding
        self._origin = origin
        seeded, row = seeding.reply, seeding.row
        found = seeded.get("session_id", seeded.get(NAMES_A_SESSION))
        self._id = found if isinstance(found, str) else None
        self.knows_ids = "session_id" in seeded
        """True of Stateroom's own servers: they do nothing twice that comes twice with the same id."""
        self._tools = world.callable_in(row)
        self.record: AgentLog = AgentInMemory(lifecycle=world.lifecycle)
        self._episode = {"rollout_id": f"{row['_ng_task_index']}-{row['_ng_rollout_index']}", "attempt": 0}

    @property
    def id(self) -> str | None:
        return self._id

    @property
    def was_there(self) -> bool:
        """Whether to seed it was to find it, which only a server of ours tells: what is new can be seeded again."""
        return self.knows_ids and "seed_key" not in self._seeding.reply

    @property
    def origin(self) -> Origin | None:
        return self._origin

    @property
    def replies(self) -> bool:
        return self.knows_ids and self._seeding.reply.get("replies") is True

    def reads(self, name: str) -> bool:
        return self._world.reads(name)

    async def reply(self, message: str, *, call_id: str) -> str | None:
        if not self.replies:
            return None
        reply = await self._wire.post("/reply", {"message": message}, {"Idempotency-Key": call_id}, repeatable=True)
        found = reply.content.get("reply", ...) if reply.status == 200 else ...
        if not isinstance(found, str | None):
            raise reply.failure("reply")
        return found

    async def revision(self) -> int | None:
        forking = await self._world.forking()
        return None if forking.stateless else await forking.revision(self._seeding.reply["session_id"])

    async def fork(self, n: int, at: int | None = None, ids: Sequence[str] | None = None) -> list[Seat]:
        forking = await self._world.forking()
        reply, row, again = self._seeding
        if forking.stateless:
            return [await again() for _ in range(n)]
        origin, forks = await forking.fork(reply["session_id"], n, at)
        cookie = f"stateroom_{reply['mcp']['server_name']}"  # where such a server looks for a session's token
        return [
            RemoteSeat(
                self._world,
                self._wire.twin({cookie: fork.token}),
                Seeding({**reply, "session_id": fork.id}, row, again),
                origin,
            )
            for fork in forks
        ]

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Outcome:
        if name not in self._tools:  # a server's other endpoints are not for the model
            known = ", ".join(sorted(self._tools)) or "none"
            return Result(False, None, f"there is no tool named {name!r}; there are: {known}", "unknown_tool")
        headers = {} if call_id is None else {"Idempotency-Key": call_id}
        repeatable = self.knows_ids and call_id is not None
        reply = await self._wire.post(f"/{name}", arguments, headers, repeatable=repeatable)
        code = reply.error.get("code") if reply.status >= 400 else None
        if self.knows_ids and reply.status >= 400 and code not in FOR_THE_MODEL:
            raise reply.failure(name)
        if code == "needs_input":
            asked = reply.error.get("message")
            raise ServerFailed(f"{name} asks {asked!r}: only without a server can an agent wait for an answer")
        return Verbatim(Raw(reply.text.encode()), code)

    async def verify(self, row: Row, response: Any) -> Row:
        sent = {**given_row(row), "response": response if self.knows_ids else _strictly(response)}
        headers = {"Prefer": "return=minimal"}  # the verdict alone will do
        reply = await self._wire.post("/verify", sent, headers, repeatable=self.knows_ids)
        if reply.error.get("code") == "judge_failed":
            raise JudgeFailed(reply.error.get("message") or reply.text)
        if reply.status != 200:
            raise reply.failure("verify")
        found = _verdict(sent, reply)
        if "reward" not in found:
            raise BadVerdict(f"the server's reply to verify has no reward: {reply.text:.100}")
        reward = found["reward"]
        if type(reward) not in (int, float) or not isfinite(reward):
            raise BadVerdict(f"the reward in the server's reply to verify is not a number: {json.dumps(reward):.100}")
        return found

    async def close(self) -> None:
        """Close the session; should that fail, it ends when its time is up, and the verdict is as good."""
        if self._id is None:
            return
        body = {NAMES_A_SESSION: self._id, "episode_id": self._episode}
        try:
            await self._wire.post("/close_session", body, {}, repeatable=self.knows_ids)
        except ServerUnavailable as error:
            logger.info("session %s was not closed: %s", self._id, error)


def _strictly(response: Any) -> Any:
    """A response to the letter of the Responses API, where what an assistant says has an id: NeMo Gym insists on it."""

    def named(place: int, item: Row) -> Row:
        said = item.get("type") == "message" and item.get("role") == "assistant"
        return {"id": f"msg_{place}", **item} if said else item

    return {**response, "output": [named(place, item) for place, item in enumerate(response["output"])]}


def _verdict(sent: Row, reply: Reply) -> Row:
    """What a reply to verify says that the request did not say already."""
    found = reply.content
    if reply.headers.get("Preference-Applied") == "return=minimal":
        return found
    return {
        name: value
        for name, value in found.items()
        if name == "reward" or (name not in OURS and not _same(sent.get(name, _ABSENT), value))
    }


_ABSENT = object()


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


class RemoteWorld:
    """The sessions of an environment on a server; one without tools is not known here."""

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
        self._forking: Forking | None = None

    async def forking(self) -> Forking:
        """What forks the sessions, if the server has it and lets us."""
        if self._forking is None:
            self._forking = await find_forking(self._client, self._root, self._admin_token)
        return self._forking

    async def seed(self, row: Row, *, seed: int, began: float) -> RemoteSeat:
        wire = Wire(self._client, self._root)
        headers = {"Stateroom-Seed": str(seed), "Stateroom-Began": repr(began)}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        if SESSION in row:
            headers["Stateroom-Session"] = row[SESSION]
        task = {name: value for name, value in given_row(row).items() if name != NAMES_A_SESSION}
        # It can be repeated on any server: the first session, if there is one, is left to end by itself.
        reply = await wire.post("/seed_session", task, headers, repeatable=True)
        if reply.status != 200:
            raise reply.failure("seed_session")
        return RemoteSeat(self, wire, Seeding(reply.content, row, partial(self.seed, row, seed=seed, began=began)))

    async def find(self, row: Row, *, seed: int, began: float) -> Seat | None:
        seat = await self.seed(row, seed=seed, began=began)  # which on a server of ours finds it, if it is there
        if seat.was_there or (seat.knows_ids and await is_stateless(Wire(self._client, self._root))):
            return seat
        return None

    def callable_in(self, row: Row) -> set[str]:
        """The tools that can be called: the environment's or, if they are not known, those that the row offers."""
        if self._tools:
            return {*self._tools}
        offered = row.get("responses_create_params", {}).get("tools") or []
        names = {tool["name"] for tool in offered if isinstance(tool.get("name"), str)}
        return {name for name in names if _NAME.fullmatch(name) and name not in RESERVED}

    def reads(self, name: str) -> bool:
        """Whether a tool is known to only look at the state."""
        tool = self._tools.get(name)
        return tool is not None and tool.effect == "read"

    async def greet(self) -> None:
        """See that there is a server."""
        try:
            reply = await Wire(self._client, self._root).look("/")
        except ServerUnavailable as error:
            raise ServerUnavailable(f"{error}; start one with: stateroom serve ENV") from error
        if reply.status != 200 or reply.content.get("status") != "ok":
            raise NotFound(
                f"what answers at {self._root} is not an environment's server: GET / got {reply.status}; "
                'one would say 200 {"status": "ok"}'
            )


@asynccontextmanager
async def remote_world(
    server: str,
    environment: Environment[Any, Any],
    connections: int,
    *,
    seconds: float = SECONDS,
    forking: bool = False,
    api_key: str | None = None,
    admin_token: str | None = None,
) -> AsyncIterator[RemoteWorld]:
    """The server at a URL, if it is there; with `forking`, if it also forks sessions for that admin token."""
    root = _root(server)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=KEPT),
        cookie_jar=aiohttp.DummyCookieJar(),  # cookies are each episode's own
        timeout=aiohttp.ClientTimeout(total=seconds),
    ) as client:
        world = RemoteWorld(client, root, environment, api_key, admin_token)
        await world.greet()
        if forking:
            await world.forking()
        yield world


def _root(server: str) -> str:
    try:
        url = URL(server)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host or url.query_string or url.fragment:
        raise NotFound(f"{server!r} is not the URL of a server; one is http://127.0.0.1:8000")
    return str(url).rstrip("/")
