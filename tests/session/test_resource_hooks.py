"""Hooks of resources that fail, and that everything ends."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment, Resource, SessionInfo, SessionLimits, Sessions, ToolError, open_store, tool
from stateroom.errors import StateroomError
from stateroom.session import Session
from stateroom.store import Store
from tests.messages import raises, says
from tests.patience import PATIENCE
from tests.session.outside import Desk, Office, Page, files, write


class Trouble(Resource[dict[str, Any]]):
    """Does what it should, but for one hook."""

    kind = "exportable"

    def __init__(self, hook: str, error: BaseException | None) -> None:
        self.hook = hook
        self.error = error

    async def _do(self, hook: str) -> None:
        if hook == self.hook:
            if self.error is None:
                await asyncio.Event().wait()
            else:
                raise self.error

    async def start(self, session: SessionInfo, /) -> dict[str, Any]:
        await self._do("start")
        return {}

    async def stop(self, handle: dict[str, Any], /) -> None:
        await self._do("stop")

    async def save(self, handle: dict[str, Any], /) -> Any:
        await self._do("save")
        return dict(handle)

    async def restore(self, saved: Any, session: SessionInfo, /) -> dict[str, Any]:
        await self._do("restore")
        return dict(saved)


def troubled(store: Store, trouble: Resource[Any]) -> Sessions[Desk]:
    class TroubleEnvironment(Environment[Desk]):
        resources = {"box": trouble}

        @tool
        async def put(self, state: Desk, box: dict[str, Any], what: Any) -> Any:
            """Put something in."""
            box[str(len(box))] = what
            state.notes.append("put")
            return dict(box)

        def verify(self, box: dict[str, Any]) -> float:
            return float(len(box))

    return Sessions(TroubleEnvironment(), store, SessionLimits(timeout=0.5))


TROUBLES = [
    (ToolError("no box today"), "tool_error"),
    (OSError(), "tool_failed"),
    (SystemExit(), "tool_failed"),
    (None, "timeout"),
]


@pytest.mark.parametrize(("error", "code"), TROUBLES)
@pytest.mark.parametrize("hook", ["start", "save", "restore"])
async def test_a_hook_that_fails_is_a_call_that_fails(
    store: Store, hook: str, error: BaseException | None, code: str
) -> None:
    trouble = Trouble("", error)
    session = await troubled(store, trouble).seed({})
    if hook == "restore":
        await session.call("put", {"what": 1})
        session = await session.fork()
    trouble.hook = hook
    failed = await session.call("put", {"what": 2})
    assert failed.code == code
    says(failed.error or "")
    before = len(session.state.notes)
    trouble.hook = ""
    assert len((await session.call("put", {"what": 3})).output) == before + 1
    if hook != "save":
        trouble.hook = hook
        with raises(StateroomError):
            await (await session.fork(at=session.revision if hook == "restore" else 1)).verify()


async def test_what_cannot_be_stored_fails_by_name(store: Store) -> None:
    class Odd(Trouble):
        async def save(self, handle: dict[str, Any], /) -> Any:
            return object()

    session = await troubled(store, Odd("", None)).seed({})
    result = await session.call("put", {"what": 1})
    says(result.error or "")


async def test_what_is_larger_than_a_state_may_be_fails(store: Store) -> None:
    sessions = troubled(store, Trouble("", None))
    sessions.cache.resources.most = 1000
    session = await sessions.seed({})
    result = await session.call("put", {"what": "x" * 1000})
    assert (result.code, session.revision) == ("too_large", 1)
    says(result.error or "")


class Slow(Resource[list[str]]):
    """Starts on a thread, when it is told to."""

    kind = "restart_only"

    def __init__(self) -> None:
        self.go = threading.Event()
        self.entered = threading.Event()
        self.stopped = asyncio.Event()

    def start(self, session: SessionInfo, /) -> list[str]:
        self.entered.set()
        self.go.wait()
        return ["late"]

    async def stop(self, handle: list[str], /) -> None:
        assert handle == ["late"]
        self.stopped.set()


async def test_what_comes_too_late_is_stopped(store: Store) -> None:
    slow = Slow()
    session = await troubled(store, slow).seed({})
    assert (await session.call("put", {"what": 1})).code == "timeout"
    slow.go.set()
    await asyncio.wait_for(slow.stopped.wait(), PATIENCE)


@pytest.mark.parametrize("error", [OSError("stuck"), None])
async def test_a_stop_that_fails_is_in_the_log(caplog: pytest.LogCaptureFixture, error: BaseException | None) -> None:
    async with open_store("memory://") as store:
        trouble = Trouble("stop", error)
        session = await troubled(store, trouble).seed({})
        await session.call("put", {"what": 1})
        await session.close()
    assert [record.levelno for record in caplog.records][-1] == logging.WARNING
    assert "the box could not be stopped" in caplog.text


async def test_what_a_hook_gives_need_not_be_bytes(store: Store) -> None:
    session = await troubled(store, Trouble("", None)).seed({})
    await session.call("put", {"what": {"deep": ["é", 1.5, None]}})
    fork = await session.fork()
    assert (await fork.call("put", {"what": 2})).output == {"0": {"deep": ["é", 1.5, None]}, "1": 2}


# Everything ends.


async def used(session: Session[Desk], office: Office) -> tuple[Path, Page]:
    """A session's folder and its page."""
    await session.call("visit", {"address": "a"})
    page = office.given
    await write(session, "file")
    return office.given, page


@pytest.mark.parametrize("how", ["close", "verify", "forget", "stop", "sweep", "evict"])
async def test_every_end_stops_the_resources_of_a_session(store: Store, how: str) -> None:
    now = [1e9]
    office = Office(store, hot=1, ttl=100.0, now=lambda: now[0])
    session = await office.sessions.seed({})
    folder, page = await used(session, office)
    match how:
        case "close":
            await session.close()
        case "verify":
            await session.verify()
        case "forget":
            office.sessions.forget(session.id)
        case "stop":
            await office.sessions.stop()
        case "sweep":
            now[0] += 1000
            await office.sessions.sweep()
        case "evict":
            await office.sessions.seed({})
    await asyncio.wait_for(page.closed.wait(), PATIENCE)
    assert not folder.exists()  # what was used first is stopped last
    if how in ("forget", "stop", "evict"):  # it goes on
        assert set(await files(session)) == {"file"}
        again = office.given
        await office.sessions.stop()
        assert not again.exists()


class Slots(Resource[dict[str, Any]]):
    """Knows how many are being stopped."""

    kind = "restart_only"

    def __init__(self) -> None:
        self.stopping = self.most = self.stopped = 0
        self.begun = asyncio.Event()

    def start(self, session: SessionInfo, /) -> dict[str, Any]:
        return {}

    async def stop(self, handle: dict[str, Any], /) -> None:
        self.stopping += 1
        self.begun.set()
        self.most = max(self.most, self.stopping)
        await asyncio.sleep(0)
        self.stopping -= 1
        self.stopped += 1


async def test_so_many_are_stopped_at_once_and_no_more() -> None:
    async with open_store("memory://") as store:
        slots = Slots()
        sessions = troubled(store, slots)
        for _ in range(200):
            await (await sessions.seed({})).call("put", {"what": 1})
        await sessions.stop()
    assert slots.stopped == 200
    assert 1 < slots.most < 100


async def test_what_is_not_at_hand_keeps_nothing(store: Store) -> None:
    office = Office(store, hot=1)
    session = await office.sessions.seed({})
    other = await office.sessions.seed({})  # which drives the first one out
    page = (await used(session, office))[1]  # which drives the other one out again
    assert not page.closed.is_set()
    await used(other, office)
    await asyncio.wait_for(page.closed.wait(), PATIENCE)
    assert set(await files(session)) == {"file"}
    await office.sessions.stop()
    assert not [folder for folder in office.environment.given if isinstance(folder, Path) and folder.exists()]


class Traced(Resource[dict[str, Any]]):
    """Knows which are running; each of its hooks takes some turns of the loop."""

    kind = "exportable"

    def __init__(self) -> None:
        self.running: list[dict[str, Any]] = []

    async def start(self, session: SessionInfo, /) -> dict[str, Any]:
        return await self.restore({}, session)

    async def restore(self, saved: dict[str, Any], session: SessionInfo, /) -> dict[str, Any]:
        await asyncio.sleep(0)
        self.running.append(handle := dict(saved))
        await asyncio.sleep(0)
        return handle

    async def save(self, handle: dict[str, Any], /) -> dict[str, Any]:
        return handle

    async def stop(self, handle: dict[str, Any], /) -> None:
        await asyncio.sleep(0)
        self.running = [other for other in self.running if other is not handle]


@pytest.mark.parametrize("spoiled", [False, True])
async def test_whenever_a_call_is_cancelled_nothing_is_left_running(spoiled: bool) -> None:
    cancelled, turns = True, 0
    while cancelled:
        async with open_store("memory://") as store:
            traced = Traced()
            sessions = troubled(store, traced)
            session = await sessions.seed({})
            if spoiled:  # so that the one there is has to be stopped, and another restored
                await session.call("put", {"what": 1})
                sessions.cache.resources.most, most = 0, sessions.cache.resources.most
                assert (await session.call("put", {"what": 1})).code == "too_large"
                sessions.cache.resources.most = most
            calling = asyncio.create_task(session.call("put", {"what": 2}))
            for _ in range(turns):
                await asyncio.sleep(0)
            calling.cancel()
            await asyncio.wait([calling])
            cancelled, turns = calling.cancelled(), turns + 1
            await sessions.stop()
            assert traced.running == []
    assert turns > 5


async def test_what_a_thread_makes_for_one_who_was_cancelled_is_stopped(store: Store) -> None:
    slow = Slow()
    sessions = troubled(store, slow)
    sessions.runtime.runner.timeout = 10.0
    calling = asyncio.create_task((await sessions.seed({})).call("put", {"what": 1}))
    await asyncio.to_thread(slow.entered.wait)
    calling.cancel()
    await asyncio.wait([calling])
    slow.go.set()
    await sessions.stop()
    assert slow.stopped.is_set()


async def test_a_session_whose_close_is_cancelled_keeps_nothing(store: Store) -> None:
    slots = Slots()
    sessions = troubled(store, slots)
    session = await sessions.seed({})
    await session.call("put", {"what": 1})
    closing = asyncio.create_task(session.close())
    await slots.begun.wait()
    closing.cancel()
    await asyncio.wait([closing])
    await sessions.stop()
    assert slots.stopped == 1
