"""A session's log as it grows, as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
from yarl import URL

from stateroom import Sessions
from stateroom.errors import BadData, StoreUnavailable
from stateroom.gallery import CounterEnvironment
from stateroom.server import api, stream as stream_module
from stateroom.session import History
from stateroom.store import open_store
from tests.patience import PATIENCE

ROW = {"responses_create_params": {"input": "add"}, "initial_count": 3, "expected_count": 9}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "POLL_SECONDS", 0.01)


class Stream:
    """The events of a stream, one by one."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    async def lines(self) -> list[str]:
        """The lines of the next event, or of a comment; none when the stream has ended."""
        lines: list[str] = []
        async with asyncio.timeout(PATIENCE):
            while line := (await self.reply.content.readline()).decode():
                if line == "\n":
                    return lines
                lines.append(line.rstrip("\n"))
        assert lines == []
        return []

    async def next(self) -> dict[str, Any]:
        """The next event; comments, which keep a connection alive, are passed over."""
        while (lines := await self.lines()) and lines[0].startswith(":"):
            pass
        fields = dict(line.split(": ", 1) for line in lines)
        return {**fields, "data": json.loads(fields["data"])}

    async def entry(self) -> dict[str, Any]:
        """The data of the next event, which is an entry."""
        event = await self.next()
        assert event["event"] == "entry"
        entry, session = event["data"]["entry"], quote(event["data"]["session"], safe="")
        assert f"{session}:{entry['revision']}" in event["id"].split(",")
        return entry

    async def end(self) -> dict[str, Any]:
        """The data of the last event."""
        event = await self.next()
        assert event["event"] == "end"
        assert await self.lines() == []
        del event["data"]["session"]
        return event["data"]


@asynccontextmanager
async def follow(served: Any, session: str, query: str = "", **headers: str) -> AsyncIterator[Stream]:
    async with open_stream(served, f"sessions/{session}/log/stream{query}", **headers) as opened:
        yield opened


@asynccontextmanager
async def open_stream(served: Any, path: str, **headers: str) -> AsyncIterator[Stream]:
    where = URL(f"{served.url}/admin/{path}", encoded=True)
    async with served.client.get(where, headers=headers) as reply:
        assert reply.status == 200
        assert reply.headers["content-type"] == "text/event-stream"
        yield Stream(reply)


def texts(entry: dict[str, Any]) -> list[str]:
    """What an entry changed, in words."""
    return [change["text"] for change in entry["changes"]]


async def seed(served: Any) -> Any:
    return await served.services.environments["counter"].sessions.seed(ROW)


@pytest.fixture
async def session(served: Any) -> Any:
    return await seed(served)


async def test_a_growing_log_is_followed_to_its_end(stored: Any, connect: Any) -> None:
    admin = await connect(stored.url)
    _, seeded = await stored.post("/seed_session", ROW)
    session = seeded["session_id"]
    async with follow(admin, session) as stream:
        assert (await stream.entry())["kind"] == "seed"
        for count in (4, 2):
            await stored.post("/increment_counter", {"count": count})
            entry = await stream.entry()
            assert (entry["name"], entry["input"]) == ("increment_counter", {"count": count})
            assert texts(entry) == [f"value: {7 if count == 2 else 3} → {9 if count == 2 else 7}"]
        await admin.post(f"/admin/sessions/{session}/rewind", {"to": 1})
        assert texts(await stream.entry()) == ["value: 9 → 3"]
        await stored.post("/increment_counter", {"count": 1})
        assert texts(await stream.entry()) == ["value: 3 → 4"]
        await stored.post("/close_session", {"resources_session_id": session})
        assert (await stream.entry())["kind"] == "close"
        assert await stream.end() == {"status": "closed"}


async def test_followers_share_what_is_read_for_them(
    served: Any, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        await session.call("increment_counter", {"count": 1})
    loads, document = [], History.document

    async def counted(self: History, *given: Any) -> Any:
        loads.append(given)
        return await document(self, *given)

    monkeypatch.setattr(History, "document", counted)
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(follow(served, session.id, "?after=5")) for _ in range(10)]
        for stream in streams:
            assert (await stream.entry())["revision"] == 6
        caught_up = len(loads)
        for number in range(7, 12):
            await session.call("increment_counter", {"count": 1})
            for stream in streams:
                assert texts(await stream.entry()) == [f"value: {number + 1} → {number + 2}"]
        assert len(loads) == caught_up + 1
        await session.close()


async def test_what_another_process_writes_is_seen(serve: Any, shared_url: str) -> None:
    served = await serve(store=shared_url)
    session = await seed(served)
    async with follow(served, session.id) as stream, open_store(shared_url) as store:
        assert (await stream.entry())["kind"] == "seed"
        other = await Sessions(CounterEnvironment(), store).open(session.id)
        await other.call("increment_counter", {"count": 1})
        assert texts(await stream.entry()) == ["value: 3 → 4"]
        await other.close()
        assert (await stream.entry())["kind"] == "close"
        assert await stream.end() == {"status": "closed"}


async def test_a_stream_begins_where_it_is_told_to(served: Any, session: Any) -> None:
    for count in (1, 2, 3):
        await session.call("increment_counter", {"count": count})
    await session.close()
    for query, headers, first in (
        ("?after=0", {}, 1),
        ("?after=2", {}, 3),
        ("", {"Last-Event-ID": f"{session.id}:3"}, 4),
        ("?after=1", {"Last-Event-ID": f"{session.id}:3"}, 4),
    ):
        async with follow(served, session.id, query, **headers) as stream:
            entries = [await stream.entry() for _ in range(first, 6)]
            assert [entry["revision"] for entry in entries] == list(range(first, 6))
            assert await stream.end() == {"status": "closed"}
    async with follow(served, session.id, "?after=99") as stream:
        assert await stream.end() == {"status": "closed"}
    where = f"/admin/sessions/{session.id}/log/stream"
    status, refused = await served.get(where, headers={"Last-Event-ID": "latest"})
    assert (status, list(refused["error"]["fields"])) == (422, ["Last-Event-ID"])


async def test_a_stream_from_ahead_of_the_log_waits_for_it(served: Any, session: Any) -> None:
    async with follow(served, session.id, "?after=2") as stream:
        await session.call("increment_counter", {"count": 1})
        await session.call("increment_counter", {"count": 1})
        assert texts(await stream.entry()) == ["value: 4 → 5"]


@pytest.mark.parametrize(
    ("ends", "status"), [("its time", "expired"), ("deleted", "deleted"), ("deleted, forked", "expired")]
)
async def test_a_stream_ends_with_its_session(serve: Any, store_url: str, ends: str, status: str) -> None:
    now = 1000.0
    served = await serve(store=store_url, ttl=100.0, now=lambda: now)
    session = await seed(served)
    async with follow(served, session.id) as stream:
        assert (await stream.entry())["kind"] == "seed"
        if ends == "deleted, forked":
            await session.fork()
        if ends == "its time":
            now = 1100.0
        else:
            await served.client.delete(f"{served.url}/admin/sessions/{session.id}")
        assert await stream.end() == {"status": status}


async def test_a_stream_ends_without_a_last_word_when_the_server_stops(served: Any, session: Any) -> None:
    async with follow(served, session.id) as stream:
        assert (await stream.entry())["kind"] == "seed"
        served.app.stopping.set()
        assert await stream.lines() == []
    async with follow(served, session.id) as stream:  # nor does one that begins now go on
        assert (await stream.entry())["kind"] == "seed"
        assert await stream.lines() == []


async def test_a_silent_stream_shows_that_it_is_alive(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "HEARTBEAT_SECONDS", 0.05)
    served = await serve()
    session = await seed(served)
    async with follow(served, session.id) as stream:
        assert (await stream.entry())["kind"] == "seed"
        for _ in range(3):
            assert await stream.lines() == [": still here"]
        await session.close()
        lines = await stream.lines()
        while lines == [": still here"]:
            lines = await stream.lines()
        assert lines[1] == "event: entry"


async def test_a_store_that_is_away_for_a_while_is_waited_for(
    served: Any, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = served.services.store
    head, asked = store.head, asyncio.Event()

    async def away(session: str) -> Any:
        asked.set()
        raise StoreUnavailable("SQLite: database is locked")

    async with follow(served, session.id) as stream:
        assert (await stream.entry())["kind"] == "seed"
        monkeypatch.setattr(store, "head", away)
        async with asyncio.timeout(PATIENCE):
            await asked.wait()
        monkeypatch.setattr(store, "head", head)
        await session.close()
        assert (await stream.entry())["kind"] == "close"


async def test_a_log_that_cannot_be_read_ends_the_stream_with_the_reason(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise BadData("a stored snapshot cannot be read")

    served = await serve()
    session = await seed(served)
    await session.call("increment_counter", {"count": 1})
    monkeypatch.setattr(History, "document", broken)
    async with follow(served, session.id, "?after=1") as stream:
        assert (await stream.end())["error"]["message"] == "a stored snapshot cannot be read"


async def read(opened: Stream, number: int) -> list[tuple[str, int]]:
    """The sessions and revisions of the next entries."""
    events = [await opened.next() for _ in range(number)]
    assert {event["event"] for event in events} == {"entry"}
    return [(event["data"]["session"], event["data"]["entry"]["revision"]) for event in events]


async def test_one_stream_follows_several_sessions(stored: Any) -> None:
    sessions = [await stored.services.environments["counter"].sessions.seed(ROW, session_id=id) for id in ("a,:%", "b")]
    one, other = sessions
    await other.call("increment_counter", {"count": 1})
    asked = quote(f"{quote(one.id, safe='')}:0,b:1,nobody:0", safe="")
    async with open_stream(stored, f"stream?sessions={asked}") as opened:
        assert await read(opened, 2) == [(one.id, 1), ("b", 2)]
        assert (await opened.next())["data"] == {"session": "nobody", "status": "deleted"}
        await one.call("increment_counter", {"count": 1})
        assert await read(opened, 1) == [(one.id, 2)]
        await other.close()
        assert await read(opened, 1) == [("b", 3)]
        assert (await opened.next())["data"] == {"session": "b", "status": "closed"}
        await one.close()
        assert await read(opened, 1) == [(one.id, 3)]
        assert await opened.end() == {"status": "closed"}


async def test_a_stream_continues_after_any_event_without_gap_or_duplicate(stored: Any) -> None:
    sessions = [await seed(stored) for _ in range(3)]
    for session in sessions:
        for _ in range(3):
            await session.call("increment_counter", {"count": 1})
        await session.close()
    asked = ",".join(f"{session.id}:1" for session in sessions)
    expected = [(session.id, revision) for session in sessions for revision in range(2, 6)]
    for breaks_after in range(1, 12):
        async with open_stream(stored, f"stream?sessions={asked}") as opened:
            found: list[Any] = []
            while len(found) < breaks_after:
                event = await opened.next()
                if event["event"] == "entry":
                    found.append((event["data"]["session"], event["data"]["entry"]["revision"]))
        async with open_stream(stored, f"stream?sessions={asked}", **{"Last-Event-ID": event["id"]}) as opened:
            while lines := await opened.lines():
                if lines[1] == "event: entry":
                    data = json.loads(lines[2].removeprefix("data: "))
                    found.append((data["session"], data["entry"]["revision"]))
        assert found == expected


MANY = ",".join(f"{number}:0" for number in range(101))


@pytest.mark.parametrize("wrong", ["", "a", ":1", "a:x", "a:-1", "a:1,", "*:x", f"a:{'9' * 50}", "a:\u0661", MANY])
async def test_sessions_that_cannot_be_followed_are_refused(served: Any, wrong: str) -> None:
    status, refused = await served.get("/admin/stream", params={"sessions": wrong})
    assert (status, list(refused["error"]["fields"])) == (422, ["sessions"])


async def arrived(opened: Stream) -> str:
    event = await opened.next()
    assert (event["event"], event["data"]["status"]) == ("session", "live")
    return event["data"]["id"]


async def test_new_sessions_arrive_and_old_ones_do_not(stored: Any) -> None:
    old = await seed(stored)
    async with open_stream(stored, f"stream?sessions=*,{old.id}:1") as opened:
        first = await opened.next()
        assert (first["event"], first["data"]) == ("listening", {})
        new = [(await seed(stored)).id for _ in range(3)]
        assert [await arrived(opened) for _ in range(3)] == new
        await old.call("increment_counter", {"count": 1})
        assert {event["event"] for event in [await opened.next(), await opened.next()]} == {"entry", "changed"}
        await stored.services.store.delete(new[2])
        new.append((await old.fork()).id)
        assert await arrived(opened) == new[3]
    async with open_stream(stored, "stream?sessions=*", **{"Last-Event-ID": first["id"]}) as opened:
        events = [await opened.next() for _ in range(3)]
        assert [event["data"]["id"] for event in events] == [new[0], new[1], new[3]]
    async with open_stream(stored, "stream?sessions=*", **{"Last-Event-ID": events[1]["id"]}) as opened:
        assert await arrived(opened) == new[3]


async def test_changes_of_the_newest_sessions_arrive(stored: Any) -> None:
    session, _ = await seed(stored), await seed(stored)
    async with open_stream(stored, "stream?sessions=*") as opened:
        assert (await opened.next())["event"] == "listening"
        told = []
        for change in (session.call("increment_counter", {"count": 2}), session.verify(), session.close()):
            await change
            event = await opened.next()
            assert (event["event"], event["data"]["id"]) == ("changed", session.id)
            told.append((event["data"]["revision"], event["data"]["reward"], event["data"]["status"]))
        assert [*told[0], told[1][1] is None, told[2][2]] == [2, None, "live", False, "closed"]


async def test_a_session_that_was_created_earlier_and_comes_later_arrives(serve: Any) -> None:
    now = 1000.0
    served = await serve(now=lambda: now)
    await seed(served)
    async with open_stream(served, "stream?sessions=*") as opened:
        assert (await opened.next())["event"] == "listening"
        for created in (1010.0, 1005.0):
            now = created
            session = await seed(served)
            assert await arrived(opened) == session.id


async def test_too_many_new_sessions_are_said(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_NEWEST_SESSIONS", 3)
    monkeypatch.setattr(stream_module, "POLL_SECONDS", 0.0)  # no read is shared: the next one has all that is there
    served = await serve()
    async with open_stream(served, "stream?sessions=*") as opened:
        start = (await opened.next())["id"]
    new = [(await seed(served)).id for _ in range(5)]
    async with open_stream(served, "stream?sessions=*", **{"Last-Event-ID": start}) as opened:
        events = [await opened.next() for _ in range(4)]
        assert [event["data"].get("id") for event in events] == [None, *new[2:]]
        assert events[0]["event"] == "missed"
        for id in new[2:]:
            await served.services.store.delete(id)  # older ones are among the newest now, and not new
        last = await seed(served)
        assert await arrived(opened) == last.id


async def test_all_clients_share_one_read_of_the_newest_sessions(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "POLL_SECONDS", 600.0)
    served = await serve()
    store, reads = served.services.store, 0
    heads = store.heads

    async def counted(**options: Any) -> Any:
        nonlocal reads
        reads += 1
        return await heads(**options)

    monkeypatch.setattr(store, "heads", counted)
    for _ in range(3):
        async with open_stream(served, "stream?sessions=*") as opened:
            assert (await opened.next())["event"] == "listening"
    assert reads == 1
