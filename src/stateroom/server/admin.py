"""The admin API: all sessions in the store, for the operator of the server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from pydantic import Field

from stateroom.errors import UnknownSession
from stateroom.server import api
from stateroom.server.admin_actions import AdminActions
from stateroom.server.http import HTTPRequest
from stateroom.server.operation import Operation, get
from stateroom.server.services import Services
from stateroom.server.stream import FollowedSessions, Positions, SessionStream
from stateroom.session import VERDICT, ForkPoint, History, LogPage, SessionSummary, read_page
from stateroom.state import ChangeData, differences, readable
from stateroom.store import Head, HeadFilter, Order, Status, place_of

MAX_RELATIVES = 1000
"""Ancestors and descendants of a session that are listed at most."""


# Parameters.


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
    """Read backwards: the last entries before this revision."""
    limit: api.Amount = 100
    kinds: api.Name | None = None
    """Only entries of these kinds, separated by commas."""
    text: api.Name | None = None
    """Only entries that contain this text; upper and lower case are the same."""


class LogStart(api.Parameters):
    after: api.After = 0


class StreamStart(api.Parameters):
    sessions: Annotated[str, Field(min_length=1)]
    """Sessions as `ID:AFTER`, separated by commas, the ids percent-encoded; `*` stands for new sessions."""


class StateQuery(api.Parameters):
    at: api.RevisionNumber | None = None


class DiffRange(api.Parameters):
    since: api.RevisionNumber = Field(alias="from")
    to: api.RevisionNumber | None = None
    other: str | None = Field(None, alias="with")
    """The session of the revision `to`."""


# Replies.


class SessionPage(msgspec.Struct, frozen=True):
    sessions: list[SessionSummary]
    next: str | None
    """The `cursor` of the next page."""


class SessionDetails(SessionSummary, frozen=True, kw_only=True):
    """A session, its forks and its verdict."""

    children: list[ForkPoint]
    sealed: bool
    """Whether it has a verdict; then it cannot be changed any more."""
    verdict: dict[str, Any] | None


class LogKinds(msgspec.Struct, frozen=True):
    revision: int
    """The newest."""
    kinds: list[tuple[str, int, int]]
    """The kind, the first and the last revision of neighbours of one kind. What is missing was pruned."""


class Lineage(msgspec.Struct, frozen=True):
    ancestors: list[SessionSummary]
    """The root first."""
    session: SessionSummary
    descendants: list[SessionSummary]
    """Parents before their forks."""
    cut: bool
    """Whether there are more."""


class StateReply(msgspec.Struct, frozen=True):
    revision: int
    state: Any


class Diff(msgspec.Struct, frozen=True):
    since: int = msgspec.field(name="from")
    to: int
    other: str = msgspec.field(name="with")
    differences: list[ChangeData]


class AdminAPI:
    """The endpoints below `/admin`; those that change something are in `AdminActions`."""

    def __init__(self, services: Services, models: Collection[str], *, gives_tokens: bool = True) -> None:
        """`models` names the environments in which a model can act; if it `gives_tokens`, forks come with theirs."""
        self.services = services
        self._actions = AdminActions(services, models, gives_tokens=gives_tokens)
        self._followed = FollowedSessions(services)

    def operations(self) -> list[Operation]:
        """The endpoints."""
        session = "/sessions/{session:id}"
        return [
            get("/stream", self.stream),
            get("/sessions", self.sessions),
            get(session, self.show),
            get(f"{session}/log", self.log),
            get(f"{session}/log/kinds", self.kinds),
            get(f"{session}/log/stream", self.follow),
            get(f"{session}/lineage", self.lineage),
            get(f"{session}/state", self.state, large=True),
            get(f"{session}/diff", self.diff, large=True),
            *self._actions.operations(),
        ]

    async def sessions(self, query: SessionList) -> SessionPage:
        """List the sessions that match the filters, in pages."""
        now = self.services.now()
        wanted = HeadFilter(at=now, **query.model_dump(exclude={"order", "limit", "cursor"}))
        last = None if query.cursor is None else _last(query.cursor, query.order)
        heads = await self.services.store.heads(wanted, order=query.order, after=last, limit=query.limit + 1)
        page = heads[: query.limit]
        cursor = api.cursor_of(*place_of(page[-1], query.order)) if len(heads) > query.limit else None
        return SessionPage([SessionSummary.of(head, now) for head in page], cursor)

    async def show(self, session: str) -> SessionDetails:
        """Read a session, its forks and its verdict."""
        store = self.services.store
        head = await store.head(session)
        judged = await History(store).find_own_call(session, VERDICT)
        return SessionDetails.of(
            head,
            self.services.now(),
            children=[ForkPoint(fork.id, fork.parent_revision) for fork in await store.children(session)],
            sealed=judged is not None,
            verdict=judged.facts["verdict"] if judged else None,
        )

    async def log(self, session: str, query: LogRange) -> LogPage:
        """Read entries of a session's log, with the changes of each."""
        kinds = query.kinds and query.kinds.split(",")
        given = query.model_dump(exclude={"kinds"})
        return await read_page(self.services.store, session, kinds=kinds, **given)

    async def kinds(self, session: str) -> LogKinds:
        """Read the kinds of all entries of a session's log; fast, however long it is."""
        store = self.services.store
        newest = (await store.head(session)).revision
        return LogKinds(newest, await History(store).kinds(session, newest))

    async def follow(self, request: HTTPRequest, session: str, query: LogStart) -> api.EventStream:
        """Stream a session's log as events, with new entries, until the session ends or the server stops."""
        await self.services.store.head(session)
        return self._stream(request, Positions({session: query.after}))

    async def stream(self, request: HTTPRequest, query: StreamStart) -> api.EventStream:
        """Stream the logs of several sessions as events, and new sessions."""
        return self._stream(request, Positions.read(query.sessions, "sessions"))

    def _stream(self, request: HTTPRequest, positions: Positions) -> api.EventStream:
        last = request.headers.get(b"last-event-id")  # of a client that reconnects
        if last is not None:
            positions = Positions.read(last.decode("latin-1"), "Last-Event-ID")
        return api.EventStream(SessionStream(self.services, self._followed, positions).events())

    async def lineage(self, session: str) -> Lineage:
        """Read a session's ancestors, the root first, and its descendants, level by level."""
        store, now = self.services.store, self.services.now()
        head = oldest = await store.head(session)
        ancestors: list[Head] = []
        while oldest.parent is not None and len(ancestors) < MAX_RELATIVES:
            oldest = await store.head(oldest.parent)
            ancestors.insert(0, oldest)
        descendants: list[Head] = []
        parents = deque([head])
        while parents and len(descendants) < MAX_RELATIVES:
            with suppress(UnknownSession):  # deleted meanwhile
                forks = await store.children(parents.popleft().id)
                descendants += forks
                parents += forks
        return Lineage(
            [SessionSummary.of(ancestor, now) for ancestor in ancestors],
            SessionSummary.of(head, now),
            [SessionSummary.of(descendant, now) for descendant in descendants[:MAX_RELATIVES]],
            oldest.parent is not None or bool(parents) or len(descendants) > MAX_RELATIVES,
        )

    async def state(self, session: str, query: StateQuery) -> StateReply:
        """Read a session's state, now or at a revision."""
        store = self.services.store
        revision = query.at or (await store.head(session)).revision
        document = await History(store).document(session, revision)
        return StateReply(revision, await asyncio.to_thread(readable, document.state))

    async def diff(self, session: str, query: DiffRange) -> Diff:
        """Compare two states."""
        store = self.services.store
        other = query.other or session
        to = query.to or (await store.head(other)).revision
        history = History(store)
        old, new = await history.document(session, query.since), await history.document(other, to)
        return Diff(query.since, to, other, await asyncio.to_thread(differences, old.state, new.state))


def _last(cursor: str, order: Order) -> Head:
    """The place of the last session of the page before."""
    if order != "reward":
        created, session = api.read_cursor(cursor, tuple[float, str])
        return Head(session, "", "", created, 0.0, 0)
    reward, created, session = api.read_cursor(cursor, tuple[float, float, str])
    return Head(session, "", "", created, 0.0, 0, reward=reward)
