"""The admin API: all sessions in the store, for the operator of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from pydantic import Field
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from stateroom.agent import Threads
from stateroom.errors import StateroomError, StoreUnavailable, UnknownSession
from stateroom.server import api
from stateroom.server.response import response_to
from stateroom.server.services import Services
from stateroom.session import VERDICT, History, Pending, Transcript, entry_data, head_data
from stateroom.state import differences, readable, to_json
from stateroom.store import Head, Status

SCANNED, SCANS = 1000, 10
"""A page of a filtered list reads at most this many sessions, this many times; the next page continues."""

POLL = 0.25
"""Seconds between two reads of a log that is followed: other processes write to it, and do not tell."""


class _SessionList(api.Parameters):
    environment: str | None = None
    status: Status | None = None
    owner: str | None = None
    limit: api.Amount = 100
    cursor: str | None = None


class _LogPage(api.Parameters):
    after: api.After = 0
    limit: api.Amount = 100


class _LogStart(api.Parameters):
    after: api.After = 0


class _StateAt(api.Parameters):
    at: api.RevisionNumber | None = None


class _DiffRange(api.Parameters):
    since: api.RevisionNumber = Field(alias="from")
    to: api.RevisionNumber | None = None


class _Fork(api.Parameters):
    at: api.RevisionOrName | None = None
    n: api.Amount = 1
    pending: Pending = "refuse"


class _Rewind(api.Parameters):
    to: api.RevisionOrName


class _Checkpoint(api.Parameters):
    name: api.Name


class _Answer(api.Parameters):
    input: Any


class _Cancel(api.Parameters):
    reason: api.Text = ""


class AdminAPI:
    """The endpoints below `/admin`."""

    def __init__(self, services: Services) -> None:
        self.services = services

    def routes(self) -> list[BaseRoute]:
        session = "/sessions/{session:id}"
        return [
            api.route("/sessions", GET=self.sessions),
            api.route(session, GET=self.show, DELETE=self.delete),
            api.route(f"{session}/log", GET=self.log),
            api.route(f"{session}/log/stream", GET=self.follow),
            api.route(f"{session}/state", GET=self.state),
            api.route(f"{session}/diff", GET=self.diff),
            api.route(f"{session}/fork", POST=self.fork),
            api.route(f"{session}/rewind", POST=self.rewind),
            api.route(f"{session}/checkpoint", POST=self.checkpoint),
            api.route(f"{session}/answer", POST=self.answer),
            api.route(f"{session}/cancel", POST=self.cancel),
            api.route(f"{session}/close", POST=self.close),
        ]

    # Reading.

    async def sessions(self, request: Request) -> Response:
        """Sessions, the newest first. A page may hold fewer than its limit, or none, and not be the last."""
        wanted = api.read_query(request, _SessionList)
        found, last = await self._heads(wanted)
        now = self.services.now()
        cursor = last and api.cursor_of(last.created, last.id)
        return api.json_body({"sessions": [head_data(head, now) for head in found], "next": cursor})

    async def _heads(self, wanted: _SessionList) -> tuple[list[Head], Head | None]:
        """A page, and the head to continue after if there may be more."""
        now = self.services.now()
        found: list[Head] = []
        before = None
        if wanted.cursor is not None:
            created, session = api.read_cursor(wanted.cursor)
            before = Head(session, "", "", created, 0.0, 0)
        for _ in range(SCANS):
            page = await self.services.store.heads(environment=wanted.environment, before=before, limit=SCANNED)
            for head in page:
                if wanted.owner in (None, head.owner) and wanted.status in (None, head.status(now)):
                    if len(found) == wanted.limit:
                        return found, found[-1]
                    found.append(head)
            if len(page) < SCANNED:
                return found, None
            before = page[-1]
        return found, before

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
        wanted = api.read_query(request, _LogPage)
        store, session = self.services.store, request.path_params["session"]
        newest = (await store.head(session)).revision
        transcript = Transcript(store, session, wanted.after)
        until = min(newest, wanted.after + wanted.limit)
        entries = [entry_data(entry, changes) async for entry, changes in transcript.read(until)]
        return api.json_body(
            {"entries": entries, "next": transcript.revision if transcript.revision < newest else None}
        )

    async def follow(self, request: Request) -> Response:
        """The log as events, with entries that are yet to come, until the session ends or the server stops."""
        wanted = api.read_query(request, _LogStart)
        last = request.headers.get("last-event-id")  # of a client that reconnects
        if last is not None:
            wanted = api.parse(_LogStart, {"after": last}, "Last-Event-ID")
        store, session = self.services.store, request.path_params["session"]
        await store.head(session)
        return api.EventStream(self._events(Transcript(store, session, wanted.after)))

    async def _events(self, transcript: Transcript) -> AsyncIterator[ServerSentEvent]:
        services, end = self.services, None
        while end is None:
            try:
                head = await services.store.head(transcript.session)
                async for entry, changes in transcript.read(head.revision):
                    yield api.event("entry", to_json(entry_data(entry, changes)), entry.revision)
                    if services.stopping.is_set():
                        return
                status = head.status(services.now())
                end = None if status == "live" else to_json({"status": status})
            except UnknownSession:
                end = to_json({"status": "deleted"})
            except StoreUnavailable:
                pass  # it may be back at the next read
            except StateroomError as error:
                end = response_to(error, f"following {transcript.session}").body
            if end is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(services.stopping.wait(), POLL)
                    return
        yield api.event("end", end)

    async def state(self, request: Request) -> Response:
        wanted = api.read_query(request, _StateAt)
        store, session = self.services.store, request.path_params["session"]
        revision = wanted.at or (await store.head(session)).revision
        document = await History(store).document(session, revision)
        return api.json_body({"revision": revision, "state": readable(document.state)})

    async def diff(self, request: Request) -> Response:
        wanted = api.read_query(request, _DiffRange)
        store, session = self.services.store, request.path_params["session"]
        to = wanted.to or (await store.head(session)).revision
        history = History(store)
        old, new = await history.document(session, wanted.since), await history.document(session, to)
        return api.json_body({"from": wanted.since, "to": to, "differences": [*differences(old.state, new.state)]})

    # Changing.

    async def fork(self, request: Request) -> Response:
        wanted, session = api.read_body(request, _Fork), request.path_params["session"]
        served = await self.services.environment_of(session)
        opened = await served.sessions.open(session, closed_too=True)
        with await served.count.admit(wanted.n):
            forks = await opened.fork(wanted.at, n=wanted.n, pending=wanted.pending)
        for _ in forks:
            served.metrics.created(served.name)
        return api.json_body(
            {"sessions": [{"id": fork.id, "token": served.signer.sign(fork.id).decode()} for fork in forks]}
        )

    async def rewind(self, request: Request) -> Response:
        wanted, session = api.read_body(request, _Rewind), request.path_params["session"]
        served = await self.services.environment_of(session)
        await (await served.sessions.open(session)).rewind(wanted.to)
        return await self._head(session)

    async def checkpoint(self, request: Request) -> Response:
        wanted, session = api.read_body(request, _Checkpoint), request.path_params["session"]
        served = await self.services.environment_of(session)
        made = await (await served.sessions.open(session)).checkpoint(wanted.name)
        return api.json_body({"name": made.name, "revision": made.revision})

    async def answer(self, request: Request) -> Response:
        """Answer the question of an agent that waits."""
        wanted, session = api.read_body(request, _Answer), request.path_params["session"]
        served = await self.services.environment_of(session)
        return api.agent_status(await (await served.sessions.open(session)).agent.answer(wanted.input))

    async def cancel(self, request: Request) -> Response:
        """Cancel the work of an agent."""
        wanted, session = api.read_body(request, _Cancel), request.path_params["session"]
        served = await self.services.environment_of(session)
        return api.agent_status(await Threads(served.sessions).cancel(session, wanted.reason))

    async def close(self, request: Request) -> Response:
        api.read_body(request, api.Nothing)
        session = request.path_params["session"]
        served = await self.services.environment_of(session)
        await served.close(await served.sessions.open(session, closed_too=True))
        return await self._head(session)

    async def delete(self, request: Request) -> Response:
        api.read_query(request, api.Nothing)
        services, session = self.services, request.path_params["session"]
        head = await services.store.head(session)
        await services.store.delete(session)
        if head.status(services.now()) == "live":
            services.count.remove()
        for served in services.session_environments.values():
            served.sessions.forget(session)
        return api.json_body({"deleted": session})

    async def _head(self, session: str) -> Response:
        return api.json_body(head_data(await self.services.store.head(session), self.services.now()))
