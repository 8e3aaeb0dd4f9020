"""One environment on the wire: the endpoints that seed a session, call its tools, judge it and close it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from random import getrandbits
from time import perf_counter
from typing import Any

from stateroom.environment import Environment
from stateroom.errors import (
    Conflict,
    EnvironmentFailed,
    SessionClosed,
    SessionError,
    SessionExpired,
    StateroomError,
    StoreError,
    Unauthorized,
    UnknownSession,
)
from stateroom.rollout import aggregate, verdict_fields
from stateroom.server.census import Census
from stateroom.server.faults import STATUS_OF_RESULT, error_reply, wrong_field
from stateroom.server.http import Reply, Request
from stateroom.server.keys import Keys
from stateroom.server.monitoring.metrics import Figures
from stateroom.server.response import checked_response
from stateroom.server.seeding import LONGEST_NAME, began_of, name_and_row, named, seed_of
from stateroom.server.tokens import Signer
from stateroom.session import History, Progress, Session, Sessions, new_session_id
from stateroom.session.log import checked_name, read_entry
from stateroom.state import to_json
from stateroom.state.sameness import Sameness

Endpoint = Callable[[Request], Awaitable[Reply]]

INSECURE = b"; Path=/; HttpOnly; SameSite=Lax"
SECURE = INSECURE + b"; Secure"
"""The attributes of the cookie, without and with TLS."""

COOKIE = b"stateroom_"
"""What the names of all sessions' cookies begin with; an environment's name follows."""

NO_TOKEN = "this environment has a state: seed a session, and use the token that it gives"

TOKEN_HEADER = b"x-nemo-gym-session-token"
"""Where MCP clients put the token: they have no cookies."""


class Hosted:
    """An environment, its sessions, and what its clients may ask for.

    Whoever seeds a session and the model that acts in it are different parties who may speak through the same client:
    agents post whatever tool name their model utters, with the session's cookie. So a request that comes with a
    session's token can use that session, and never get another.
    """

    def __init__(
        self,
        environment: Environment[Any, Any],
        sessions: Sessions[Any],
        signer: Signer,
        census: Census,
        figures: Figures,
        prefix: str,
        keys: Keys,
        neighbours: Mapping[str, Hosted],
    ) -> None:
        self.environment = environment
        self.sessions = sessions
        self.signer = signer
        self.census = census
        self.figures = figures
        self.prefix = prefix
        """What the paths of its endpoints begin with: nothing, or `/name`."""
        self.keys = keys
        self.neighbours = neighbours
        """All environments of the server by name, this one included."""
        self._cookie_start = COOKIE + f"{environment.name}=".encode()
        self.cookie_name = self._cookie_start[:-1].decode()

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
        if self.environment.replying is not None:
            routes["POST", "/reply"] = self.reply
        return {(method, self.prefix + path): endpoint for (method, path), endpoint in routes.items()}

    # Tokens.

    def token_of(self, request: Request) -> tuple[str, bytes] | None:
        """The subject of the request's cookie, which goes back with the reply; None if there is no cookie."""
        found = self._own(request)
        if found is None and self._has_foreign(request):
            raise Unauthorized(f"the session token in the cookie is of another environment; {NO_TOKEN}")
        self.keys.admit(request, found and found[1])
        return found

    def _own(self, request: Request) -> tuple[str, bytes] | None:
        """The same, whatever other cookies there are."""
        given = self._given(request)
        if given is None:
            return None
        subject, token = self.signer.read(given)
        self._hand_out(request, token)
        return subject, token

    def _given(self, request: Request) -> bytes | None:
        """The token in the request's cookie, good or bad."""
        start = self._cookie_start
        for cookie in request.cookies.split(b";") if request.cookies else ():
            given = cookie.strip()
            if given.startswith(start):
                return given[len(start) :]
        return None

    def _hand_out(self, request: Request, token: bytes) -> None:
        """Let the token go back with the reply, whatever that will be."""
        request.set_cookie = self._cookie(request, token)

    def _cookie(self, request: Request, token: bytes) -> bytes:
        return self._cookie_start + token + (SECURE if request.secure else INSECURE)

    def unsaid_cookie(self, request: Request) -> bytes | None:
        """The `Set-Cookie` for a good token that came with a request and does not go back yet."""
        given = self._given(request)
        if given is None or (request.set_cookie or b"").startswith(self._cookie_start):
            return None
        with suppress(Unauthorized):
            return self._cookie(request, self.signer.read(given)[1])
        return None

    def _has_foreign(self, request: Request) -> bool:
        """Whether the request comes with a cookie of another environment's session, as the calls of its model do."""
        others = [one for one in self.neighbours.values() if one is not self] if request.cookies else ()
        return any(one.unsaid_cookie(request) is not None for one in others)

    def admit_mcp(self, request: Request) -> None:
        """Let a request of an MCP client in; it has its token in a header."""
        given = request.header(TOKEN_HEADER)
        if given is None:
            self.token_of(request)
        elif self.keys:
            self.keys.admit(request, self.signer.read(given)[1])

    def subject_of(self, request: Request) -> str | None:
        """The subject of the request's cookie, which only without a state may be missing."""
        found = self.token_of(request)
        if found is None and not self.stateless:
            raise Unauthorized(NO_TOKEN)
        return found[0] if found else None

    async def session_of(self, request: Request) -> Session[Any]:
        """The session that the request's cookie gives access to."""
        found = self.token_of(request)
        return await self.session(found[0] if found else None)

    async def session(self, subject: str | None, task: Any = None, *, closed_too: bool = False) -> Session[Any]:
        """The session that a token is about; only without a state does it go without, and must be told the task."""
        if not self.stateless:
            if subject is None:
                raise Unauthorized(NO_TOKEN)
            return self.sessions.loaded(subject) or await self.sessions.open(subject, closed_too=closed_too)
        if subject is None:
            return self.sessions.stateless(
                new_session_id(), Progress(getrandbits(63), self.sessions.runtime.now()), task
            )
        session_id, seed, began = subject.split("~")
        return self.sessions.stateless(session_id, Progress(int(seed), float(began)), task)

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
                result = await session.call(name, arguments, call_id=request.call_id)
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
        shown = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"
        return error_reply(404, "unknown_tool", f"there is no tool named {shown!r}; there are: {known}")

    async def seed_session(self, request: Request) -> Reply:
        found = self._token_if_any(request)
        body = named(request, await request.json())
        if "resources_session_id" in body:
            return await self._seed_named(request, body, found)
        _, key = await self._seed(request, body, found)
        return Reply(200, to_json({"seed_key": key, **self._ways(request)}))

    async def seed(self, request: Request) -> tuple[Session[Any], str]:
        """A new session for the row in the body, and the key to seed it again with; its token goes with the reply."""
        held = self._token_if_any(request)  # first: whatever is wrong with the body, the cookie goes back
        return await self._seed(request, await request.json(), held)

    def _token_if_any(self, request: Request) -> str | None:
        """The subject of the request's cookie; one that is worth nothing is as good as none to seed with."""
        found = None
        with suppress(Unauthorized):
            found = self._own(request)
        if found is None and self._has_foreign(request):
            raise Conflict("", 0, "this client has a session of another environment: send no cookie to seed one here")
        self.keys.admit(request, found and found[1])
        return found[0] if found else None

    async def _seed(self, request: Request, row: dict[str, Any], held: str | None) -> tuple[Session[Any], str]:
        key = row.get("seed_key")
        if held is not None and isinstance(key, str) and self.signer.is_seed_key(held, key):
            return await self._seed_again(request, {name: row[name] for name in row if name != "seed_key"}, held)
        if held is None:
            return await self._new(request, row)
        raise Conflict(
            held,
            0,
            "this client has a session already: send no cookie to seed another one, or the seed_key that the reply "
            "to its seeding gave, to seed it again",
        )

    async def _seed_again(self, request: Request, row: dict[str, Any], held: str) -> tuple[Session[Any], str]:
        """A new session in the place of the one that the client has."""
        if self.stateless:
            return await self._new(request, row)
        made = await self._new(request, row, replaces=held)
        await self._retire(held, made[0].id)
        return made

    async def _retire(self, session_id: str, successor: str) -> None:
        """Close a session that another has taken the place of."""
        try:
            session = await self.sessions.open(session_id, closed_too=True)
            await self.close(session, replaced_by=successor)
        except SessionError:  # it has expired, or was swept
            return

    async def _new(
        self, request: Request, row: dict[str, Any], *, replaces: str | None = None, session_id: str | None = None
    ) -> tuple[Session[Any], str]:
        seed, began = seed_of(request), began_of(request)
        self.keys.admit_session(request)
        if self.stateless:
            self.environment.parse_task(row)
            progress = Progress(
                getrandbits(63) if seed is None else seed, self.sessions.runtime.now() if began is None else began
            )
            session = self.sessions.stateless(session_id or new_session_id(), progress)
            subject = f"{session.id}~{progress.seed}~{progress.began!r}"
        else:
            async with self.census.admission():
                session = await self._from_author(
                    "seed", self.sessions.seed(row, seed=seed, began=began, replaces=replaces, session_id=session_id)
                )
            subject = session.id
        self.figures.created(self.environment.name)
        self._hand_out(request, self.signer.sign(subject, request.key))
        return session, self.signer.seed_key(subject)

    async def _seed_named(self, request: Request, body: dict[str, Any], held: str | None) -> Reply:
        """Seed a session to which the client gives a name; to do so again is to do nothing."""
        name, row = name_and_row(body)
        ids = self.signer.session_ids(name)
        if held is not None and held.partition("~")[0] not in ids:
            raise Conflict(held, 0, "this client has a session already: send no cookie to seed another one")
        key = await self._seed_once(request, row, ids, held)
        reply: dict[str, Any] = {"resources_session_id": name}
        if key is not None:
            reply["seed_key"] = key
        if held is None:
            reply["resources_tools"] = self.environment.tool_definitions()
            reply |= self._ways(request)
        return Reply(200, to_json(reply))

    async def _seed_once(self, request: Request, row: dict[str, Any], ids: list[str], held: str | None) -> str | None:
        """Seed a session unless it is there, and hand out its token; gives its key if it is new."""
        if self.stateless:
            return (await self._new(request, row, session_id=ids[0]))[1] if held is None else None
        session = await self._first(ids)
        if session is None:
            if held is not None:  # it is gone, and whoever has its token can have no other
                raise UnknownSession(held)
            try:
                return (await self._new(request, row, session_id=ids[0]))[1]
            except StoreError:
                session = await self._first(ids)
                if session is None:  # else another request with the same name came in between
                    raise
        store = self.sessions.store
        seeded = read_entry(await History(store).seed(await store.head(session.id)))
        if seeded.input != row and not Sameness()(seeded.input, row):
            problem = "resources_session_id: a session of this name was seeded with another task; use another name"
            raise Conflict(session.id, session.revision, problem)
        self._hand_out(request, self.signer.sign(session.id, request.key))
        return None

    async def _first(self, ids: list[str]) -> Session[Any] | None:
        """The session that has one of these ids."""
        for session_id in ids:
            with suppress(UnknownSession):
                return await self.sessions.open(session_id)
        return None

    def _ways(self, request: Request) -> dict[str, Any]:
        """The session whose token the reply hands out, how MCP clients reach it, and whether its agent gets answers."""
        token = (request.set_cookie or b"").partition(b"=")[2].partition(b";")[0]
        mcp = {
            "server_name": self.environment.name,
            "url_path": f"{self.prefix}/mcp",
            "transport": "http",
            "headers": {"X-NeMo-Gym-Session-Token": token.decode()},
        }
        found = {"session_id": self.signer.read(token)[0].partition("~")[0], "mcp": mcp}
        return found if self.environment.replying is None else {**found, "replies": True}

    async def reply(self, request: Request) -> Reply:
        """What the environment's user answers to a message of the agent's.

        It wants an id, which a tool call that a model made up does not come with: to a model this is no tool.
        """
        call_id = request.call_id
        if call_id is None:
            return await self.no_tool(request, "reply")
        session = await self.session_of(request)
        message = (await request.json()).get("message")
        if not isinstance(message, str):
            raise wrong_field("message", "should be a text")
        checked_name("Idempotency-Key", call_id)
        return Reply(200, to_json({"reply": await session.reply(message, call_id=call_id)}))

    async def verify(self, request: Request) -> Reply:
        subject = self.subject_of(request)
        body = await request.json()
        verdict = await self.judge(subject, body, checked_response(body))
        fields = verdict_fields(verdict)
        if request.header(b"prefer") == b"return=minimal":  # our own runner has the row
            return Reply(200, to_json(fields), headers=((b"preference-applied", b"return=minimal"),))
        return Reply(200, to_json({**body, **fields}))

    async def judge(self, subject: str | None, row: dict[str, Any], response: Any) -> Any:
        """The verdict on a session; without a state the row is all that there is to go by."""
        task = None
        if self.stateless:
            task = self.environment.parse_task({key: value for key, value in row.items() if key != "response"})
        session = await self.session(subject, task, closed_too=True)  # its verdict is as good as before
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
            raise wrong_field("resources_session_id", "should be the id that the session was seeded with, or was given")
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
            except (UnknownSession, SessionClosed, SessionExpired):
                continue
            await self.close(session)
            return

    async def close(self, session: Session[Any], *, replaced_by: str | None = None) -> None:
        """Close a session that may be closed already."""
        if not session.closed:
            await session.close(replaced_by=replaced_by)
            self.census.leave()

    async def aggregate_metrics(self, request: Request) -> Reply:
        self.token_of(request)
        rows = (await request.json()).get("verify_responses")
        if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
            raise wrong_field("verify_responses", "should be a list of verify replies, each with its _ng_task_index")
        try:
            return Reply(200, to_json(await asyncio.to_thread(aggregate, rows)))
        except (ArithmeticError, ValueError, AttributeError):  # what `statistics` makes of them
            message = "the numbers should be finite, and not so large that their sum is not"
            raise wrong_field("verify_responses", message) from None

    async def reverify_mode(self, request: Request) -> Reply:
        return Reply(200, b'"stateless"' if self.stateless else b'"unsupported"')


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and type(row.get("_ng_task_index")) is int
