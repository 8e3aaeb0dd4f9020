"""The saver's own laws, on each kind of store."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer
from langgraph.checkpoint.conformance.validate import validate
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from stateroom.adapters.langgraph import StateroomSaver
from stateroom.errors import NotFound, StoreError, UnknownSession
from stateroom.session import History, Retention, RetentionPolicy
from stateroom.store import Store
from tests.adapters.checkpoints import checkpoint, config, ids_of, put, values_of, writes_of
from tests.messages import raises


def words(count: int) -> list[str]:
    return [f"{number:05d}" * 100 for number in range(count)]


async def talk(saver: StateroomSaver, thread: str, first: int, last: int) -> None:
    """Steps of a conversation, each with one message more."""
    for step in range(first, last + 1):
        parent = f"{step - 1:04d}" if step > 1 else None
        await put(saver, thread, f"{step:04d}", {"messages": words(step), "step": step}, parent)


async def total(store: Store) -> int:
    return sum([(await store.size(head.id)).bytes for head in await store.heads()])


@pytest.mark.every_store
async def test_a_conversation_is_stored_once_not_at_every_step(store: Store, saver: StateroomSaver) -> None:
    await talk(saver, "t", 1, 20)
    early = await total(store)
    await talk(saver, "t", 21, 120)
    payload = 500 * 120
    assert early < 5 * 500 * 20
    assert await total(store) < 4.5 * payload  # in the log and in snapshots, each with its surroundings
    assert await values_of(saver, "t", "0070") == {"messages": words(70), "step": 70}


@pytest.mark.every_store
async def test_two_savers_at_once_lose_nothing(store: Store) -> None:
    savers = [StateroomSaver(store) for _ in range(2)]
    await put(savers[0], "t", "000", {"a": 0})
    await asyncio.gather(
        *(put(savers[number % 2], "t", f"{number:03d}", {"a": number}, "000") for number in range(1, 9)),
        *(savers[number % 2].aput_writes(config("t", "000"), [("c", number)], f"task-{number}") for number in range(8)),
    )
    for saver in savers:
        assert await ids_of(saver, "t") == [f"{number:03d}" for number in range(8, -1, -1)]
        assert [await values_of(saver, "t", f"{number:03d}") for number in range(9)] == [{"a": n} for n in range(9)]
        assert await writes_of(saver, "t", "000") == [(f"task-{number}", "c", number) for number in range(8)]


async def test_writes_are_in_the_order_in_which_the_tasks_ran(saver: StateroomSaver) -> None:
    await put(saver, "t", "1", {})
    await saver.aput_writes(config("t", "1"), [("c", 2)], "a", "path-2")
    await saver.aput_writes(config("t", "1"), [("c", 1), ("d", 1)], "b", "path-1")
    assert await writes_of(saver, "t", "1") == [("b", "c", 1), ("b", "d", 1), ("a", "c", 2)]


async def test_only_channels_that_changed_are_looked_at_when_a_checkpoint_follows_the_last(
    store: Store, saver: StateroomSaver
) -> None:
    await put(saver, "t", "1", {"large": "x" * 10_000, "small": 1})
    before = await total(store)
    second = checkpoint("2", {"large": "x" * 10_000, "small": 2}, version=2)
    await saver.aput(config("t", "1"), second, {}, {"small": 2})
    assert await total(store) - before < 1500
    assert await values_of(StateroomSaver(store), "t") == {"large": "x" * 10_000, "small": 2}


async def test_a_branch_has_its_own_values_though_their_versions_are_the_same(
    store: Store, saver: StateroomSaver
) -> None:
    await put(saver, "t", "1", {"a": "root", "b": "root"})
    await put(saver, "t", "2", {"a": "left", "b": "root"}, "1")
    await put(saver, "t", "3", {"a": "right", "b": "root"}, "1")
    onward = checkpoint("4", {"a": "left", "b": "left"}, version=1)
    await saver.aput(config("t", "2"), onward, {}, {"b": 2})  # it follows the left one, and says that only b changed
    assert await values_of(saver, "t", "4") == {"a": "left", "b": "left"}
    assert await values_of(saver, "t", "3") == {"a": "right", "b": "root"}


@pytest.mark.every_store
async def test_a_copy_costs_the_same_however_long_the_thread_is(store: Store, saver: StateroomSaver) -> None:
    await talk(saver, "t", 1, 40)
    before = await total(store)
    await saver.acopy_thread("t", "copy")
    assert await total(store) - before < 200
    await put(saver, "copy", "0041", {"messages": ["other"]}, "0040")
    await talk(saver, "t", 41, 42)
    assert await values_of(StateroomSaver(store), "copy") == {"messages": ["other"]}
    assert len(await ids_of(saver, "copy")) == 41
    assert await values_of(saver, "t") == {"messages": words(42), "step": 42}


async def test_nothing_is_copied_from_a_thread_that_is_not_there_or_over_one_that_is(
    saver: StateroomSaver,
) -> None:
    with raises(UnknownSession):
        await saver.acopy_thread("nobody", "copy")
    await put(saver, "a", "1", {})
    await put(saver, "b", "2", {})
    with raises(StoreError):
        await saver.acopy_thread("a", "b")
    assert await ids_of(saver, "b") == ["2"]


@pytest.mark.every_store
async def test_to_prune_gives_the_space_back(store: Store, saver: StateroomSaver) -> None:
    await talk(saver, "t", 1, 60)
    await put(saver, "t", "sub", {"a": 1}, None, "child:1")
    await put(saver, "t", "0061", {"messages": words(2)}, "0060")
    await saver.aput_writes(config("t", "0061"), [("c", 1)], "task")
    before = await total(store)
    await saver.aprune(["t"])
    assert await total(store) < before / 10
    for each in (saver, StateroomSaver(store)):
        assert sorted(await ids_of(each, "t")) == ["0061", "sub"]
        assert await values_of(each, "t", "0030") is None
        assert await values_of(each, "t", None, "child:1") == {"a": 1}
        assert await writes_of(each, "t") == [("task", "c", 1)]
    await put(saver, "t", "0062", {"messages": words(3)}, "0061")
    assert await values_of(StateroomSaver(store), "t") == {"messages": words(3)}


async def test_a_strategy_that_is_not_known_is_refused(saver: StateroomSaver) -> None:
    await put(saver, "t", "1", {})
    with raises(NotFound):
        await saver.aprune(["t"], strategy="keep_last")
    assert await ids_of(saver, "t") == ["1"]


async def test_the_past_before_what_runs_have_left_is_given_back(store: Store, saver: StateroomSaver) -> None:
    for step in range(1, 31):
        await put(saver, "t", f"{step:04d}", {"messages": words(step)}, run_id="old" if step < 30 else "new")
    before = await total(store)
    await saver.adelete_for_runs(["old"])
    assert await ids_of(saver, "t") == ["0030"]
    assert await total(store) < before
    await saver.adelete_for_runs(["new"])
    assert await ids_of(StateroomSaver(store), "t") == []
    assert await total(store) < before / 10


@pytest.mark.every_store
async def test_a_thread_lives_for_its_time_and_then_begins_anew(store: Store) -> None:
    time = 1000.0
    saver = StateroomSaver(store, ttl=60.0, now=lambda: time)
    await put(saver, "t", "1", {"a": 1})
    await saver.acopy_thread("t", "copy")
    time += 50
    await put(saver, "t", "2", {"a": 2}, "1")
    time += 50
    assert await values_of(saver, "t") == {"a": 2}
    assert await values_of(saver, "copy") is None
    time += 50
    assert await values_of(saver, "t") is None
    assert [found async for found in saver.alist(None)] == []
    await put(saver, "t", "3", {"a": 3})
    assert await ids_of(saver, "t") == ["3"]
    await saver.acopy_thread("t", "copy")
    assert await ids_of(saver, "copy") == ["3"]


async def test_without_a_time_to_live_a_thread_stays(store: Store, saver: StateroomSaver) -> None:
    await put(saver, "t", "1", {"a": 1})
    assert await store.sweep(4_000_000_000.0) == 0  # some time in 2096
    assert await ids_of(StateroomSaver(store), "t") == ["1"]


async def test_all_threads_are_listed_the_newest_checkpoint_first(saver: StateroomSaver) -> None:
    for id, thread in (("1", "a"), ("2", "b"), ("3", "a"), ("4", "c")):
        await put(saver, thread, id, {}, score=int(id))
    listed = [found async for found in saver.alist(None)]
    assert [found.config["configurable"]["thread_id"] for found in listed] == ["c", "a", "b", "a"]
    assert [found.checkpoint["id"] async for found in saver.alist(None, filter={"score": 2})] == ["2"]
    assert [found.checkpoint["id"] async for found in saver.alist(None, before=config("x", "3"), limit=1)] == ["2"]
    assert [found async for found in saver.alist(None, limit=0)] == []


async def test_a_thread_may_be_named_by_a_number(saver: StateroomSaver) -> None:
    named: Any = {"configurable": {"thread_id": 7, "checkpoint_ns": ""}}
    await saver.aput(named, checkpoint("1", {"a": 1}), {}, {"a": 1})
    found = await saver.aget_tuple(named)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": 1}


@pytest.mark.every_store
async def test_large_values_lie_outside_the_log(store: Store, saver: StateroomSaver) -> None:
    large = "x" * 200_000
    for step in range(1, 6):
        await put(saver, "t", str(step), {"messages": [large, *words(step)]})
    assert (await store.maintenance.sizes())["blobs"].bytes >= 200_000
    assert await total(store) < 300_000
    assert await values_of(StateroomSaver(store), "t", "3") == {"messages": [large, *words(3)]}
    await saver.aprune(["t"])
    assert await values_of(StateroomSaver(store), "t") == {"messages": [large, *words(5)]}


async def test_of_namespaces_that_are_used_no_more_only_the_place_is_kept_at_hand(
    store: Store, saver: StateroomSaver
) -> None:
    for number in range(60):
        await put(saver, "t", f"{number:03d}", {"messages": words(number + 1)})
        await put(saver, "t", "sub", {"report": "x" * 5000}, None, f"child:{number}")
        await saver.aput_writes(config("t", "sub", f"child:{number}"), [("c", number)], "task")
    state = (await History(store).document("langgraph:t")).state
    assert len(state["current"]) < 20
    assert "" in state["current"]
    for number in (0, 30, 59):
        assert await values_of(StateroomSaver(store), "t", None, f"child:{number}") == {"report": "x" * 5000}
        assert await writes_of(StateroomSaver(store), "t", None, f"child:{number}") == [("task", "c", number)]


async def test_the_writes_of_checkpoints_that_others_have_followed_are_not_kept_at_hand(
    store: Store, saver: StateroomSaver
) -> None:
    for step in range(1, 10):
        await put(saver, "t", str(step), {})
        await saver.aput_writes(config("t", str(step)), [("c", step)], "task")
    assert list((await History(store).document("langgraph:t")).state["writes"][""]) == ["9"]
    assert await writes_of(saver, "t", "4") == [("task", "c", 4)]


async def test_a_past_that_was_pruned_with_the_log_is_gone_and_the_rest_is_there(
    store: Store, saver: StateroomSaver
) -> None:
    await talk(saver, "t", 1, 60)
    cuts = [cut async for _, cut in Retention(store, RetentionPolicy(keep=10), lambda: 0.0).carry_out() if cut]
    assert len(cuts) == 1
    other = StateroomSaver(store)
    assert await values_of(other, "t") == {"messages": words(60), "step": 60}
    assert await values_of(other, "t", "0001") is None
    left = await ids_of(other, "t")
    assert "0060" in left
    assert len(left) < 60
    await talk(saver, "t", 61, 62)
    assert await values_of(other, "t", "0061") == {"messages": words(61), "step": 61}


class Scrambling(CipherProtocol):
    """Gives another ciphertext each time, as good ciphers do."""

    def __init__(self) -> None:
        self.used = 0

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        self.used += 1
        return "scrambled", self.used.to_bytes(4) + plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "scrambled"
        return ciphertext[4:][::-1]


async def test_any_serializer_will_do(store: Store) -> None:
    saver = StateroomSaver(store, serde=EncryptedSerializer(Scrambling()))
    await talk(saver, "t", 1, 5)
    await saver.aput_writes(config("t", "0005"), [("c", {"a": [1, None]})], "task")
    other = StateroomSaver(store, serde=EncryptedSerializer(Scrambling()))
    assert await values_of(other, "t", "0003") == {"messages": words(3), "step": 3}
    assert await writes_of(other, "t") == [("task", "c", {"a": [1, None]})]


async def test_from_another_thread_it_is_used_without_await(saver: StateroomSaver) -> None:
    def work() -> list[str]:
        first = saver.put(config("t"), checkpoint("1", {"a": 1}), {"run_id": "r"}, {"a": 1})
        saver.put_writes(first, [("c", 1)], "task")
        saver.copy_thread("t", "copy")
        saver.copy_thread("t", "third")
        found = saver.get_tuple(first)
        assert found is not None
        assert found.pending_writes == [("task", "c", 1)]
        assert saver.get_delta_channel_history(config=first, channels=["a"]) == {"a": {"writes": []}}
        saver.delete_thread("copy")
        saver.prune(["third"], strategy="delete")
        listed = [each.checkpoint["id"] for each in saver.list(None)]
        saver.delete_for_runs(["r"])
        return [*listed, *(each.checkpoint["id"] for each in saver.list(None))]

    assert await asyncio.to_thread(work) == ["1"]


async def test_on_its_own_loop_it_says_that_it_must_be_awaited(saver: StateroomSaver) -> None:
    with raises(asyncio.InvalidStateError):
        saver.get_tuple(config("t"))
    with raises(asyncio.InvalidStateError):
        list(saver.list(None))


async def test_writes_without_a_checkpoint_are_refused(saver: StateroomSaver) -> None:
    with raises(NotFound):
        await saver.aput_writes(config("t"), [("c", 1)], "task")


@pytest.mark.every_store
@pytest.mark.parametrize("capability", [each.value for each in Capability])
async def test_the_saver_can_do_all_that_a_saver_may(url: str, capability: str) -> None:
    async def made() -> AsyncGenerator[BaseCheckpointSaver[int], None]:
        async with StateroomSaver.from_url(url) as saver:
            yield saver

    report = await validate(RegisteredCheckpointer("stateroom", made), capabilities={capability})
    result = report.results[capability]
    assert result.failures == []
    assert result.passed
    assert result.tests_passed >= 5
