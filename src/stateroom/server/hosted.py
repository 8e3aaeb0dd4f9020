"""One environment on the wire: the endpoints that seed a session, call its tools, judge it and close it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import getrandbits
from time import perf_counter
from typing import Any

from stateroom.environment import Environment
from stateroom.errors import (
    BadTask,
    Conflict,
    InvalidArguments,
    SessionClosed,
    SessionError,
    StateroomError,
    StoreError,
    Unauthorized,
    UnknownSession,
)
from stateroom.rollout import aggregate, verdict_fields
from stateroom.server.faults import STATUS_OF_RESULT, error_reply
from stateroom.server.http import Reply, Request
from stateroom.server.metrics import Figures
from stateroom.server.tokens import Signer
from stateroom.session import Moment, Session, Sessions, new_session_id
from stateroom.state import to_json

Endpoint = Callable[[Request], Awaitable[Reply]]

TOKEN_HEADER = b"x-nemo-gym-session-token"
"""Where MCP clients put the token: they have no cookies."""

LONGEST_NAME = 200
"""Characters that a client's own name for a session may have."""


class Hosted:
    """An environment, its sessions, and what its clients may ask for.

    Whoever seeds a session and the model that acts in it are different parties who may speak through the same client:
    agents post whatever tool name their model utters, with the session's cookie. So a request that comes with a
    session's token can use that session, and never get another.
    """

    def __init__(
        self, environment: Environment[Any, Any], sessions: Sessions[Any], signer: Signer, figures: Figures, prefix: str
    ) -> None:
        self.environment = environment
        self.sessions = sessions
        self.signer = signer
        self.figures = figures
        self.prefix = prefix
        """What the paths of its endpoints begin with: nothing, or `/name`."""
        self.cookie_name = f"stateroom_{environment.name}"
        self._cookie_start = f"{self.cookie_name}=".encode()

    @property
    def stateless(self) -> bool:
        return self.environment.state_type is None

    def routes(self) -> dict[tuple[str, str], Endpoint]:
        """The endpoints by method and path."""
        routes: dict[tuple[str, str], Endpoint] = {
            ("GET", "/"): self.root,
            ("POST", "/seed_session"): self.seed_session,
            ("POST", "/verify"): self.verify,
            ("POST", "/close_session"): self.close_session,
            ("POST", "/aggregate_metrics"): self.aggregate_metrics,
            ("GET", "/reverify_mode"): self.reverify_mode,
        }
        for name in self.environment.tools:
            routes["POST", f"/{name}"] = self._tool(name)
        return {(method, self.prefix + path): endpoint for (method, path), endpoint in routes.items()}

    # Tokens.

    def token_of(self, request: Request) -> tuple[str, bytes] | None:
        """The subject of the request's cookie, which goes back with the reply; None if there is no cookie."""
        start = self._cookie_start
        for name, value in request.scope["headers"]:
            if name == b"cookie" and start in value:
                given = value.partition(start)[2].partition(b";")[0].strip()
                subject, token = self.signer.read(given)
                self._hand_out(request, token)
                return subject, token
        return None

    def _hand_out(self, request: Request, token: bytes) -> None:
        secure = b"; Secure" if request.scope["scheme"] == "https" else b""
        request.cookie = self._cookie_start + token + b"; Path=/; HttpOnly; SameSite=Lax" + secure

    async def session_of(self, request: Request) -> Session[Any]:
        """The session that the request's cookie gives access to."""
        found = self.token_of(request)
        if found is not None:
            return await self.session(found[0])
        if self.stateless:
            return self.sessions.stateless(new_session_id(), Moment(getrandbits(63), self.sessions.now()))
        raise Unauthorized("this environment has a state: seed a session, and send the cookie that it gives")

    async def session(self, subject: str) -> Session[Any]:
        """The session that a token is about."""
        if self.stateless:
            session_id, seed, began = subject.split("~")
            return self.sessions.stateless(session_id, Moment(int(seed), float(began)))
        return self.sessions.at_hand(subject) or await self.sessions.open(subject)

    # Endpoints.

    async def root(self, request: Request) -> Reply:
        self.token_of(request)
        return Reply(200, b'{"status":"ok"}')

    def _tool(self, name: str) -> Endpoint:
        figures = self.figures.of_tool(self.environment.name, name)

        async def call(request: Request) -> Reply:
            start = perf_counter()
            outcome = "error"
            try:
                session = await self.session_of(request)
                arguments = await request.json()
                result = await session.call(name, arguments, call_id=call_id_of(request))
                if result.ok:
                    outcome = "ok"
                    return Reply(200, to_json(result.output))
                outcome = str(result.code)
                return Reply(STATUS_OF_RESULT[result.code], to_json(result.content))
            finally:
                figures.called(outcome, perf_counter() - start)

        return call

    async def no_tool(self, request: Request, name: str) -> Reply:
        """What a path gets that is nothing of the environment's: perhaps a tool that the model made up."""
        self.token_of(request)
        known = ", ".join(sorted(self.environment.tools)) or "none"
        return error_reply(404, "unknown_tool", f"there is no tool named {name!r}; there are: {known}")

    async def seed_session(self, request: Request) -> Reply:
        found = self._token_if_any(request)
        body = await request.json()
        if "resources_session_id" in body:
            return await self._seed_named(request, body, found)
        session, key = await self._seed(request, body, found)
        return Reply(200, to_json({"session_id": session.id, "seed_key": key, "mcp": self._mcp(request)}))

    async def seed(self, request: Request, row: dict[str, Any]) -> tuple[Session[Any], str]:
        """A new session for a row, and the key to seed it again with; the token goes back with the reply."""
        return await self._seed(request, row, self._token_if_any(request))

    def _token_if_any(self, request: Request) -> str | None:
        """The subject of the request's cookie; one that is worth nothing is as good as none to seed with."""
        try:
            found = self.token_of(request)
        except Unauthorized:
            return None
        return found[0] if found else None

    async def _seed(self, request: Request, row: dict[str, Any], held: str | None) -> tuple[Session[Any], str]:
        row, key = {**row}, row.get("seed_key")
        if held is None:
            return await self._new(request, row)
        if not isinstance(key, str) or not self.signer.is_seed_key(held, key):
            raise Conflict(
                held,
                0,
                "this client has a session already: send no cookie to seed another one, or the seed_key that the reply "
                "to its seeding gave, to seed it again",
            )
        del row["seed_key"]
        made = await self._new(request, row, replaces=None if self.stateless else held)
        if not self.stateless:
            await self._retire(held, made[0].id)
        return made

    async def _retire(self, session_id: str, successor: str) -> None:
        """Close a session that another has taken the place of."""
        try:
            session = await self.sessions.open(session_id, closed_too=True)
            await session.close(replaced_by=successor)
        except SessionError:  # it has expired, or was swept
            return

    async def _new(
        self, request: Request, row: dict[str, Any], *, replaces: str | None = None, session_id: str | None = None
    ) -> tuple[Session[Any], str]:
        seed, began = _seed_of(request), _began_of(request)
        if self.stateless:
            self.environment.parse_task(row)
            moment = Moment(getrandbits(63) if seed is None else seed, self.sessions.now() if began is None else began)
            session = self.sessions.stateless(session_id or new_session_id(), moment)
            subject = f"{session.id}~{moment.seed}~{moment.began!r}"
        else:
            session = await self._from_author(
                "seed", self.sessions.seed(row, seed=seed, began=began, replaces=replaces, session_id=session_id)
            )
            subject = session.id
        self.figures.created(self.environment.name)
        self._hand_out(request, self.signer.sign(subject))
        return session, self.signer.seed_key(subject)

    async def _seed_named(self, request: Request, body: dict[str, Any], held: str | None) -> Reply:
        """Seed a session to which the client gives a name; to do so again is to do nothing."""
        name = body["resources_session_id"]
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            problem = f"resources_session_id: should be a text of 1 to {LONGEST_NAME} characters"
            raise InvalidArguments(problem, {"resources_session_id": problem})
        ids = self.signer.session_ids(name)
        if held is not None and held.partition("~")[0] not in ids:
            raise Conflict(held, 0, "this client has a session already: send no cookie to seed another one")
        row = body.get("task_data", {key: value for key, value in body.items() if key != "resources_session_id"})
        reply: dict[str, Any] = {"resources_session_id": name}
        if held is None and not await self._join(request, ids):
            try:
                _, reply["seed_key"] = await self._new(request, row, session_id=ids[0])
            except StoreError:
                if not await self._join(request, ids):  # else another request with the same name came in between
                    raise
        if held is None:
            reply["resources_tools"] = self.environment.tool_definitions()
            reply["mcp"] = self._mcp(request)
        return Reply(200, to_json(reply))

    async def _join(self, request: Request, ids: list[str]) -> bool:
        """Hand out the token of the session that was seeded before under one of these ids, if there is one."""
        if self.stateless:
            return False
        for session_id in ids:
            try:
                session = await self.sessions.open(session_id)
            except UnknownSession:
                continue
            self._hand_out(request, self.signer.sign(session.id))
            return True
        return False

    def _mcp(self, request: Request) -> dict[str, Any]:
        """How an MCP client reaches the session whose token the reply hands out."""
        cookie = request.cookie or b""
        token = cookie.partition(b"=")[2].partition(b";")[0].decode()
        return {
            "server_name": self.environment.name,
            "url_path": f"{self.prefix}/mcp",
            "transport": "http",
            "headers": {"X-NeMo-Gym-Session-Token": token},
        }

    async def verify(self, request: Request) -> Reply:
        found = self.token_of(request)
        body = await request.json()
        response = body.get("response")
        if response is not None and not isinstance(response, dict):
            problem = "response: should be a Responses object"
            raise InvalidArguments(problem, {"response": problem})
        verdict = await self.judge(found[0] if found else None, body, response)
        return Reply(200, to_json({**body, **verdict_fields(verdict)}))

    async def judge(self, subject: str | None, row: dict[str, Any], response: Any) -> Any:
        """The verdict on a session; without a state the row is all that there is to go by."""
        if self.stateless:
            task = self.environment.parse_task({key: value for key, value in row.items() if key != "response"})
            moment = Moment(0, self.sessions.now())
            session = self.sessions.stateless(subject.partition("~")[0] if subject else "", moment, task)
        elif subject is None:
            raise Unauthorized("this environment has a state: seed a session, and send the cookie that it gives")
        else:
            session = await self.session(subject)
        return await self._from_author("verify", session.verify(response))

    async def _from_author(self, what: str, work: Awaitable[Any]) -> Any:
        """Await a function of the author's; what it raises by mistake is told by its name alone."""
        try:
            return await work
        except StateroomError:
            raise
        except Exception as error:
            raise EnvironmentFailed(f"{what} failed: unexpected {type(error).__name__}") from error

    async def close_session(self, request: Request) -> Reply:
        """Close the session that the body names: the cookie alone will not do, which a model's call comes with too."""
        found = self.token_of(request)
        name = (await request.json()).get("resources_session_id")
        if not isinstance(name, str):
            problem = "resources_session_id: should be the id that the session was seeded with, or was given then"
            raise InvalidArguments(problem, {"resources_session_id": problem})
        ids = [*self.signer.session_ids(name), *([name] if found else [])]
        if found is not None and found[0].partition("~")[0] not in ids:
            raise Conflict(found[0], 0, "this cookie is of another session than the one that the body names")
        if not self.stateless:
            await self._close_first([found[0]] if found else ids)
        return Reply(200, to_json({"resources_session_id": name}))

    async def _close_first(self, ids: list[str]) -> None:
        for session_id in ids:
            try:
                session = await self.sessions.open(session_id, closed_too=True)
            except (UnknownSession, SessionClosed):
                continue
            await session.close()
            return

    async def aggregate_metrics(self, request: Request) -> Reply:
        self._token_if_any(request)
        rows = (await request.json()).get("verify_responses")
        problem = "verify_responses: should be a list of verify replies, each with its _ng_task_index"
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise InvalidArguments(problem, {"verify_responses": problem})
        if not all(type(row.get("_ng_task_index")) is int for row in rows):
            raise InvalidArguments(problem, {"verify_responses": problem})
        return Reply(200, to_json(aggregate(rows)))

    async def reverify_mode(self, request: Request) -> Reply:
        self._token_if_any(request)
        return Reply(200, b'"stateless"' if self.stateless else b'"unsupported"')


class EnvironmentFailed(StateroomError):
    """A function of the author's raised what it was not meant to."""


def call_id_of(request: Request) -> str | None:
    """The id that a client gave a call, so that to send it again is to do nothing."""
    value = request.header(b"idempotency-key")
    return value.decode("latin-1") if value else None


def _seed_of(request: Request) -> int | None:
    """Our own runner says what the session's chance comes from."""
    value = request.header(b"stateroom-seed")
    if value is None:
        return None
    if not value.isdigit() or len(value) > 20:
        raise BadTask("the header Stateroom-Seed: should be a whole number")
    return int(value)


def _began_of(request: Request) -> float | None:
    """Our own runner says when the session's clock starts."""
    value = request.header(b"stateroom-began")
    try:
        return None if value is None else float(value)
    except ValueError:
        raise BadTask("the header Stateroom-Began: should be seconds since 1970") from None
