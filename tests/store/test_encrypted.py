"""`keys=`: what lies in the store tells nothing, and cannot be altered unnoticed."""

import os
import sqlite3
from base64 import b64encode
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from stateroom.errors import BadData, UnknownStore
from stateroom.state import digest_of
from stateroom.store import Commit, Entry, Head, MemoryStore, Snapshot, open_store
from stateroom.store.encryption import FORM, EncryptedStore, read_keys
from tests.messages import raises
from tests.store.bodies import bodies, fill
from tests.store.rooms import visit

OLD, NEW = (f"{name}:{b64encode(name.encode() * 16).decode()}" for name in ("k1", "k2"))
SECRET = b"nobody is to read this"
PLACES = [
    ("entry", "room", 7, "call", None),
    ("entry", "room", 7, "call", "a"),
    ("entry", "room", 7, "failed", None),
    ("entry", "room", 8, "call", None),
    ("entry", "room 2", 7, "call", None),
    ("snapshot", "room", 7),
    ("blob", "room", "7"),
]


@pytest.fixture
def url(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ROOM_KEYS", OLD)
    return f"sqlite:///{path}?keys=env:ROOM_KEYS"


def a_store(*keys: str) -> EncryptedStore:
    os.environ["SOME_KEYS"] = "\n".join(keys or [OLD])
    try:
        return EncryptedStore(MemoryStore(), read_keys("env:SOME_KEYS"))
    finally:
        del os.environ["SOME_KEYS"]


# What lies in the store.


async def test_every_body_is_encrypted_in_the_store_and_nowhere_else(path: Path, url: str) -> None:
    async with open_store(url) as store:
        await fill(store, SECRET)
        assert set(await bodies(store)) == {SECRET}
    async with open_store(f"sqlite:///{path}") as bare:
        kept = await bodies(bare)
    assert len(kept) == 13
    assert all(body.startswith(FORM) and SECRET not in body for body in kept)
    content = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert SECRET not in content
    assert digest_of(SECRET).encode() not in content  # which would tell whether it is what somebody thinks it is


async def test_compressed_bodies_are_encrypted(path: Path, url: str) -> None:
    async with open_store(f"{url}&compress=zstd") as store:
        await fill(store, SECRET * 100)
    async with open_store(f"sqlite:///{path}") as bare:
        kept = await bodies(bare)
    assert all(body.startswith(FORM) and len(body) < 200 for body in kept)


def test_the_same_body_is_never_written_twice_the_same() -> None:
    store = a_store()
    assert len({store.write(SECRET, PLACES[0]) for _ in range(100)}) == 100


async def test_blobs_of_two_sessions_cannot_be_seen_to_be_the_same(url: str) -> None:
    blob = {digest_of(SECRET): SECRET}
    async with open_store(url) as opened:
        store: Any = opened
        for name in ("a", "b"):
            await store.create(Head(name, "env", "owner", 0.0, 1e9, 0), blobs=blob)
            assert await store.blobs(name, list(blob)) == blob
        names = [next(iter((await store.store.maintenance.export(name)).blobs)) for name in ("a", "b")]
    assert len({*names, digest_of(SECRET)}) == 3


@given(st.binary(max_size=300), st.sampled_from(PLACES))
def test_any_body_comes_back(body: bytes, place) -> None:
    store = a_store(NEW, OLD)
    assert store.read(store.write(body, place), place) == body


# What is refused.


@pytest.mark.parametrize("place", PLACES)
def test_any_bit_that_was_altered_is_noticed(place) -> None:
    store = a_store(NEW, OLD)
    kept = store.write(SECRET, place)
    for bit in range(8 * len(kept)):
        altered = bytearray(kept)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadData):
            store.read(bytes(altered), place)


def test_what_was_cut_short_or_made_longer_is_noticed() -> None:
    store = a_store()
    kept = store.write(SECRET, PLACES[0])
    for altered in [kept[:length] for length in range(len(kept))] + [kept + b"\0"]:
        with raises(BadData):
            store.read(altered, PLACES[0])


@pytest.mark.parametrize(("here", "there"), list(permutations(PLACES, 2)))
def test_a_body_cannot_be_moved(here, there) -> None:
    store = a_store()
    with raises(BadData):
        store.read(store.write(SECRET, here), there)


async def test_rows_that_were_swapped_in_the_file_are_refused(path: Path, url: str) -> None:
    async with open_store(url) as store:
        await fill(store, SECRET)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE entries SET revision = 9 WHERE revision = 1")
        connection.execute("UPDATE entries SET revision = 1 WHERE revision = 2")
        connection.execute("UPDATE entries SET revision = 2 WHERE revision = 9")
    connection.close()
    async with open_store(url) as store:
        for read in (store.entries("room"), store.maintenance.export("room"), store.find_call("room", "a")):
            with raises(BadData):
                await read


async def test_plaintext_is_refused_with_what_to_do(path: Path, url: str) -> None:
    async with open_store(f"sqlite:///{path}") as bare:
        await fill(bare, b"\x92 as it is")
    async with open_store(url) as store:
        for read in (
            store.load("room"),
            store.entries("room"),
            store.find_call("room", "a"),
            store.maintenance.export("room"),
        ):
            with raises(BadData):
                await read
        assert await store.blobs("room", ["second"]) == {}
    with raises(BadData):
        a_store().read_blobs("room", {"abc": b"as it is"})


def test_another_key_of_the_same_id_is_noticed() -> None:
    other = OLD.partition(":")[0] + ":" + NEW.partition(":")[2]
    with raises(BadData):
        a_store(other).read(a_store(OLD).write(SECRET, PLACES[0]), PLACES[0])


# New keys for old.


async def test_a_new_key_writes_and_the_old_one_still_reads(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(url) as store:
        await fill(store, SECRET)
    monkeypatch.setenv("ROOM_KEYS", f"{NEW}\n{OLD}")
    async with open_store(url) as store:
        assert set(await bodies(store)) == {SECRET}
        blob = {digest_of(b"third"): b"third"}
        await store.append(
            Commit("room", Entry(3, "call", 1.0, b"later", "b"), snapshot=Snapshot(3, b"state"), blobs=blob)
        )
        assert await store.blobs("room", ["second", *blob]) == {"second": SECRET, **blob}
    monkeypatch.setenv("ROOM_KEYS", NEW)
    async with open_store(url) as store:
        found = await store.find_call("room", "b")
        assert found
        assert found.body == b"later"
        assert await store.blobs("room", ["second", *blob]) == blob
        for read in (store.entries("room"), store.maintenance.export("room"), store.load("room", 2)):
            with raises(BadData):
                await read


async def test_a_copy_has_the_new_key_alone(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEW_KEYS", NEW)
    copy = f"sqlite:///{tmp_path / 'copy.db'}?keys=env:NEW_KEYS"
    async with open_store(url) as store, open_store(copy) as new:
        await fill(store, SECRET)
        record = await store.maintenance.export("room")
        await new.put(record)
        await new.put(record)  # as when a copy is made again
        assert await new.maintenance.export("room") == record
    async with open_store(copy) as new:
        assert set(await bodies(new)) == {SECRET}


# Where keys come from.


def test_keys_are_lines_or_between_commas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{NEW}\n\n  {OLD}  \n")
    monkeypatch.setenv("ROOM_KEYS", f"{NEW},{OLD}")
    assert read_keys(f"file:{file}") == read_keys("env:ROOM_KEYS") == {"k2": b"k2" * 16, "k1": b"k1" * 16}
    assert list(read_keys("env:ROOM_KEYS")) == ["k2", "k1"]


@pytest.mark.parametrize("length", [16, 24, 32])
def test_all_lengths_of_aes_keys_work(length: int) -> None:
    store = a_store("k:" + b64encode(bytes(length)).decode())
    assert store.read(store.write(SECRET, PLACES[0]), PLACES[0]) == SECRET


VALUE = b64encode(b"secret secret secret secret, 32b").decode()


@pytest.mark.parametrize(
    "text",
    [
        *("", " ,\n, ", VALUE, f"{OLD}\n:{VALUE}", f"my key:{VALUE}", f"{'n' * 65}:{VALUE}", f"k1:{VALUE[:-1]}"),
        *(f"k1:{VALUE[:-2]}!=", f"k1:{VALUE[:-2]}é=", "k1:c2VjcmV0", f"k1:{VALUE},{OLD}"),
    ],
)
async def test_keys_that_cannot_be_used_are_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "keys").write_text(text)
    monkeypatch.setenv("ROOM_KEYS", text)
    for source in ("env:ROOM_KEYS", f"file:{tmp_path / 'keys'}"):
        with raises(UnknownStore) as refused:
            await visit(f"sqlite:///{tmp_path / 'rooms.db'}?keys={source}")
        assert "c2Vj" not in str(refused.value)
        assert not (tmp_path / "rooms.db").exists()


@pytest.mark.parametrize(
    "source", ["env:NO_SUCH_VARIABLE", "file:/no/such/file", "file:/", "env:", "file:", "", f"k1:{VALUE}"]
)
async def test_a_place_of_keys_that_cannot_be_used_is_refused(source: str) -> None:
    with raises(UnknownStore) as refused:
        await visit(f"memory://?keys={source}")
    assert VALUE not in str(refused.value)


def test_a_file_of_raw_bytes_is_no_file_of_keys(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"\xff" * 32)
    with raises(UnknownStore):
        read_keys(f"file:{tmp_path / 'keys'}")
