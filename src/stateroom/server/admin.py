"""The admin API: all sessions in the store, for the operator of the server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from stateroom.errors import UnknownSession
from stateroom.server import api
from stateroom.server.admin_actions import AdminActions
from stateroom.server.services import Services
from stateroom.server.stream import FollowedSessions, NewestSessions, Positions, SessionStream
from stateroom.session import VERDICT, History, head_data, read_page
from stateroom.state import differences, readable
from stateroom.store import Head, HeadFilter, Order, Status, place_of

RELATIVES = 1000
"""Ancestors and descendants of a session that are listed at most."""


class SessionList(api.Parameters):
    environment: str | None = None
    status: Status | None = None
    owner: str | None = None
    phase: str | None = None
    prefix: str = ""
    min_reward: float | None = None
    max_reward: float | None = None
    order: Order = "newest"
    limit: api.Amount = 100
    cursor: str | None = None


class LogRange(api.Parameters):
    after: api.After = 0
    before: api.RevisionNumber | None = None
    """Read backwards from here: the last entries before it."""
    limit: api.Amount = 100
    kinds: api.Name | None = None
    """Only entries of these kinds, separated by commas."""
    text: api.Name | None = None
    """Only entries with this text, in upper or lower case, in what was said, called, returned or changed."""


class LogStart(api.Parameters):
    after: api.After = 0


class StreamStart(api.Parameters):
    sessions: Annotated[str, Field(min_length=1)]
    """Sessions as `ID:AFTER`, separated by commas, the ids percent-encoded; `*` stands for new sessions."""


class StateAt(api.Parameters):
    at: api.RevisionNumber | None = None


class DiffRange(api.Parameters):
    since: api.RevisionNumber = Field(alias="from")
    to: api.RevisionNumber | None = None
    other: str | None = Field(None, alias="with")
    """The session that `to` is a revision of."""


class AdminAPI:
    """The endpoints below `/admin`; those that change something are in `AdminActions`."""

    def __init__(self, services: Services, models: Collection[str], *, gives_tokens: bool = True) -> None:
        """`models` names the environments in which a model can act; if it `gives_tokens`, forks come with theirs."""
        self.services = services
        self._actions = AdminActions(services, models, gives_tokens=gives_tokens)
        self._newest = NewestSessions(services)
        self._followed = FollowedSessions(services)

    def routes(self) -> list[api.MethodRoute]:
        session, actions = "/sessions/{session:id}", self._actions
        return [
            api.route("/environments", GET=actions.environments),
            api.route("/stream", GET=self.stream),
            api.route("/sessions", GET=self.sessions, POST=actions.seed),
            api.route(session, GET=self.show, DELETE=actions.delete),
            api.route(f"{session}/log", GET=self.log),
            api.route(f"{session}/log/kinds", GET=self.kinds),
            api.route(f"{session}/log/stream", GET=self.follow),
            api.route(f"{session}/lineage", GET=self.lineage),
            api.route(f"{session}/state", GET=self.state),
            api.route(f"{session}/diff", GET=self.diff),
            *(api.route(f"{session}/{name}", POST=action) for name, action in actions.of_session().items()),
        ]

    async def sessions(self, request: Request) -> Response:
        """A page of the sessions that the filters let through."""
        asked, now = api.read_query(request, SessionList), self.services.now()
        wanted = HeadFilter(
            environment=asked.environment,
            owner=asked.owner,
            status=asked.status,
            at=now,
            phase=asked.phase,
            prefix=asked.prefix,
            min_reward=asked.min_reward,
            max_reward=asked.max_reward,
        )
        last = None if asked.cursor is None else _last(asked.cursor, asked.order)
        found = await self.services.store.heads(wanted, order=asked.order, after=last, limit=asked.limit + 1)
        page = found[: asked.limit]
        cursor = api.cursor_of(*place_of(page[-1], asked.order)) if len(found) > asked.limit else None
        return api.json_body({"sessions": [head_data(head, now) for head in page], "next": cursor})

    async def show(self, request: Request) -> Response:
        api.read_query(request, api.Nothing)
        store, session = self.services.store, request.path_params["session"]
        head = await store.head(session)
        judged = await History(store).find_own_call(session, VERDICT)
        children = [{"session": fork.id, "revision": fork.parent_revision} for fork in await store.children(session)]
        known = {**head_data(head, self.services.now()), "children": children}
        verdict = judged.facts["verdict"] if judged else None
        return api.json_body({**known, "sealed": judged is not None, "verdict": verdict})

    async def log(self, request: Request) -> Response:
        wanted = api.read_query(request, LogRange)
        store, session = self.services.store, request.path_params["session"]
        page = await read_page(
            store,
            session,
            after=wanted.after,
            before=wanted.before,
            limit=wanted.limit,
            kinds=wanted.kinds and wanted.kinds.split(","),
            text=wanted.text,
        )
        return api.json_body(page._asdict())

    async def kinds(self, request: Request) -> Response:
        """The kinds of all entries, quick, however long the log is."""
        api.read_query(request, api.Nothing)
        store, session = self.services.store, request.path_params["session"]
        newest = (await store.head(session)).revision
        return api.json_body({"revision": newest, "kinds": await History(store).kinds(session, newest)})

    async def follow(self, request: Request) -> Response:
        """The log as events, with entries that are yet to come, until the session ends or the server stops."""
        wanted, session = api.read_query(request, LogStart), request.path_params["session"]
        await self.services.store.head(session)
        return self._stream(request, Positions({session: wanted.after}))

    async def stream(self, request: Request) -> Response:
        """The logs of several sessions as events, and new sessions."""
        wanted = api.read_query(request, StreamStart)
        return self._stream(request, Positions.read(wanted.sessions, "sessions"))

    def _stream(self, request: Request, positions: Positions) -> Response:
        last = request.headers.get("last-event-id")  # of a client that reconnects
        if last is not None:
            positions = Positions.read(last, "Last-Event-ID")
        return api.EventStream(SessionStream(self.services, self._newest, self._followed, positions).events())

    async def lineage(self, request: Request) -> Response:
        """The session's ancestors, the root first, and its descendants, level by level."""
        api.read_query(request, api.Nothing)
        store, now = self.services.store, self.services.now()
        head = oldest = await store.head(request.path_params["session"])
        ancestors: list[Head] = []
        while oldest.parent is not None and len(ancestors) < RELATIVES:
            oldest = await store.head(oldest.parent)
            ancestors.insert(0, oldest)
        descendants: list[Head] = []
        parents = deque([head])
        while parents and len(descendants) < RELATIVES:
            with suppress(UnknownSession):  # deleted meanwhile
                forks = await store.children(parents.popleft().id)
                descendants += forks
                parents += forks
        cut = oldest.parent is not None or bool(parents) or len(descendants) > RELATIVES
        return api.json_body(
            {
                "ancestors": [head_data(each, now) for each in ancestors],
                "session": head_data(head, now),
                "descendants": [head_data(each, now) for each in descendants[:RELATIVES]],
                "cut": cut,
            }
        )

    async def state(self, request: Request) -> Response:
        wanted = api.read_query(request, StateAt)
        store, session = self.services.store, request.path_params["session"]
        revision = wanted.at or (await store.head(session)).revision
        document = await History(store).document(session, revision)

        def written() -> Response:
            return api.json_body({"revision": revision, "state": readable(document.state)})

        return await asyncio.to_thread(written)  # it may be large

    async def diff(self, request: Request) -> Response:
        wanted = api.read_query(request, DiffRange)
        store, session = self.services.store, request.path_params["session"]
        other = wanted.other or session
        to = wanted.to or (await store.head(other)).revision
        history = History(store)
        old, new = await history.document(session, wanted.since), await history.document(other, to)
        found = await asyncio.to_thread(differences, old.state, new.state)
        return await asyncio.to_thread(
            api.json_body, {"from": wanted.since, "to": to, "with": other, "differences": found}
        )


def _last(cursor: str, order: Order) -> Head:
    """The place of the last session of the page before."""
    if order != "reward":
        created, session = api.read_cursor(cursor, tuple[float, str])
        return Head(session, "", "", created, 0.0, 0)
    reward, created, session = api.read_cursor(cursor, tuple[float, float, str])
    return Head(session, "", "", created, 0.0, 0, reward=reward)
