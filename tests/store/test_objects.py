"""`s3://`, `gs://`, `az://` and `file://`: sessions as objects."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from obstore.store import AzureStore, GCSStore, S3Store

from stateroom.errors import BadData, Conflict, ForeignStore, StoreError, StoreUnavailable, UnknownSession
from stateroom.store import Commit, Snapshot, open_store, parse_url, store_class
from stateroom.store.objects import bucket
from stateroom.store.objects.bucket import RETRY, TIMEOUT, Bucket, open_bucket
from stateroom.store.objects.layout import (
    SEGMENTS_PER_LEVEL,
    TAIL_BYTES,
    Segment,
    age_of,
    count_merged,
    key_of,
    make_run,
    make_segment,
)
from tests.messages import raises
from tests.servers.s3 import BUCKET, S3Server
from tests.store.conftest import Fresh
from tests.store.rooms import FAR, at_last, bare, entry, head

ObjectStore: Any = store_class("file://")
"""The store itself, with nobody who tries again."""


@pytest.fixture
def s3_store_url(fresh: Fresh) -> str:
    """A fresh store in the one bucket."""
    return fresh("s3")


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.more("time"))])
def any_url(request: pytest.FixtureRequest, fresh: Fresh) -> str:
    return fresh(request.param)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'rooms'}"


@pytest.fixture
async def other(url: str) -> AsyncIterator[Any]:
    """The same store as another process has it."""
    async with bare(url) as opened:
        yield opened


@contextmanager
def counted(store: Any) -> Iterator[Counter[str]]:
    """The requests that a store makes meanwhile, by their kind."""
    counts: Counter[str] = Counter()
    place = store.backend

    def count(name: str, work: Any, *args: Any) -> Any:
        counts[name] += 1
        return work(*args)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("read", "read_changed", "read_part", "write", "swap", "list", "remove"):
            patch.setattr(place, name, partial(count, name, getattr(place, name)))
        yield counts


async def objects(store: Any) -> dict[str, int]:
    """The sizes of all objects, but the mark."""
    listed = [each async for some in store.backend.list("") for each in some]
    return {each.name: each.size for each in listed if each.name != "stateroom"}


# Requests.


async def test_a_lone_append_is_one_request(any_url: str) -> None:
    store = await ObjectStore.open(any_url)
    await store.create(head(revision=0))
    for revision in range(1, 6):
        with counted(store) as requests:
            await store.append(
                Commit("room", entry(revision, f"call {revision}"), expires=FAR, snapshot=Snapshot(revision, b""))
            )
        assert requests == {"swap": 1}
    with counted(store) as requests:
        await store.touch("room", now=0.0, expires=FAR)
        await store.lease("room", "me", now=0.0, until=1.0)
        await store.release("room", "me")
    assert requests == {"swap": 3}
    await store.close()


async def test_a_blob_is_one_request_more_and_none_if_it_is_there(store: Any) -> None:
    await store.create(head(revision=0))
    with counted(store) as requests:
        await store.append(Commit("room", entry(1), expires=FAR, blobs={"one": b"1", "two": b"2"}))
    assert requests == {"write": 2, "swap": 1}
    with counted(store) as requests:
        await store.append(Commit("room", entry(2), expires=FAR, blobs={"one": b"1", "two": b"2"}))
    assert requests == {"swap": 1}


async def test_a_process_that_does_not_know_a_session_reads_it_once(store: Any, other: Any) -> None:
    await store.create(head(revision=0))
    for revision in range(1, 101):
        await store.append(Commit("room", entry(revision, f"call {revision}", body=bytes(500)), expires=FAR))
    segments = [name for name in await objects(store) if name.startswith("data/")]
    with counted(other) as requests:
        await other.append(Commit("room", entry(101, "call 101"), expires=FAR))
    assert requests == {"read": 1, "read_part": len(segments), "swap": 1}
    with counted(other) as requests:
        await other.append(Commit("room", entry(102, "call 102"), expires=FAR))
    assert requests == {"swap": 1}
    with counted(store) as requests:  # which is behind now
        with pytest.raises(Conflict):
            await store.append(Commit("room", entry(101, "call"), expires=FAR))
        await store.append(Commit("room", entry(103, "call"), expires=FAR))
    assert requests["swap"] == 2


async def test_a_head_that_is_known_is_not_sent_again(s3_store_url: str) -> None:
    store = await ObjectStore.open(s3_store_url)
    await store.create(head())
    before = await store.backend.read(f"heads/{key_of('room')}")
    assert await store.backend.read_changed(f"heads/{key_of('room')}", before.version) is None
    await store.touch("room", now=0.0, expires=1.0)
    after = await store.backend.read_changed(f"heads/{key_of('room')}", before.version)
    assert after is not None
    assert after.data != before.data
    await store.close()


async def test_a_fork_writes_little_and_leaves_its_parent_alone(store: Any) -> None:
    body = random.Random(1).randbytes(100_000)
    await store.create(head(), [entry(1)], Snapshot(1, body), {"digest": body})
    before = await objects(store)
    with counted(store) as requests:
        await store.create(head("fork", parent="room"))
    assert requests == {"write": 2, "read_changed": 1, "swap": 1}
    after = await objects(store)
    assert {name: size for name, size in after.items() if name in before} == before
    assert sum(after.values()) - sum(before.values()) < 500


async def test_only_heads_that_changed_are_read_again_to_count(s3_store_url: str) -> None:
    store = await ObjectStore.open(s3_store_url)
    await asyncio.gather(*(store.create(head(f"room-{number}", 0)) for number in range(20)))
    assert await store.count(0.0) == 20
    await store.append(Commit("room-7", entry(1), expires=FAR, closes=True))
    with counted(store) as requests:
        assert await store.count(0.0) == 19
    assert requests == {"list": 1, "read": 1}
    await store.close()


# Bytes and objects.


async def test_the_objects_of_a_long_session_are_few_and_their_bytes_follow_what_it_holds(store: Any) -> None:
    await store.create(head(revision=0))
    body, sizes, most = random.Random(1).randbytes, [], 0
    history = [entry(revision, f"call {revision}", body=body(500)) for revision in range(1, 1_001)]
    for each in history:
        await store.append(Commit("room", each, expires=FAR))
        found = await objects(store)
        sizes.append(sum(found.values()))
        most = max(most, len(found))
    assert most <= 20
    assert sizes[-1] < 1.3 * 1_000 * 500
    early, late = (sizes[99] - sizes[0]) / 99, (sizes[999] - sizes[900]) / 99
    assert late < 1.1 * early
    assert await store.entries("room") == history
    assert await store.find_call("room", "call 3") == history[2]
    for at in (1, 499, 1_000):
        assert (await store.load("room", at)).entries == history[:at]


async def test_a_cold_load_reads_what_it_needs_and_no_more(url: str) -> None:
    writer = await ObjectStore.open(url)
    history = [entry(revision, body=bytes(500)) for revision in range(1, 3_001)]
    snapshots = [Snapshot(revision, b"%d" % revision * 1_000) for revision in range(100, 3_001, 100)]
    await writer.create(head(revision=2_500), history[:2_500], snapshots[0])
    for each in history[2_500:]:
        snapshot = next((kept for kept in snapshots[1:] if kept.revision == each.revision), None)
        await writer.append(Commit("room", each, expires=FAR, snapshot=snapshot))
    reader = await ObjectStore.open(url)
    read = 0
    original = reader.backend.read_part

    async def read_part(name: str, start: int, end: int) -> bytes:
        nonlocal read
        read += end - start
        return await original(name, start, end)

    reader.backend.read_part = read_part
    loaded = await reader.load("room")
    assert (loaded.snapshot, loaded.entries) == (snapshots[-1], [])
    assert read <= 5_000
    loaded = await reader.load("room", 2_950)
    assert (loaded.snapshot, loaded.entries) == (snapshots[-2], history[2_900:2_950])
    read = 0
    assert await reader.entries("room", after=2_990) == history[2_990:]
    assert read < 50_000
    await writer.close()
    await reader.close()


def make_segments(sizes: list[int]) -> list[Segment]:
    """Segments as they would be after runs of these sizes have been added, one after another."""
    segments: list[Segment] = []
    for number, size in enumerate(sizes):
        merged = count_merged(segments, size)
        rest, last = segments[: len(segments) - merged], segments[len(segments) - merged :]
        segment, _ = make_segment(str(number), make_run([entry(number)]))
        whole = size + sum(each.size for each in last)
        segments = [*rest, replace(segment, size=whole)]
    return segments


@pytest.mark.parametrize("seed", range(5))
def test_segments_stay_few_whatever_their_sizes(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [TAIL_BYTES + int(chance.paretovariate(0.8) * 100) % (1 << 20) for _ in range(3_000)]
    segments = make_segments(sizes)
    assert sum(segment.size for segment in segments) == sum(sizes)
    large = sum(segment.size >= 16 << 20 for segment in segments)
    assert len(segments) - large <= 4 * (SEGMENTS_PER_LEVEL - 1)
    assert large <= sum(sizes) / (16 << 20)


async def test_a_reader_with_an_old_head_finds_what_was_merged_meanwhile(store: Any, other: Any) -> None:
    await store.create(head(revision=0))
    for revision in range(1, 50):
        await store.append(Commit("room", entry(revision, body=bytes(1_000)), expires=FAR))
    original = other.backend.read_part

    async def read_part(*args: Any) -> bytes:
        other.backend.read_part = original
        for revision in range(50, 400):
            await store.append(Commit("room", entry(revision, body=bytes(1_000)), expires=FAR))
        return await original(*args)

    other.backend.read_part = read_part
    assert [each.revision for each in await other.entries("room")] == list(range(1, 400))


async def test_a_session_whose_object_was_lost_says_so(store: Any) -> None:
    await store.create(head(), [entry(1, body=bytes(9_000))])
    (segment,) = [name for name in await objects(store) if name.startswith("data/")]
    await store.backend.remove([segment])
    with raises(BadData):
        await store.entries("room")


# What is left behind.


async def test_what_belongs_to_nobody_is_found_and_removed(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.create(head(), [entry(1, body=bytes(9_000))], blobs={"digest": b"blob"})
    await store.create(head("fork", parent="room"))
    before = await objects(store)
    life = next(name for name in before if name.startswith("data/")).split("/")[1]
    strays = [
        "data/i-room.dead/x",
        f"data/{life}/y",
        f"recent/{age_of(5.0)}.i-dead.00000000.z",
        "forks/i-room/i-dead.z",
    ]
    for name in strays:
        await store.backend.write(name, b"stray")
    assert await store.maintenance.orphans() == []  # somebody may be about to mention them
    monkeypatch.setattr("stateroom.store.objects.maintenance.LEFT_BEHIND", timedelta(days=-1))
    words = await store.maintenance.orphans()
    assert len(words) == len(strays)
    assert all(any(name in word for word in words) for name in strays)
    await store.maintenance.vacuum()
    monkeypatch.setattr("stateroom.store.objects.maintenance.REMOVAL_LEFT_BEHIND", timedelta(days=-1))
    await store.maintenance.vacuum()
    assert await store.maintenance.orphans() == []
    assert await objects(store) == before
    assert await store.blobs("room", ["digest"]) == {"digest": b"blob"}


async def test_a_removal_that_was_not_finished_is_finished_by_a_sweep(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create(head(), [entry(1, body=bytes(9_000))])

    async def fail(*_: object) -> None:
        raise StoreUnavailable("the network is gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.backend, "remove", fail)
        with pytest.raises(StoreUnavailable):
            await store.delete("room")
    with pytest.raises(UnknownSession):
        await store.head("room")
    assert await store.heads() == []
    assert await store.sweep(0.0) == 0
    assert len(await objects(store)) == 3
    monkeypatch.setattr("stateroom.store.objects.maintenance.REMOVAL_LEFT_BEHIND", timedelta(days=-1))
    assert len(await store.maintenance.orphans()) == 1
    assert await store.sweep(0.0) == 0
    assert await objects(store) == {}


async def test_whoever_loses_a_race_takes_their_things_away(store: Any, other: Any) -> None:
    await store.create(head(revision=0))
    await other.head("room")
    await store.append(Commit("room", entry(1), expires=FAR))
    before = await objects(store)
    with pytest.raises(Conflict):
        await other.append(Commit("room", entry(1, body=bytes(9_000)), expires=FAR, blobs={"digest": b"blob"}))
    with raises(StoreError):
        await other.create(head(), [entry(1, body=bytes(9_000))], blobs={"digest": b"blob"})
    assert await objects(store) == before


async def test_a_removal_that_slept_too_long_does_not_touch_a_new_session(
    store: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateroom.store.objects.maintenance.REMOVAL_LEFT_BEHIND", timedelta(days=-1))
    await store.create(head(), [entry(1)])
    original = store.backend.list

    async def list_late(folder: str, after: str = "") -> AsyncGenerator[Any]:
        if folder.startswith("data/"):
            await other.sweep(0.0)
            await other.create(head(owner="new"), [entry(1)])
        async for portion in original(folder, after):
            yield portion

    monkeypatch.setattr(store.backend, "list", list_late)
    await store.delete("room")
    assert (await other.head("room")).owner == "new"
    assert [found.owner for found in await other.heads()] == ["new"]


async def test_a_session_without_its_parent_is_an_orphan(store: Any) -> None:
    await store.create(head())
    await store.create(head("fork", parent="room"))
    await store.create(head("deep", parent="fork"))
    await store.backend.remove([name for name in await objects(store) if "i-room" in name])
    assert await store.maintenance.orphans() == ["session 'fork', whose parent 'room' does not exist"]
    await store.maintenance.vacuum()
    assert await objects(store) == {}


# URLs and mistakes.


def open_parts(url: str) -> Any:
    scheme = url.partition("://")[0]
    return open_bucket(scheme, parse_url(url, options=bucket.OPTIONS[scheme]), TIMEOUT, RETRY)


def test_urls_name_buckets() -> None:
    s3 = open_parts("s3://rooms/some/prefix?region=eu-west-1&endpoint=http://127.0.0.1:9000")
    assert isinstance(s3, S3Store)
    assert (s3.prefix, s3.config["bucket"], s3.config["region"]) == ("some/prefix", "rooms", "eu-west-1")
    assert s3.config["endpoint"] == "http://127.0.0.1:9000"
    assert s3.client_options is not None
    assert s3.client_options["allow_http"]
    gs = open_parts("gs://rooms/prefix")
    assert isinstance(gs, GCSStore)
    assert (gs.prefix, gs.config["bucket"]) == ("prefix", "rooms")
    az = open_parts("az://rooms/prefix?account=captain")
    assert isinstance(az, AzureStore)
    assert (az.prefix, az.config["container_name"], az.config["account_name"]) == ("prefix", "rooms", "captain")


async def test_a_folder_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_store("file://./some/rooms") as store:
        await store.create(head())
        assert not store.remote
    assert (tmp_path / "some/rooms/stateroom").is_file()


async def test_a_place_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with raises(ForeignStore):
        await ObjectStore.open(f"file://{tmp_path}")
    assert not (tmp_path / "stateroom").exists()


@pytest.mark.parametrize("mark", [b"", b"\xff", b"{}", b'{"stateroom": 99, "stamp": ""}'])
async def test_a_store_of_another_kind_is_not_touched(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "stateroom").write_bytes(mark)
    with pytest.raises(ForeignStore):
        await ObjectStore.open(f"file://{tmp_path}")
    assert (tmp_path / "stateroom").read_bytes() == mark


@pytest.mark.parametrize("damage", ["bytes", "folder"])
async def test_a_damaged_session_is_an_error_of_its_own_and_no_other(url: str, damage: str) -> None:
    async with open_store(url) as store:
        for session in ("room", "bad", "another"):
            await store.create(head(session, expires=5.0), [entry(1)])
        place = Path(url.removeprefix("file://")) / "heads/i-bad"
        if damage == "bytes":
            place.write_bytes(b"\x93\x01\x02\x03")
        else:
            place.unlink()
            place.mkdir()
            (place / "inside").touch()
        (place.parent.parent / "recent/thumbs.db").touch()
        assert sorted(head.id for head in await store.heads(limit=2)) == ["another", "room"]
        assert await store.count(0.0) == 2
        with raises(BadData):
            await store.head("bad")
        told = "\n".join(await store.maintenance.orphans())
        assert "heads/i-bad" in told
        assert "recent/thumbs.db" in told
        await store.maintenance.sizes()
        await store.maintenance.vacuum()
        assert await store.sweep(5.0) == 2
        assert place.exists()


async def test_what_a_damaged_fork_was_forked_from_stays(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.store.objects.maintenance.LEFT_BEHIND", timedelta(0))
    async with open_store(url) as store:
        await store.create(head(expires=5.0), [entry(1)])
        await store.create(head("fork", 2, parent="room"), [entry(2)], blobs={"digest": b"large"})
        before = await objects(store)
        place = Path(url.removeprefix("file://")) / "heads/i-fork"
        whole = place.read_bytes()
        place.write_bytes(whole[:-3])
        assert await store.children("room") == []
        assert await store.sweep(5.0) == 0
        await store.delete("room")
        await store.maintenance.vacuum()
        place.write_bytes(whole)
        assert await objects(store) == before
        assert (await store.load("fork")).entries == [entry(2)]
        assert [fork.id for fork in await store.children("room")] == ["fork"]


async def test_what_a_damaged_parent_was_forked_to_stays(url: str) -> None:
    async with open_store(url) as store:
        await store.create(head(), [entry(1)])
        await store.create(head("fork", 2, parent="room"), [entry(2)])
        (Path(url.removeprefix("file://")) / "heads/i-room").write_bytes(b"")
        await store.maintenance.vacuum()
        assert (await store.load("fork")).entries == [entry(2)]


async def test_only_the_user_of_the_process_can_read_the_files(tmp_path: Path) -> None:
    async with open_store(f"file://{tmp_path / 'rooms'}") as store:
        await store.create(head(), [entry(1)], blobs={"digest": b"large"})
        modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}  # noqa: ASYNC240
        assert modes == {True: 0o700, False: 0o600}


async def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable):
        await ObjectStore.open(f"file://{tmp_path}/file")


async def test_a_bucket_that_is_not_there_is_said_so(s3_url: str) -> None:
    with pytest.raises(StoreUnavailable):
        await ObjectStore.open(s3_url.replace(BUCKET, "no-such-bucket"))


async def test_a_server_that_takes_no_heed_of_conditions_is_not_used(s3_url: str) -> None:
    with S3Server(careless=True) as server:
        with raises(StoreError):
            await ObjectStore.open(server.url)
        place = Bucket("s3", parse_url(server.url, options=bucket.OPTIONS["s3"]))
        assert [each async for some in place.list("") for each in some] == []


async def test_a_server_that_does_not_answer_is_unavailable(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Server() as server:
        patient = await ObjectStore.open(server.url)
        await patient.create(head(revision=0))
        await patient.close()
        soon = timedelta(seconds=0.3)
        monkeypatch.setattr(bucket, "TIMEOUT", soon)
        monkeypatch.setattr(bucket, "RETRY", {"max_retries": 1, "retry_timeout": soon})
        store = await at_last(lambda: ObjectStore.open(server.url), Conflict)
        server.pause()
        for call in (store.append(Commit("room", entry(1, "call"), expires=FAR)), store.head("room"), store.heads()):
            with pytest.raises(StoreUnavailable):
                await call
        server.resume()

        async def append() -> None:
            revision = (await store.head("room")).revision
            await store.append(Commit("room", entry(revision + 1, "another"), expires=FAR))

        await at_last(append, Conflict)  # it was done, and only the answer was late
        server.kill()
        with pytest.raises(StoreUnavailable):
            await store.head("room")
        with pytest.raises(StoreUnavailable):
            await ObjectStore.open(server.url)
        await store.close()
    assert "captain" not in str(store.backend.url)


def test_ids_that_differ_have_keys_that_differ_on_any_file_system() -> None:
    ids = [
        "a",
        "A",
        "a/b",
        "a.b",
        "",
        ".",
        "..",
        "é",
        "e\u0301",
        "x" * 64,
        "x" * 65,
        "i-a",
        "h-a",
        "con",
        "a b",
        "\ud800",
    ]
    keys = [key_of(each) for each in ids]
    assert len({key.lower() for key in keys}) == len(ids)
    assert all(len(key) <= 66 and not set(key) & set("./\\") for key in keys)


def test_names_sort_from_the_newest() -> None:
    times = [-1e300, -5.5, -0.0, 0.0, 1e-300, 1.0, 1.5, 1_731_628_800.123456, 1_731_628_800.123457, 1e300]
    ages = [age_of(each) for each in times]
    assert ages == sorted(ages, reverse=True)
    assert age_of(-0.0) == age_of(0.0)
