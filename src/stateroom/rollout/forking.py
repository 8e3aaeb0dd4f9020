"""Forks of sessions that a server keeps: its admin API makes them."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
from yarl import URL

from stateroom.errors import NotFound, ServerFailed, Unauthorized
from stateroom.rollout.wire import Reply, Wire
from stateroom.rollout.world import Origin

REFUSED = frozenset({401, 403})


class Fork(NamedTuple):
    """A new session, and the token that gives access to it."""

    id: str
    token: str


class Forking:
    """What a server's admin API does for whoever branches off its sessions."""

    def __init__(self, wire: Wire, token: str | None, stateless: bool) -> None:
        self._wire = wire
        self._headers = _bearer(token)
        self.stateless = stateless
        """The environment's sessions have no history, and the admin API knows none of them."""

    async def revision(self, session: str) -> int:
        """A session's newest revision."""
        what = f"/admin/sessions/{quote(session, safe='')}"
        return _whole(await self._wire.get(what, self._headers), what, "revision")

    async def fork(self, session: str, n: int, at: int | None) -> tuple[Origin, list[Fork]]:
        """So many forks of a session at a revision, by default the newest."""
        revision = await self.revision(session) if at is None else at
        what = f"/admin/sessions/{quote(session, safe='')}/fork"
        # It can be repeated: the first forks, if there are any, are left to end by themselves.
        reply = await self._wire.post(what, {"at": revision, "n": n}, self._headers, repeatable=True)
        made = _checked(reply, what).get("sessions") or []
        return Origin(session, revision), [Fork(each["id"], each["token"]) for each in made]


async def find_forking(client: aiohttp.ClientSession, root: str, token: str | None) -> Forking:
    """The admin API of the server whose environment is at a URL: an environment among several is one step below it."""
    for place in dict.fromkeys((root, str(URL(root).parent).rstrip("/"))):
        wire = Wire(client, place)
        reply = await wire.get("/admin/sessions?limit=1", _bearer(token))
        if reply.status in REFUSED:
            raise Unauthorized(
                f"the admin API at {place}, which forks sessions, refused: {reply.error.get('message')}. "
                "Give the token of `stateroom serve --admin-token` as --admin-token or STATEROOM_ADMIN_TOKEN"
            )
        if reply.status == 200 and "sessions" in reply.content:
            return Forking(wire, token, await is_stateless(Wire(client, root)))
    raise NotFound(f"the server at {root} has no admin API, as Stateroom's have: it cannot fork sessions")


async def is_stateless(wire: Wire) -> bool:
    """Whether an environment's sessions have no state that could be lost."""
    return (await wire.get("/reverify_mode")).text == '"stateless"'


def _bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _checked(reply: Reply, what: str) -> dict[str, Any]:
    if reply.status != 200:
        raise reply.failure(what)
    return reply.content


def _whole(reply: Reply, what: str, name: str) -> int:
    found = _checked(reply, what).get(name)
    if type(found) is not int:
        raise ServerFailed(f"{what} gave no {name}: {reply.text:.100}")
    return found
