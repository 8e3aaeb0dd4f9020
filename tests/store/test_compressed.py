"""`compress=zstd`: smaller in the store, the same outside."""

import pytest
from hypothesis import example, given, strategies as st

from stateroom.errors import BadData
from stateroom.session import read_entry
from stateroom.state import decode, digest_of, encode
from stateroom.store import Commit, Entry, MemoryStore, open_store
from stateroom.store.compression import PACKED, PLAIN, SMALL_BODY_BYTES, CompressedStore
from stateroom.store.wrapper import MARK
from tests.messages import raises
from tests.store.bodies import bodies, fill

TEXT = b"the same words again and again, " * 40
PLACES = [("entry", "room", 7, "call", None), ("snapshot", "room", 7), ("blob", "room", "ab12")]


async def test_every_body_is_compressed_in_the_store_and_nowhere_else(url: str) -> None:
    async with open_store(f"{url}?compress=zstd") as store:
        await fill(store, TEXT)
        assert set(await bodies(store)) == {TEXT}
    async with open_store(url) as bare:
        kept = await bodies(bare)
    assert len(kept) == 13
    assert all(body.startswith(PACKED) and len(body) < len(TEXT) / 10 for body in kept)


async def test_what_was_written_before_stays_readable(url: str) -> None:
    """Also a blob that looks as if it were compressed: blobs may be any bytes."""
    disguised = CompressedStore(MemoryStore()).write(TEXT, PLACES[0])
    async with open_store(url) as bare:
        await fill(bare, b"\x92" + TEXT)
        blobs = {digest_of(disguised): disguised}
        await bare.append(Commit("room", Entry(3, "call", 1.0, b"\x92"), blobs=blobs))
    async with open_store(f"{url}?compress=zstd") as store:
        assert [entry.body for entry in await store.entries("room")] == [b"\x92" + TEXT] * 2 + [b"\x92"]
        assert await store.blobs("room", [digest_of(disguised)]) == blobs
        await store.append(Commit("room", Entry(4, "call", 1.0, TEXT)))
        assert (await store.load("room")).entries[-1].body == TEXT


@given(st.binary(max_size=300) | st.binary(max_size=40).map(lambda part: part * 20), st.sampled_from(PLACES))
@example(MARK, PLACES[2])
@example(PACKED + b"\x28\xb5\x2f\xfd", PLACES[2])
@example(PLAIN * 100, PLACES[0])
def test_any_body_comes_back(body: bytes, place) -> None:
    store = CompressedStore(MemoryStore())
    kept = store.write(body, place)
    assert store.read(kept, place) == body
    assert len(kept) <= len(body) + 2 * body.startswith(MARK)
    if len(body) < SMALL_BODY_BYTES and not body.startswith(MARK):
        assert kept == body


def test_a_body_that_does_not_become_smaller_stays_as_it_is() -> None:
    noise = bytes(range(256))
    assert CompressedStore(MemoryStore()).write(noise, PLACES[2]) == noise


def test_a_damaged_bit_is_noticed() -> None:
    store = CompressedStore(MemoryStore())
    kept = store.write(TEXT, PLACES[0])
    for bit in range(8, 8 * len(kept)):
        damaged = bytearray(kept)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert store.read(bytes(damaged), PLACES[0]) == TEXT  # a bit that zstd does not use
        except BadData as error:
            assert "entry 7 of session 'room'" in str(error)  # noqa: PT017


@pytest.mark.parametrize("length", range(2, 40))
def test_a_body_that_was_cut_short_is_noticed(length: int) -> None:
    store = CompressedStore(MemoryStore())
    with raises(BadData):
        store.read(store.write(TEXT, PLACES[1])[:length], PLACES[1])


async def test_encrypted_bodies_are_not_taken_for_compressed_ones(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOM_KEYS", "k1:" + "A" * 43 + "=")
    async with open_store(f"{url}?compress=zstd&keys=env:ROOM_KEYS") as store:
        await fill(store, TEXT)
        assert set(await bodies(store)) == {TEXT}
    async with open_store(f"{url}?compress=zstd") as store:
        with raises(BadData):
            await store.entries("room")


@pytest.mark.parametrize("options", ["compress=zstd", "keys=env:ROOM_KEYS"])
async def test_without_the_option_it_is_said_what_is_missing(
    url: str, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setenv("ROOM_KEYS", "k1:" + "A" * 43 + "=")
    async with open_store(f"{url}?{options}") as store:
        await fill(store, encode({"text": "the same words again and again" * 9}))
    async with open_store(url) as bare:
        loaded = await bare.load("room", 1)
        assert loaded.snapshot
        snapshot = loaded.snapshot.body
        [_, entry] = await bare.entries("room")
        for read in (lambda: decode(snapshot), lambda: read_entry(entry)):
            with raises(BadData):
                read()
