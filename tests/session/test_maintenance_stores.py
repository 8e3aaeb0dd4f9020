"""Care on every kind of store: a family is copied there and back, pruned and removed, and nothing is wrong with it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateroom import open_store
from stateroom.session import Copier, History, count_sessions
from stateroom.store import Record, Store
from tests.servers.stores import fresh_store
from tests.session.stored_sessions import family, go_on, new, problems, prune, sessions_of

pytestmark = pytest.mark.usefixtures("many_snapshots")


KINDS = ["sqlite", "file", "redis", "postgresql", "s3", "tiered", "sqlite?compress=zstd&keys=env:CARE_KEYS"]


@pytest.fixture(params=KINDS)
def there(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a fresh store of each kind."""
    monkeypatch.setenv("CARE_KEYS", "one:" + "A" * 43 + "=")
    kind, _, options = request.param.partition("?")
    with fresh_store(kind, request.getfixturevalue, tmp_path) as url:
        yield f"{url}?{options}" if options else url


async def records(store: Store, ids: list[str]) -> list[Record]:
    return [await store.maintenance.export(session) for session in ids]


async def copy(source: Store, target: Store, ids: list[str]) -> None:
    copier = Copier(source, target)
    for session in reversed(ids):
        await copier.copy(session)


async def test_there_and_back(there: str) -> None:
    async with open_store("memory://") as home, open_store(there) as away, open_store("memory://") as again:
        ids = await family(home)
        await copy(home, away, ids)
        assert await problems(away) == {}
        await copy(away, again, ids)
        assert await records(again, ids) == await records(home, ids)
        states = {session: (await History(home).document(session)).state for session in ids}

        fork = await sessions_of(home).open(ids[1])
        await go_on(fork, 30)
        await copy(home, away, ids)  # up to date
        assert await records(away, ids) == await records(home, ids)

        assert set(await prune(away, keep=10)) == {ids[0]}
        assert await problems(away) == {}
        assert {session: (await History(away).document(session)).state for session in ids if session != ids[1]} == {
            session: state for session, state in states.items() if session != ids[1]
        }
        await go_on(await sessions_of(away).open(ids[1]), 2)
        now = time.time()
        await prune(away, lambda: now + 7200, closed=3600.0)
        found = await count_sessions(away, now=now, top=1, done=lambda: None)
        assert found.sessions == {"notes": {"live": 3}}
        assert found.largest[0][0].id in ids[:2]
        await away.maintenance.vacuum()
        assert await problems(away) == {}
        assert len((await History(away).document(ids[1])).state["notes"]) == len(fork.state.notes) + 2


async def test_a_lost_object_is_found(tmp_path: Path) -> None:
    async with open_store(f"file://{tmp_path / 'rooms'}") as store:
        hurt = await new(store, 60)
        await hurt.call("add", {"text": "large " * 20_000})
        whole = await new(store, 60)
        before = {path for path in (tmp_path / "rooms").rglob("*") if path.is_file()}
        await go_on(whole, 60)
        for path in (tmp_path / "rooms").rglob("*"):
            if path in before and "data" in path.parts and path.stat().st_size > 20_000:
                path.unlink()
        found = await problems(store)
    assert set(found) == {hurt.id}


async def test_what_cannot_be_decrypted_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'rooms.db'}?keys=env:CARE_KEYS"
    monkeypatch.setenv("CARE_KEYS", "one:" + "A" * 43 + "=")
    async with open_store(url) as store:
        session = await new(store, 3)
    monkeypatch.setenv("CARE_KEYS", "two:" + "B" * 43 + "=")
    async with open_store(url) as store:
        (found,) = (await problems(store))[session.id]
    assert "is encrypted with the key 'one'; add that key to keys=" in found
