"""The admin API: all sessions in the store, for whoever runs the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from pydantic import Field

from stateroom.agent import Threads
from stateroom.errors import NotFound, SessionError
from stateroom.server.admin.access import refusal
from stateroom.server.admin.log import Following
from stateroom.server.faults import fault, wrong_method
from stateroom.server.hosted import Hosted
from stateroom.server.http import Disconnected, Receive, Reply, Request, Scope, Send, send_reply
from stateroom.server.parameters import (
    After,
    Amount,
    Name,
    Nothing,
    Parameters,
    Place,
    Revision,
    Text,
    cursor_of,
    parse,
    read_cursor,
    steps,
)
from stateroom.session import AgentStatus, History
from stateroom.session.log import VERDICT
from stateroom.session.session import Pending
from stateroom.session.transcript import Transcript, entry_data, head_data
from stateroom.state import to_json
from stateroom.state.describe import differences, readable
from stateroom.store import Head, Status

if TYPE_CHECKING:
    from stateroom.server.app import Application

SCANNED = 1000
SCANS = 10
"""A page of a filtered list looks at so many sessions, so many times, at most; then the next page goes on."""


class _Listing(Parameters):
    environment: str | None = None
    status: Status | None = None
    owner: str | None = None
    limit: Amount = 100
    cursor: str | None = None


class _Page(Parameters):
    after: After = 0
    limit: Amount = 100


class _Start(Parameters):
    after: After = 0


class _Point(Parameters):
    at: Revision | None = None


class _Range(Parameters):
    since: Revision = Field(alias="from")
    to: Revision | None = None


class _Fork(Parameters):
    at: Place | None = None
    n: Amount = 1
    pending: Pending = "refuse"


class _Rewind(Parameters):
    to: Place


class _Checkpoint(Parameters):
    name: Name


class _Provide(Parameters):
    input: Any


class _Cancel(Parameters):
    reason: Text = ""


Endpoint = Callable[[Request, str], Awaitable[Reply | Following]]
"""Answers a request about a session."""


class Admin:
    """Answers below `/admin`."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self._endpoints: dict[str, dict[str, Endpoint]] = {
            "": {"GET": self.show, "DELETE": self.delete},
            "log": {"GET": self.log},
            "log/stream": {"GET": self.follow},
            "state": {"GET": self.state},
            "diff": {"GET": self.diff},
            "fork": {"POST": self.fork},
            "rewind": {"POST": self.rewind},
            "checkpoint": {"POST": self.checkpoint},
            "provide": {"POST": self.provide},
            "cancel": {"POST": self.cancel},
            "close": {"POST": self.close},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, self.app.limits.body)
        try:
            reply = refusal(request, self.app.options.admin_token) or await self._answer(request)
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            reply = fault(error, f"{scope['method']} {scope['path']}")
        if isinstance(reply, Reply):
            await send_reply(scope, send, reply)
        else:
            await reply.run(receive, send)

    async def _answer(self, request: Request) -> Reply | Following:
        path, method = request.scope["path"], request.scope["method"]
        endpoints, session = self._find(request.scope)
        if not endpoints:
            raise NotFound(f"there is nothing at {path}; sessions are at /admin/sessions")
        if method not in endpoints:
            return wrong_method(path, endpoints)
        return await endpoints[method](request, session)

    def _find(self, scope: Scope) -> tuple[dict[str, Endpoint], str]:
        """What answers at a path, by method, and the session that the path names."""
        match steps(scope):
            case ["sessions"]:
                return {"GET": self.sessions}, ""
            case ["sessions", session, *rest] if session and "" not in rest:
                return self._endpoints.get("/".join(rest), {}), session
        return {}, ""

    # Looking.

    async def sessions(self, request: Request, _: str) -> Reply:
        """Sessions, the newest first. A page may hold fewer than its limit, or none, and not be the last."""
        wanted = parse(_Listing, request.query)
        found, following = await self._heads(wanted)
        now = self.app.now()
        return _reply(
            {
                "sessions": [head_data(head, now) for head in found],
                "next": following and cursor_of(following.created, following.id),
            }
        )

    async def _heads(self, wanted: _Listing) -> tuple[list[Head], Head | None]:
        """A page, and the head to go on from if there may be more."""
        now = self.app.now()
        found: list[Head] = []
        before = None if wanted.cursor is None else _head_at(*read_cursor(wanted.cursor))
        for _ in range(SCANS):
            page = await self.app.store.heads(environment=wanted.environment, before=before, limit=SCANNED)
            for head in page:
                if wanted.owner in (None, head.owner) and wanted.status in (None, head.status(now)):
                    if len(found) == wanted.limit:
                        return found, found[-1]
                    found.append(head)
            if len(page) < SCANNED:
                return found, None
            before = page[-1]
        return found, before

    async def show(self, request: Request, session: str) -> Reply:
        parse(Nothing, request.query)
        head = await self.app.store.head(session)
        judged = await History(self.app.store).find_own_call(session, VERDICT)
        verdict = judged.facts["verdict"] if judged else None
        forks = await self.app.store.children(session)
        children = [{"session": fork.id, "revision": fork.parent_revision} for fork in forks]
        known = {**head_data(head, self.app.now()), "children": children}
        return _reply({**known, "sealed": judged is not None, "verdict": verdict})

    async def log(self, request: Request, session: str) -> Reply:
        wanted = parse(_Page, request.query)
        newest = (await self.app.store.head(session)).revision
        transcript = Transcript(self.app.store, session, wanted.after)
        until = min(newest, wanted.after + wanted.limit)
        entries = [entry_data(entry, changes) async for entry, changes in transcript.read(until)]
        return _reply({"entries": entries, "next": transcript.revision if transcript.revision < newest else None})

    async def follow(self, request: Request, session: str) -> Following:
        wanted = parse(_Start, request.query)
        seen = request.header(b"last-event-id")  # of a client that was cut off: it goes on from there
        if seen is not None:
            wanted = parse(_Start, {"after": seen.decode("latin-1")}, "Last-Event-ID")
        await self.app.store.head(session)
        return Following(self.app, Transcript(self.app.store, session, wanted.after))

    async def state(self, request: Request, session: str) -> Reply:
        wanted = parse(_Point, request.query)
        revision = wanted.at or (await self.app.store.head(session)).revision
        document = await History(self.app.store).document(session, revision)
        return _reply({"revision": revision, "state": readable(document.state)})

    async def diff(self, request: Request, session: str) -> Reply:
        wanted = parse(_Range, request.query)
        to = wanted.to or (await self.app.store.head(session)).revision
        history = History(self.app.store)
        old, new = await history.document(session, wanted.since), await history.document(session, to)
        return _reply({"from": wanted.since, "to": to, "differences": [*differences(old.state, new.state)]})

    # Changing.

    async def fork(self, request: Request, session: str) -> Reply:
        wanted = parse(_Fork, await request.json(), strict=True)
        hosted = await self._hosted(session)
        opened = await hosted.sessions.open(session, closed_too=True)
        async with hosted.census.admission(wanted.n):
            forks = await opened.fork(wanted.at, n=wanted.n, pending=wanted.pending)
        for _ in forks:
            hosted.figures.created(hosted.environment.name)
        return _reply({"sessions": [{"id": fork.id, "token": hosted.signer.sign(fork.id).decode()} for fork in forks]})

    async def rewind(self, request: Request, session: str) -> Reply:
        wanted = parse(_Rewind, await request.json(), strict=True)
        hosted = await self._hosted(session)
        await (await hosted.sessions.open(session)).rewind(wanted.to)
        return await self._after(session)

    async def checkpoint(self, request: Request, session: str) -> Reply:
        wanted = parse(_Checkpoint, await request.json(), strict=True)
        hosted = await self._hosted(session)
        made = await (await hosted.sessions.open(session)).checkpoint(wanted.name)
        return _reply({"name": made.name, "revision": made.revision})

    async def provide(self, request: Request, session: str) -> Reply:
        """Tell an agent that waits what it asked for."""
        wanted = parse(_Provide, await request.json(), strict=True)
        hosted = await self._hosted(session)
        return _standing(await (await hosted.sessions.open(session)).agent.answer(wanted.input))

    async def cancel(self, request: Request, session: str) -> Reply:
        """End what an agent is doing."""
        wanted = parse(_Cancel, await request.json(), strict=True)
        hosted = await self._hosted(session)
        return _standing(await Threads(hosted.sessions).cancel(session, wanted.reason))

    async def close(self, request: Request, session: str) -> Reply:
        parse(Nothing, await request.json(), strict=True)
        hosted = await self._hosted(session)
        await hosted.close(await hosted.sessions.open(session, closed_too=True))
        return await self._after(session)

    async def delete(self, request: Request, session: str) -> Reply:
        parse(Nothing, request.query)
        head = await self.app.store.head(session)
        await self.app.store.delete(session)
        if head.status(self.app.now()) == "live":
            self.app.census.leave()
        for hosted in self.app.kept.values():
            hosted.sessions.forget(session)
        return _reply({"deleted": session})

    async def _hosted(self, session: str) -> Hosted:
        """The environment of a session, which alone can change it."""
        environment = (await self.app.store.head(session)).environment
        hosted = self.app.kept.get(environment)
        if hosted is None:
            raise SessionError(
                session,
                f"session {session!r} is of {environment}, which this server does not serve: here it can be read and "
                "deleted, and nothing else",
            )
        return hosted

    async def _after(self, session: str) -> Reply:
        return _reply(head_data(await self.app.store.head(session), self.app.now()))


def _reply(value: Any) -> Reply:
    return Reply(200, to_json(value))


def _standing(stance: AgentStatus) -> Reply:
    return _reply({"phase": stance.phase, "question": stance.question})


def _head_at(created: float, session: str) -> Head:
    """A head that a list goes on after."""
    return Head(session, "", "", created, 0.0, 0)
