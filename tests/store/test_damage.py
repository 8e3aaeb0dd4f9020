"""Stored data that is damaged is an error of its session, and of no other."""

import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import pytest

from stateroom.errors import BadData
from tests.messages import raises
from tests.servers.redis import RedisKeys
from tests.store.conftest import Fresh
from tests.store.rooms import FAR, begin, entry

HEADS = [
    ("sqlite", "UPDATE sessions SET owner = CAST(x'ff' AS TEXT) WHERE id = 'bad'"),
    ("sqlite", "UPDATE sessions SET created = 'when' WHERE id = 'bad'"),
    ("postgresql", r"UPDATE sessions SET owner = '\xff' WHERE id = 'bad'"),
    ("redis", ("HSET", "{/bad}", "head", "garbage")),
    ("redis", ("HSET", "{/bad}", "expires", "garbage")),
    ("redis", ("SET", "{/bad}", "garbage")),
]
ENTRIES = [
    ("sqlite", "UPDATE entries SET kind = CAST(x'ff' AS TEXT) WHERE session = 'bad'"),
    ("postgresql", r"UPDATE entries SET kind = '\xff' WHERE session = 'bad'"),
    ("redis", ("HSET", "{/bad}", "e:1", b"\xc1garbage")),
]


@pytest.fixture
def url(kind: str, fresh: Fresh) -> str:
    return fresh(kind)


def damage(kind: str, url: str, how: Any) -> None:
    """What a broken disk, or another program, does to the session `bad`."""
    if kind == "sqlite":
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
            file.execute(how)
    elif kind == "redis":
        with RedisKeys(url) as keys:
            command, key, *values = how
            keys.client.execute_command(command, keys.prefix + key, *values)
    else:
        server, _, schema = url.rpartition("?schema=")
        with psycopg.connect(server, autocommit=True, options=f"-c search_path={schema}") as connection:
            connection.execute(how)


@pytest.mark.parametrize(("kind", "how"), HEADS)
async def test_a_damaged_session_is_an_error_of_its_own_and_no_other(store: Any, url: str, kind: str, how: Any) -> None:
    await begin(store, "room", "bad", "another")
    damage(kind, url, how)
    assert sorted(head.id for head in await store.heads(limit=2)) == ["another", "room"]
    assert await store.count(0.0) >= 2
    assert await store.sweep(0.0) == 0
    for read in (store.head, store.load, store.maintenance.export):
        with raises(BadData):
            await read("bad")
    assert [line for line in await store.maintenance.orphans() if "bad" in line and "damaged" in line]
    await store.maintenance.vacuum()
    await store.maintenance.sizes()
    if kind != "redis":
        await store.delete("bad")
        assert await store.maintenance.orphans() == []
    assert await store.sweep(FAR) >= 2
    assert await store.heads() == []


@pytest.mark.parametrize(("kind", "how"), ENTRIES)
async def test_a_damaged_entry_is_an_error_of_its_session_which_can_be_removed(
    store: Any, url: str, kind: str, how: Any
) -> None:
    await begin(store, "room", "bad")
    damage(kind, url, how)
    for read in (store.load, store.maintenance.export):
        with raises(BadData):
            await read("bad")
    assert (await store.load("room")).entries == [entry(1)]
    assert await store.sweep(FAR) == 2
