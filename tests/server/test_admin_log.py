"""The log of a session over the admin API, page by page: onwards, backwards, by kind and by text."""

import asyncio
from typing import Any

import pytest

from stateroom import Environment, State, Verdict, tool
from stateroom.errors import ToolError
from stateroom.session import Retention, RetentionPolicy, history, log_reader


class Notes(State):
    pages: dict[str, str] = {}
    written: int = 0


class NotesEnvironment(Environment[Notes]):
    """Keep notes."""

    def seed(self, task: Any) -> Notes:
        return Notes()

    @tool
    def write(self, state: Notes, title: str, text: str) -> str:
        """Write a note."""
        state.pages[title] = text
        state.written += 1
        return f"{title} is written"

    @tool(effect="external")
    def send(self, state: Notes) -> None:
        """Send the notes."""
        raise ToolError("the printer is on fire")

    def verify(self, state: Notes) -> Verdict:
        return Verdict(0.5, components={"pages": 0.25, "style": 0.25}, reason="it is short")


@pytest.fixture
async def served(serve: Any) -> Any:
    return await serve(NotesEnvironment())


async def noted(served: Any, number: int) -> Any:
    """A session with a number of notes."""
    session = await served.services.environments["notes"].sessions.seed({})
    for each in range(number):
        assert (await session.call("write", {"title": f"note {each}", "text": f"Ein Stück {each}"})).ok
    return session


async def page(served: Any, session: Any, query: str) -> dict[str, Any]:
    status, found = await served.get(f"/admin/sessions/{session.id}/log?{query}")
    assert status == 200
    return found


def revisions(found: dict[str, Any]) -> list[int]:
    return [entry["revision"] for entry in found["entries"]]


async def walk(served: Any, session: Any, direction: str, start: int, query: str) -> list[list[int]]:
    """The revisions on each page, as far as it goes."""
    pages, at = [], start
    while at is not None:
        found = await page(served, session, f"{direction}={at}&{query}")
        pages.append(revisions(found))
        assert found["next"] != at
        at = found["next"]
    return pages


async def test_a_log_backwards_is_the_whole_log(served: Any) -> None:
    parent = await noted(served, 4)
    session = await parent.fork(at=4)
    for each in range(4):
        await session.call("write", {"title": f"more {each}", "text": "x"})
    assert await walk(served, session, "before", 2**53, "limit=3") == [[6, 7, 8], [3, 4, 5], [1, 2]]
    assert await walk(served, session, "before", 6, "limit=100") == [[1, 2, 3, 4, 5]]
    assert await walk(served, session, "before", 6, "limit=2&after=2") == [[4, 5], [3]]
    assert await walk(served, session, "before", 1, "limit=2") == [[]]
    whole = (await page(served, session, ""))["entries"]
    assert (await page(served, session, "before=7&limit=3"))["entries"] == whole[3:6]


@pytest.mark.parametrize("direction", ["after", "before"])
async def test_kinds_and_texts_filter(served: Any, direction: str) -> None:
    session = await noted(served, 2)
    await session.call("send", {})
    await session.checkpoint("The Middle")
    await session.rewind(to=2)
    start = 0 if direction == "after" else 100

    async def found(query: str) -> list[int]:
        [only] = await walk(served, session, direction, start, query)
        return only

    assert await found("kinds=call") == [2, 3]
    assert await found("kinds=failed,checkpoint") == [5, 6]
    assert await found("kinds=nothing") == []
    assert await found("text=EIN+ST%C3%BCCK+1") == [3, 7]  # an argument, and what the rewind took away
    assert await found("text=printer") == [5]  # a message
    assert await found("text=middle") == [6]  # a name
    assert await found("text=WRITE&kinds=call") == [2, 3]
    assert await found("text=call_id") == []  # which is our word, and nothing that was said
    assert await found("text=success") == []


async def test_a_search_reads_a_part_of_the_log_a_time(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "MAX_ENTRIES_SCANNED", 10)
    session = await noted(served, 30)
    assert await walk(served, session, "after", 0, "text=note+7&limit=2") == [[9], [], [], []]
    assert await walk(served, session, "before", 100, "text=note+7&limit=2") == [[], [], [9], []]
    several = await walk(served, session, "after", 0, "text=note+1&limit=4")
    assert several == [[3], [12, 13, 14, 15], [16, 17, 18, 19], [20, 21], []]
    several = await walk(served, session, "before", 100, "text=note+2&limit=4")
    assert several == [[28, 29, 30, 31], [24, 25, 26, 27], [22, 23], [4], []]


@pytest.mark.parametrize("query", ["limit=1000", "limit=1000&text=note", "limit=1000&kinds=call"])
async def test_a_page_holds_so_many_bytes_and_no_more(served: Any, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    monkeypatch.setattr(log_reader, "MAX_PAGE_BYTES", 3_000)
    session = await noted(served, 30)
    await session.call("write", {"title": "a large note", "text": "x" * 10_000})
    whole = [each["revision"] for each in (await page(served, session, "limit=1000"))["entries"]]
    assert len(whole) < 30
    first = 1 if query == "limit=1000" else 2
    onwards = await walk(served, session, "after", 0, query)
    assert [each for page in onwards for each in page] == [*range(first, 33)]
    backwards = await walk(served, session, "before", 100, query)
    assert [each for page in reversed(backwards) for each in page] == [*range(first, 33)]
    assert backwards[0] == [32]  # alone it is more
    assert 3 <= len(onwards) < 20


async def test_a_long_load_does_not_stop_the_server(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LARGE_LOAD_BYTES", 1_000)
    session = await noted(served, 30)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    ticks = 0
    await history.History(served.services.store).document(session.id, 20)  # from memory: nothing is waited for
    assert ticks > 0
    ticking.cancel()


@pytest.mark.usefixtures("snapshot_every_commit")
async def test_what_was_pruned_is_said(served: Any) -> None:
    session = await noted(served, 40)
    pruning = Retention(served.services.store, RetentionPolicy(keep=5), served.services.now)
    [(_, cut)] = [made async for made in pruning.carry_out()]
    assert cut is not None
    assert cut.below is not None
    gone = [[2, cut.below]]
    kinds = [["seed", 1, 1], ["call", cut.below + 1, 41]]
    assert await served.get(f"/admin/sessions/{session.id}/log/kinds") == (200, {"revision": 41, "kinds": kinds})
    found = await page(served, session, "limit=1000")
    assert (revisions(found), found["pruned"]) == ([1, *range(cut.below + 1, 42)], gone)
    assert found["entries"][1]["changes"][0]["kind"] == "new"
    found = await page(served, session, "before=100&limit=1000&text=note")
    assert (revisions(found), found["pruned"]) == ([*range(cut.below + 1, 42)], gone)
    found = await page(served, session, f"before={cut.below}&limit=3")
    assert found == {"entries": [], "next": cut.below - 3, "pruned": [[cut.below - 3, cut.below - 1]]}
    found = await page(served, session, f"before=100&limit={41 - cut.below}")
    assert (found["next"], found["pruned"]) == (cut.below + 1, [])
    found = await page(served, session, "before=100&limit=2&text=note")
    assert (revisions(found), found["next"], found["pruned"]) == ([40, 41], 40, [])
    found = await page(served, session, "after=1&limit=2")
    assert found == {"entries": [], "next": 3, "pruned": [[2, 3]]}
