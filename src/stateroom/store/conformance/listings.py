"""Promises about lists of sessions, and about what they are listed by."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest
from msgspec.structs import replace

from stateroom.errors import SessionClosed
from stateroom.store import Commit, HeadFilter, Order, Store
from stateroom.store.conformance import make
from stateroom.store.conformance.helpers import Suite, append, list_all, outcome
from stateroom.store.conformance.make import LATER, MUCH_LATER, NOW

ORDERS: list[Order] = ["newest", "oldest", "reward"]


class ListingPromises(Suite):
    """A list has every session once, in order, and knows its agent's phase and its reward."""

    async def test_heads_are_listed_from_the_newest(self, store: Store) -> None:
        ages = [float(number) for number in range(12)]
        random.Random(1).shuffle(ages)
        for created in ages:
            await make.session(store, f"room {created}", created=created)
        assert [head.created for head in await store.heads()] == sorted(ages, reverse=True)
        assert [head.created for head in await store.heads(limit=3)] == [11.0, 10.0, 9.0]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
    async def test_pages_hold_every_head_once_even_if_all_are_of_one_age(self, store: Store, limit: int) -> None:
        for number in range(15):
            session, environment = f"room {number * 7 % 15}", "odd" if number % 2 else "even"
            await make.session(store, session, created=float(number // 8), environment=environment)
        listed = await list_all(store, limit=limit)
        assert sorted(head.id for head in listed) == sorted(f"room {number}" for number in range(15))
        assert all(one.created >= other.created for one, other in pairwise(listed))
        assert listed == await store.heads()
        for environment in ("odd", "even"):
            mine = [head for head in listed if head.environment == environment]
            assert await list_all(store, HeadFilter(environment=environment), limit=limit) == mine
        assert await store.heads(HeadFilter(environment="none")) == []

    async def test_a_listing_goes_on_after_a_head_that_changed_or_is_gone(self, store: Store) -> None:
        for number in range(6):
            await make.session(store, f"room {number}", expires=LATER if number in (2, 4) else MUCH_LATER)
        whole = [head.id for head in await store.heads()]
        first = await store.heads(limit=2)
        await append(store, first[-1].id, 2, expires=first[-1].expires)
        second = await store.heads(after=first[-1], limit=2)
        await store.sweep(LATER)
        third = await store.heads(after=second[-1])
        assert [head.id for head in [*first, *second]] == whole[:4]
        assert [head.id for head in third] == [session for session in whole[4:] if session not in ("room 2", "room 4")]

    async def test_a_page_has_a_hundred_heads_unless_told_otherwise(self, store: Store) -> None:
        await asyncio.gather(*(make.session(store, f"room {n}", created=float(n), revision=0) for n in range(105)))
        assert [head.id for head in await store.heads()] == [f"room {number}" for number in range(104, 4, -1)]

    # Phases and rewards.

    async def test_an_append_sets_the_phase_and_the_reward_and_another_keeps_them(self, store: Store) -> None:
        await make.session(store)
        steps = [
            (None, None),
            ("planning", None),
            (None, None),
            ("done", None),
            (None, -0.1),
            (None, None),
            ("", 1e300),
        ]
        expected = make.head(revision=1)
        for revision, (phase, reward) in enumerate(steps, 2):
            await append(store, "room", revision, phase=phase, reward=reward)
            expected = replace(
                expected,
                revision=revision,
                phase=expected.phase if phase is None else phase,
                reward=expected.reward if reward is None else reward,
            )
            assert await store.head("room") == (await store.load("room")).head == expected
            assert await store.heads() == [expected]
        leased = await store.lease("room", "me", now=NOW, until=LATER)
        assert (leased.phase, leased.reward) == ("", 1e300)

    async def test_appends_together_set_each_its_own(self, store: Store) -> None:
        names = [f"room {number}" for number in range(12)]
        for name in names:
            await make.session(store, name)
        phases = {name: [None, "planning", "done"][number % 3] for number, name in enumerate(names)}
        rewards = {name: [None, 0.5][number % 2] for number, name in enumerate(names)}
        commits = [Commit(name, make.entry(2), phase=phases[name], reward=rewards[name]) for name in names]
        await asyncio.gather(*map(store.append, commits))
        for head in await store.heads():
            assert (head.phase, head.reward) == (phases[head.id], rewards[head.id])

    async def test_an_append_that_is_refused_sets_neither(self, store: Store) -> None:
        await make.session(store)
        last = Commit("room", make.entry(2), expires=LATER, phase="done", reward=1.0, closes=True)
        await store.append(last)
        late = Commit("room", make.entry(3), expires=LATER, phase="planning", reward=0.0)
        assert await outcome(store.append(late)) is SessionClosed
        assert await store.head("room") == make.head().after(last)

    async def test_they_come_with_a_session_that_is_put_in(self, store: Store) -> None:
        await make.session(store, phase="executing", reward=0.25)
        await make.fork(store, "fork", "room", 1, phase="planning")
        listed = {head.id: (head.phase, head.reward) for head in await store.heads()}
        assert listed == {"room": ("executing", 0.25), "fork": ("planning", None)}
        record = await store.maintenance.export("room")
        assert (record.head.phase, record.head.reward) == ("executing", 0.25)
        await store.put(replace(record, head=replace(record.head, phase=None, reward=None)))
        assert await store.head("room") == make.head(revision=1)

    # Filters and orders.

    @pytest.mark.parametrize("limit", [1, 4, 100])
    async def test_filters_and_orders_give_what_all_heads_would(self, store: Store, limit: int) -> None:
        chance = random.Random(limit)
        for number in range(24):
            await make.session(
                store,
                f"{chance.choice(['room', 'room%', 'Room', 'rö', 'ro' + chr(0x10FFFF)])} {number}",
                environment=chance.choice("ab"),
                owner=chance.choice(["", "ann", "bob"]),
                created=float(chance.randrange(6)),
                expires=chance.choice([LATER, MUCH_LATER]),
                phase=chance.choice([None, "planning", "done"]),
                reward=chance.choice([None, -1.0, 0.0, 0.5, 1.0]),
                closed=chance.random() < 0.3,
            )
        heads = await list_all(store, limit=100)
        assert len(heads) == 24
        wanted = [
            HeadFilter(),
            HeadFilter(environment="a", owner=""),
            HeadFilter(owner="ann", phase="done"),
            HeadFilter(status="live", at=LATER),
            HeadFilter(status="live", at=NOW, environment="b"),
            HeadFilter(status="closed", at=LATER),
            HeadFilter(status="expired", at=LATER),
            HeadFilter(phase="none"),
            *(HeadFilter(prefix=prefix) for prefix in ("ro", "room ", "room%", "R", "rö", "ro" + chr(0x10FFFF), "x")),
            HeadFilter(min_reward=0.0),
            HeadFilter(max_reward=0.5, status="live", at=NOW),
            HeadFilter(min_reward=0.5, max_reward=0.5),
        ]
        for each in wanted:
            matching = [head for head in heads if each.matches(head)]
            judged = sorted(
                (head for head in matching if head.reward is not None), key=lambda head: (head.reward, head.age)
            )
            assert await list_all(store, each, limit=limit) == matching
            assert await list_all(store, each, "oldest", limit=limit) == matching[::-1]
            assert await list_all(store, each, "reward", limit=limit) == judged[::-1]

    @pytest.mark.parametrize("order", ORDERS)
    async def test_pages_miss_none_and_repeat_none_while_sessions_are_created(self, store: Store, order: Order) -> None:
        wanted, numbers = HeadFilter(owner="ann"), iter(range(1000))

        async def create() -> str:
            number = next(numbers)
            owner = "ann" if number % 2 else "bob"
            await make.session(store, f"room {number}", owner=owner, created=float(number), reward=float(number % 3))
            return f"room {number}"

        there = {await create() for _ in range(30)}
        listed = await store.heads(wanted, order=order, limit=4)
        page = listed
        while page:
            more = [asyncio.create_task(create()) for _ in range(4 if len(listed) < 40 else 0)]
            page = await store.heads(wanted, order=order, after=listed[-1], limit=4)
            await asyncio.gather(*more)
            listed += page
        ids = [head.id for head in listed]
        assert len(ids) == len({*ids})
        assert {each for each in there if int(each.partition(" ")[2]) % 2} <= {*ids}
