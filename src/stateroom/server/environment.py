"""One served environment: the endpoints that seed a session, call its tools and close it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import cached_property
from random import getrandbits
from time import perf_counter
from typing import Any, TypeVar

from stateroom.environment import Environment, Tool
from stateroom.errors import (
    BadTask,
    Contradiction,
    EnvironmentFailed,
    SessionClosed,
    SessionError,
    SessionExpired,
    StateroomError,
    StoreError,
    Unauthorized,
    UnknownSession,
)
from stateroom.server.access import Keys
from stateroom.server.http import (
    STATUS_OF_RESULT,
    Endpoint,
    HTTPRequest,
    HTTPResponse,
    ProbeReply,
    error_response,
    json_response,
    wrong_field,
)
from stateroom.server.metrics import Metrics
from stateroom.server.operation import ACTING, SLOW, Operation, get, post
from stateroom.server.schemas import return_type, task_of
from stateroom.server.sweep import SessionCount
from stateroom.server.tokens import TOKEN_HEADER, SessionCookies, Signer, VerifiedToken
from stateroom.server.wire import (
    MAX_NAME_CHARACTERS,
    AgentMessage,
    CallHeaders,
    CloseBody,
    CloseReply,
    Instructions,
    MCPAddress,
    NamedSeed,
    NamedSeedReply,
    ReplyHeaders,
    SeedFields,
    SeedHeaders,
    SeedReply,
    UserReply,
    checked_session_name,
    is_typed_seed,
    name_and_row,
    seed_and_start,
)
from stateroom.session import (
    History,
    Progress,
    Session,
    Sessions,
    checked_name,
    new_session_id,
    read_entry,
    unknown_tool,
)
from stateroom.state import deep_equal, to_json

T = TypeVar("T")

FOREIGN_TOKEN = (
    "the session token in the cookie belongs to another environment; send no cookie, or one from a session seeded here"
)

NO_TOKEN = "this environment needs a session: seed one, and send the token from the reply"


class ServedEnvironment:
    """An environment, its sessions, and the endpoints of its clients.

    The client that seeds a session and the model that acts in it are different parties, but may use the same HTTP
    client: agents post any tool name that their model gives, with the session's cookie. So a request that has a
    session's token can use that session, and never get another.
    """

    def __init__(
        self,
        environment: Environment[Any, Any],
        sessions: Sessions[Any],
        signer: Signer,
        count: SessionCount,
        metrics: Metrics,
        prefix: str,
        keys: Keys,
        neighbours: Mapping[str, ServedEnvironment],
        *,
        gym_compat: bool,
        ignores_extra: bool,
    ) -> None:
        self.environment = environment
        self.name = environment.name
        self.sessions = sessions
        self.signer = signer
        self.cookies = SessionCookies(environment.name, signer)
        self.count = count
        self.metrics = metrics
        self.prefix = prefix
        """Start of the paths of its endpoints: nothing, or `/name`."""
        self.keys = keys
        self.neighbours = neighbours
        """All environments of the server by name, this one included."""
        self.stateless = environment.state_type is None
        self.gym_compat = gym_compat
        """Whether clients may do what NeMo Gym's servers allow them."""
        self._parameters = {
            name: frozenset(tool.definition["parameters"]["properties"])
            for name, tool in environment.tools.items()
            if ignores_extra
        }
        """The parameters of each tool, if other arguments are ignored."""

        token: dict[str, list[str]] = {f"{self.name}.session": []}
        with_token, optional = {"security": [token]}, {"security": [{}, token]}
        self.closing: dict[str, Any] = {**optional, "errors": ACTING}
        self.seeding: dict[str, Any] = {**optional, "errors": (409, 410, *SLOW), "headers": SeedHeaders}
        self.seeding["gives_cookie"] = True
        self.acting: dict[str, Any] = {**with_token, "errors": (*ACTING, *SLOW)}
        if self.stateless:  # its sessions cannot be lost, and need not be there
            self.acting = {**optional, "errors": (401, *SLOW)}
        self.asking: dict[str, Any] = {**self.acting, "errors": (502, *self.acting["errors"])}
        """Shared declarations of endpoints that close a session, seed one, act in one, or also ask a model."""

    def operations(self) -> list[Operation]:
        """The endpoints, in the order of an episode."""
        environment = self.environment
        seed = post(
            "/seed_session",
            self.seed_session,
            detail=lambda: [(self.task, SeedFields), NamedSeed[self.task]],  # type: ignore[name-defined]
            reply=SeedReply | NamedSeedReply,
            **self.seeding,
        )
        reply = post("/reply", self.reply, body=AgentMessage, reply=UserReply, headers=ReplyHeaders, **self.asking)
        instructions = get("/instructions", self.instructions, reply=Instructions, **self.asking)
        return [
            seed,
            *map(self._tool_operation, environment.tools.values()),
            *([] if environment.reply_tool is None else [reply]),
            *([] if environment.instructions_tool is None else [instructions]),
            post("/close_session", self.close_session, body=CloseBody, reply=CloseReply, **self.closing),
            *([get("/", self.root, reply=ProbeReply, errors=(401,))] if self.prefix else []),
        ]

    def _tool_operation(self, tool: Tool) -> Operation:
        return post(
            f"/{tool.name}",
            self._tool(tool.name),
            name=tool.name,
            about=tool.definition["description"],
            effect=tool.effect,
            body=tool.arguments,
            reply=return_type(tool),
            headers=CallHeaders,
            **self.acting,
        )

    @cached_property
    def task(self) -> Any:
        """The type of the tasks, for the document."""
        return task_of(self.environment)

    # Tokens.

    def token_of(self, request: HTTPRequest) -> VerifiedToken | None:
        """The token in the request's cookie, which goes back with the response; None without a cookie."""
        token = self.cookies.read(request)
        if token is None and self._has_foreign(request):
            raise Unauthorized(FOREIGN_TOKEN)
        self.keys.admit(request, token and token.token)
        return token

    def _has_foreign(self, request: HTTPRequest) -> bool:
        """Whether a request has the cookie of another environment's session, as the calls of its model do."""
        others = [one for one in self.neighbours.values() if one is not self] if request.cookies else ()
        return any(one.cookies.missing(request) is not None for one in others)

    def admit_mcp(self, request: HTTPRequest) -> None:
        """Admit a request of an MCP client, which has its token in a header."""
        given = request.headers.get(TOKEN_HEADER)
        if given is None:
            self.token_of(request)
        elif self.keys:
            self.keys.admit(request, self.signer.read(given)[1])

    def subject_of(self, request: HTTPRequest, *, optional: bool = False) -> str | None:
        """The subject of the request's token; only without a state, with `gym_compat` or if `optional`, is it None."""
        token = self.token_of(request)
        if token is None and not (self.stateless or self.gym_compat or optional):
            raise Unauthorized(NO_TOKEN)
        return token.subject if token else None

    async def session(self, subject: str | None, task: Any = None, *, include_closed: bool = False) -> Session[Any]:
        """The session of a token. Without a state there may be no token, and `task` is the session's task."""
        if not self.stateless:
            if subject is None:
                raise Unauthorized(NO_TOKEN)
            return self.sessions.loaded(subject) or await self.sessions.open(subject, include_closed=include_closed)
        if subject is None:
            progress = Progress(getrandbits(63), self.sessions.runtime.now())
            return self.sessions.stateless(new_session_id(), progress, task)
        session_id, seed, began = subject.split("~")
        return self.sessions.stateless(session_id, Progress(int(seed), float(began)), task)

    # Tools.

    def _tool(self, name: str) -> Endpoint:
        """The endpoint of a tool. Every call of every episode passes here, so it asks the caches first."""
        meter = self.metrics.tool(self.name, name)
        known, now, sessions = self.cookies.known, self.signer.now, self.sessions
        cached, drops = not self.stateless and not self.keys, name in self._parameters

        async def call(request: HTTPRequest) -> HTTPResponse:
            start = perf_counter()
            outcome = "error"
            try:
                token = known.get((request.cookies, request.secure)) if cached else None
                if token is not None and token.until > now():
                    request.set_cookie = token.set_cookie
                    session = sessions.loaded(token.subject) or await sessions.open(token.subject)
                else:
                    session = await self._session_of_call(request)
                given = self.known_arguments(name, request.json()) if drops else request.json()
                result = await session.call(name, given, call_id=request.call_id)
                if result.ok:
                    outcome = "ok"
                    return HTTPResponse(200, to_json(result.output))
                outcome = str(result.code)
                return HTTPResponse(STATUS_OF_RESULT[result.code], to_json(result.content))
            finally:
                meter.count(outcome, perf_counter() - start)

        return call

    def known_arguments(self, name: str, given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The arguments of a call, without those that the tool does not have if these are ignored."""
        if not given or name not in self._parameters:
            return given
        return {key: value for key, value in given.items() if key in self._parameters[name]}

    async def _session_of_call(self, request: HTTPRequest) -> Session[Any]:
        """The session of a tool call. With `gym_compat`, a call without a token gets one with a default state."""
        subject = self.subject_of(request)
        if subject is not None or self.stateless:
            return await self.session(subject)
        try:
            return (await self.new_session(request, {}, unseeded=True))[0]
        except BadTask as error:
            raise Unauthorized(f"{NO_TOKEN}; a default state is not possible: {error}") from error

    async def no_tool(self, request: HTTPRequest, name: str) -> HTTPResponse:
        """The response to a path that the environment does not have; it may be a tool that the model made up."""
        start = perf_counter()
        self.token_of(request)
        if request.scope["method"] == "POST":
            self.metrics.tool(self.name, name).count("unknown_tool", perf_counter() - start)
        shown = name if len(name) <= MAX_NAME_CHARACTERS else f"{name[:MAX_NAME_CHARACTERS]}…"
        problem = unknown_tool(shown, self.environment.tools)
        return error_response(404, problem.code, str(problem))

    # Seeding.

    async def seed_session(self, request: HTTPRequest) -> HTTPResponse:
        """Seed a session.

        The body is the whole task row, and the cookie of the reply identifies the session. A request with the cookie of
        a live session is refused, because the model may have sent it. To seed the session again, add the `seed_key`
        from the reply to the row: a new session replaces the old one. A client may name a session, with
        `resources_session_id`; seeding that name again joins the session.
        """
        held = self._held(request)
        body = request.json()
        name, row = name_and_row(request, body)
        if name is not None:
            return await self._seed_named(request, name, row, held, typed=is_typed_seed(body))
        _, key = await self._seed(request, row, held)
        return json_response(SeedReply(seed_key=key, **self._addresses(request)))

    async def seed(self, request: HTTPRequest) -> tuple[Session[Any], str]:
        """A new session for the row in the body, and its seed key; the response hands out its token."""
        held = self._held(request)  # first: the cookie goes back, whatever is wrong with the body
        return await self._seed(request, request.json(), held)

    def admit_newcomer(self, request: HTTPRequest) -> None:
        """Admit a request of a client without a session; with one it may be the call of a model, and is refused."""
        held = self._held(request)
        if held is not None:
            raise Contradiction("this client already has a session; send no cookie here")

    def _held(self, request: HTTPRequest) -> str | None:
        """The subject of the request's token. One that is not valid is ignored: it gives access to nothing."""
        token = None
        with suppress(Unauthorized):
            token = self.cookies.read(request)
        if token is None and self._has_foreign(request):
            raise Contradiction("this client has a session of another environment; to seed one here, send no cookie")
        self.keys.admit(request, token and token.token)
        return token.subject if token else None

    async def _seed(self, request: HTTPRequest, row: dict[str, Any], held: str | None) -> tuple[Session[Any], str]:
        if held is None:
            return await self.new_session(request, row)
        key = row.get("seed_key")
        if not self.gym_compat and not (isinstance(key, str) and self.signer.is_seed_key(held, key)):
            raise Contradiction(
                "this client already has a session; to seed another one, send no cookie; to seed it again, send the "
                "seed_key from the reply that seeded it"
            )
        row = {name: value for name, value in row.items() if name != "seed_key"}
        if self.stateless:
            return await self.new_session(request, row)
        made = await self.new_session(request, row, replaces=held)
        with suppress(SessionError):  # the old session may have expired, or been swept
            await self.close(await self.sessions.open(held, include_closed=True), replaced_by=made[0].id)
        return made

    async def new_session(
        self,
        request: HTTPRequest,
        row: dict[str, Any],
        *,
        replaces: str | None = None,
        session_id: str | None = None,
        unseeded: bool = False,
    ) -> tuple[Session[Any], str]:
        """A new session for a row, and its seed key; the response hands out its token.

        An `unseeded` one has the defaults of its state's type, if there is too little in the row to seed it.
        """
        seed, began = seed_and_start(request)
        async with self.creating(request):
            if self.stateless:
                self.environment.parse_task(row)
                seed = getrandbits(63) if seed is None else seed
                progress = Progress(seed, self.sessions.runtime.now() if began is None else began)
                session = self.sessions.stateless(session_id or new_session_id(), progress)
                subject = f"{session.id}~{progress.seed}~{progress.began!r}"
            else:
                seeding = self.sessions.seed(
                    row,
                    seed=seed,
                    began=began,
                    replaces=replaces,
                    session_id=session_id,
                    incomplete=session_id is None,  # who names a session sends the whole row
                    default_state=unseeded,
                )
                session = await guard_user_code("seed", seeding)
                subject = session.id
        self.cookies.hand_out(request, subject)
        return session, self.signer.seed_key(subject)

    @asynccontextmanager
    async def creating(self, request: HTTPRequest | None = None, *, sessions: int = 1) -> AsyncIterator[None]:
        """Count sessions that are created in this context, also for the API key of a client's request.

        Raises `RateLimited`, and `Busy` if the server has reached its limit of sessions.
        """
        if request is not None:
            self.keys.admit_session(request)
        async with nullcontext() if self.stateless else self.count.admit(sessions):
            yield
        self.metrics.created(self.name, sessions)

    async def _seed_named(
        self, request: HTTPRequest, name: str, row: dict[str, Any], held: str | None, *, typed: bool
    ) -> HTTPResponse:
        """Seed a session to which the client gives a name; a session of this name is joined.

        A `typed` request is answered as its sender's type demands, with nothing else.
        """
        ids = self.signer.session_ids(name)
        if held is not None and held.partition("~")[0] not in ids:
            raise Contradiction("this client already has a session; to seed another one, send no cookie")
        key = await self._seed_once(request, row, ids, held)
        if typed:
            tools = self._addresses(request)["mcp"]
            return json_response(NamedSeedReply(resources_session_id=name, resources_tools=tools))
        addresses = self._addresses(request) if held is None else {}
        return json_response(NamedSeedReply(resources_session_id=name, seed_key=key, **addresses))

    async def _seed_once(
        self, request: HTTPRequest, row: dict[str, Any], ids: list[str], held: str | None
    ) -> str | None:
        """Seed a session unless it exists, and hand out its token; returns the seed key of a new session."""
        if self.stateless:
            return (await self.new_session(request, row, session_id=ids[0]))[1] if held is None else None
        made: list[str] = []

        async def seed() -> Session[Any]:
            if held is not None:  # it is gone, and the client that has its token can get no other
                raise UnknownSession(held)
            session, key = await self.new_session(request, row, session_id=ids[0])
            made.append(key)
            return session

        session = await self.session_once(ids, row, seed)
        if made:
            return made[0]
        self.cookies.hand_out(request, session.id)
        return None

    async def session_once(
        self, ids: list[str], row: dict[str, Any], seed: Callable[[], Awaitable[Session[Any]]], *, ended: bool = False
    ) -> Session[Any]:
        """The session that has one of these ids, or else a new one; a closed one too, if it may have `ended`.

        Raises `Contradiction` if it was seeded with another row.
        """
        session = await self.first_session(ids, include_closed=ended)
        if session is None:
            try:
                return await seed()
            except StoreError:
                session = await self.first_session(ids, include_closed=ended)
                if session is None:  # else another request with the same name was faster
                    raise
        store = self.sessions.store
        seeded = read_entry(await History(store).seed(await store.head(session.id)))
        if seeded.input != row and not deep_equal(seeded.input, row):
            problem = "a session with this name was seeded with another task; use another name"
            raise Contradiction(problem)
        return session

    async def named_session(self, name: str, row: dict[str, Any]) -> Session[Any]:
        """The session to which the server gives a name, or else a new one."""
        ids = self.signer.session_ids(name)

        async def new() -> Session[Any]:
            async with self.count.admit():
                return await self.sessions.seed(row, session_id=ids[0])

        return await self.session_once(ids, row, new)

    async def first_session(self, ids: list[str], *, include_closed: bool = False) -> Session[Any] | None:
        """The session that has one of these ids."""
        for session_id in ids:
            with suppress(UnknownSession):
                return await self.sessions.open(session_id, include_closed=include_closed)
        return None

    def _addresses(self, request: HTTPRequest) -> dict[str, Any]:
        """Fields of a reply: the session whose token it hands out, how MCP clients reach it, and what else there is."""
        token = (request.set_cookie or b"").partition(b"=")[2].partition(b";")[0]
        headers = {"X-NeMo-Gym-Session-Token": token.decode()}
        return {
            "session_id": token.partition(b".")[0].partition(b"~")[0].decode(),
            "mcp": MCPAddress(self.name, f"{self.prefix}/mcp", headers),
            "replies": self.environment.reply_tool is not None,
            "opens": self.environment.user_opens,
            "instructs": self.environment.instructions_tool is not None,
        }

    # The rest of an episode.

    async def root(self, request: HTTPRequest) -> HTTPResponse:
        """Check that the environment is served."""
        self.token_of(request)
        return json_response(ProbeReply())

    async def reply(self, request: HTTPRequest) -> HTTPResponse:
        """Let the user answer a message of the agent.

        Post each message without tool calls: the user's answer is the next message to the model. The request needs an
        id, to distinguish it from a tool call that a model made up.
        """
        session = await self.session(self.subject_of(request))
        call_id = request.call_id
        if call_id is None:
            known = ", ".join(sorted(self.environment.tools)) or "none"
            problem = f"send this header, with a new id for each message; reply is not a tool, the tools are: {known}"
            raise wrong_field("Idempotency-Key", problem)
        message = request.json().get("message")
        if not isinstance(message, str):
            raise wrong_field("message", "should be a text")
        checked_name("Idempotency-Key", call_id)
        return json_response(UserReply(await session.reply(message, call_id=call_id)))

    async def instructions(self, request: HTTPRequest) -> HTTPResponse:
        """Read the agent's current instructions.

        The text goes before the conversation. It depends on the state, so read it before each request to the model.
        """
        session = await self.session(self.subject_of(request))
        return json_response(Instructions(await session.instructions()))

    async def close_session(self, request: HTTPRequest) -> HTTPResponse:
        """Close the session that the body names.

        The cookie alone is not enough, because a model's calls have it too. Closing a session twice is fine. Closing an
        unknown name refuses a seed of that name that arrives late.
        """
        token = self.token_of(request)
        name = checked_session_name(request.json().get("resources_session_id"))
        if not self.stateless:
            held = token.subject if token else None
            ids = [*self.signer.session_ids(name), *([name] if held else [])]
            if not await self._close_first(ids, held):
                self.keys.admit_session(request)
                try:
                    await self.sessions.close_unseeded(ids[0])
                except StoreError:
                    if not await self._close_first(ids, held):  # else a seed was quicker
                        raise
        return json_response(CloseReply(name))

    async def _close_first(self, ids: list[str], held: str | None) -> bool:
        """Close the session that has one of these ids, if it is not closed yet; returns whether there is one.

        A client that holds a session's token can close no other session.
        """
        for session_id in [held] if held in ids else ids:
            other = Contradiction("the cookie and the body belong to different sessions")
            try:
                session = await self.sessions.open(session_id)
            except UnknownSession:
                continue
            except (SessionClosed, SessionExpired):
                return True
            except SessionError:  # of another environment
                raise other from None
            if held not in (None, session_id):
                raise other
            await self.close(session)
            return True
        return held in ids

    async def close(self, session: Session[Any], *, replaced_by: str | None = None, by: str | None = None) -> None:
        """Close a session, unless it is closed already."""
        if not session.closed:
            await session.close(replaced_by=replaced_by, by=by)
            self.count.remove()


async def guard_user_code(what: str, work: Awaitable[T]) -> T:
    """Await an author's function. An unexpected error is shown to clients by its name only."""
    try:
        return await work
    except StateroomError:
        raise
    except Exception as error:
        raise EnvironmentFailed(f"{what} failed: unexpected {type(error).__name__}") from error
