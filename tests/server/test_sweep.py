"""What a server does for itself, and what it says when it no longer can."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stateroom.store import Entry, Head, open_store
from tests.patience import PATIENCE


@pytest.mark.parametrize("error", [asyncio.CancelledError, ZeroDivisionError])
async def test_a_sweep_that_fails_is_not_the_last(
    serve: Any, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    served, sweeps = await serve(ttl=0.1), asyncio.Semaphore(0)

    async def sweep() -> int:
        sweeps.release()
        raise error

    monkeypatch.setattr(served.services.environments["counter"].sessions, "sweep", sweep)
    async with asyncio.timeout(PATIENCE):
        await sweeps.acquire()
        await sweeps.acquire()


async def test_a_server_is_not_ready_when_the_thread_of_its_store_has_died(
    serve: Any, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise SystemExit("out of luck")

    served = await serve(store=shared_url)
    monkeypatch.setattr("stateroom.store.sqlite.thread.do_together", die)
    async with asyncio.timeout(60):
        for path in ("/ready", "/ready"):
            status, body = await served.get(path)
            assert (status, body["error"]["code"]) == (503, "store_unavailable")
            assert "out of luck" in body["error"]["message"]
        assert (await served.get("/health"))[0] == 200


async def test_a_server_is_not_ready_when_its_file_was_deleted(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "rooms.db"
    served = await serve(store=f"sqlite:///{path}")
    path.unlink()
    status, body = await served.post("/seed_session", {"initial_count": 3, "expected_count": 9})
    assert (status, body["error"]["code"]) == (503, "store_unavailable")
    assert (await served.get("/ready"))[0] == 503


async def test_a_server_starts_and_serves_with_a_damaged_object_in_its_store(serve: Any, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/rooms"
    async with open_store(url) as store:
        await store.create(Head("bad", "counter", "", 0.0, 1e12, 1), [Entry(1, "seed", 0.0, b"")])
    (tmp_path / "rooms/heads/i-bad").write_bytes(b"garbage")
    served = await serve(store=url)
    assert (await served.get("/ready"))[0] == 200
    assert (await served.post("/seed_session", {"initial_count": 3, "expected_count": 9}))[0] == 200
    await served.services.environments["counter"].sessions.sweep()
