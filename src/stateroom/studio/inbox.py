"""Studio's API on questions: the sessions whose agents wait for a person."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from stateroom.agent import WAITING
from stateroom.lru import LRU
from stateroom.server import MethodRoute, Nothing, Services, json_body, read_query, route
from stateroom.session import History, head_data
from stateroom.store import Head, HeadFilter

LOOKED_AT = 1000
"""Sessions among which the oldest questions are found."""

MAX_QUESTIONS = 100
"""Questions that are listed."""


class InboxAPI:
    """The questions in a store. A log is read again only when the session has changed."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._asked: LRU[tuple[str, int], float] = LRU(LOOKED_AT)
        """When the agent of a session began to wait, by id and revision."""

    def routes(self) -> list[MethodRoute]:
        return [route("/inbox", GET=self.inbox)]

    async def inbox(self, request: Request) -> Response:
        """The sessions whose agents wait for a person, each with the time at which it `asked`, the oldest first."""
        read_query(request, Nothing)
        now = self._services.now()
        wanted = HeadFilter(status="live", at=now, phase=WAITING)
        heads = await self._services.store.heads(wanted, order="oldest", limit=LOOKED_AT)
        asked = await asyncio.gather(*map(self._asked_at, heads))
        waiting = sorted(zip(asked, heads, strict=True), key=lambda each: (each[0], each[1].age))
        listed = [{**head_data(head, now), "asked": at} for at, head in waiting[:MAX_QUESTIONS]]
        return json_body({"sessions": listed, "more": len(waiting) > MAX_QUESTIONS})

    async def _asked_at(self, head: Head) -> float:
        key = (head.id, head.revision)
        if key not in self._asked:
            _, entry = await History(self._services.store).agent_entry(head, head.revision)
            self._asked.keep(key, head.created if entry is None else entry.at)
        return self._asked.keep(key, self._asked[key])
