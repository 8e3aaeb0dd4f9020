"""A shop of the size of published tool benchmarks: replayed, branched, forked and seeded."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel

from benchmarks.timing import Figure, elapsed, interleaved, repeated, slowdown
from stateroom import Environment, Episode, Sessions, State, Task, ToolError, open_store, tool
from stateroom.rollout import (
    BestOf,
    RunFiles,
    branch,
    plan_branches,
    plan_run,
    replay_rollouts,
    run,
)
from stateroom.session import Session
from stateroom.state import encode

TASKS = 114
LARGE, SMALL = 3340, 60
"""Customers of a state of 2.8 MB, and of one of 50 kB."""
BRANCHED, BRANCHES = 30, 4
"""Tasks, and branches of each."""


class Customer(BaseModel):
    name: str
    email: str
    address: str
    orders: list[str]


class Line(BaseModel):
    product: str
    variant: str
    price: float
    quantity: int


class Payment(BaseModel):
    method: str
    amount: float


class Order(BaseModel):
    customer: str
    status: str = "pending"
    address: str
    lines: list[Line]
    paid: list[Payment] = []


class Product(BaseModel):
    name: str
    variants: dict[str, float]


class Shop(State):
    customers: dict[str, Customer] = {}
    orders: dict[str, Order] = {}
    products: dict[str, Product] = {}
    confirmed: bool = False


class ShopTask(Task):
    order: str
    expected: str
    """The order's status at the end."""
    gold: list[dict[str, Any]] = []


def make_shop(customers: int) -> Shop:
    """A shop with orders for each customer."""
    luck = Random(f"shop of {customers}")
    products = {
        f"P{number:04}": Product(
            name=f"Product {number}", variants={f"V{each}": luck.randrange(100, 90_000) / 100 for each in range(8)}
        )
        for number in range(max(3, customers // 40))
    }
    people: dict[str, Customer] = {}
    orders: dict[str, Order] = {}
    for number in range(customers):
        address = (
            f"{luck.randrange(1, 999)} {luck.choice(['Mill', 'High', 'Church', 'Station'])} Street, {luck.random()}"
        )
        mine = [f"O{number:05}{letter}" for letter in "ABC"[: luck.randrange(2, 4)]]
        people[f"C{number:05}"] = Customer(
            name=f"Customer {number}", email=f"customer{number}@shop.example", address=address, orders=mine
        )
        for order in mine:
            chosen = luck.sample(sorted(products), 3)
            lines = [
                Line(product=each, variant="V1", price=products[each].variants["V1"], quantity=luck.randrange(1, 4))
                for each in chosen
            ]
            paid = [Payment(method="card", amount=sum(line.price * line.quantity for line in lines))]
            orders[order] = Order(customer=f"C{number:05}", address=address, lines=lines, paid=paid)
    return Shop(customers=people, orders=orders, products=products)


class ShopEnvironment(Environment[Shop, ShopTask]):
    """Serve the customers of a shop."""

    name = "benchmark_shop"

    def __init__(self, customers: int = LARGE) -> None:
        self.customers = customers

    def world(self) -> Shop:
        return make_shop(self.customers)

    @tool(effect="read")
    def find_customer(self, state: Shop, customer_id: str) -> dict[str, Any]:
        """A customer."""
        return dict(_known(state.customers, customer_id).model_dump())

    @tool(effect="read")
    def get_order(self, state: Shop, order_id: str) -> dict[str, Any]:
        """An order."""
        return dict(_known(state.orders, order_id).model_dump())

    @tool(effect="read")
    def get_product(self, state: Shop, product_id: str) -> dict[str, Any]:
        """A product, with the price of each variant."""
        return dict(_known(state.products, product_id).model_dump())

    @tool
    def change_address(self, state: Shop, order_id: str, address: str) -> str:
        """Send an order elsewhere."""
        _known(state.orders, order_id).address = address
        return "changed"

    @tool
    def cancel_order(self, state: Shop, order_id: str) -> str:
        """Cancel an order."""
        order = _known(state.orders, order_id)
        order.status = "cancelled"
        order.paid.append(Payment(method="refund", amount=-order.paid[0].amount))
        return "cancelled"

    def reply(self, state: Shop, message: str) -> str | None:
        if state.confirmed or not message.endswith("?"):
            return None
        state.confirmed = True
        return "Yes, please."

    def verify(self, state: Shop, episode: Episode) -> float:
        return float(state.orders[episode.task.order].status == episode.task.expected)


def _known(records: dict[str, Any], key: str) -> Any:
    if key not in records:
        raise ToolError(f"there is no {key}")
    return records[key]


def make_tasks(customers: int, number: int) -> list[dict[str, Any]]:
    """Tasks with the actions that solve them."""
    luck, shop = Random("tasks"), make_shop(customers)
    tasks = []
    for place in range(number):
        customer = luck.choice(sorted(shop.customers))
        orders = shop.customers[customer].orders
        order = luck.choice(orders)
        calls = [
            {"name": "find_customer", "arguments": {"customer_id": customer}},
            *({"name": "get_order", "arguments": {"order_id": each}} for each in orders),
            {"name": "get_product", "arguments": {"product_id": shop.orders[order].lines[0].product}},
            *([{"message": "Shall I cancel it?"}] if place % 2 else []),
            *(
                [{"name": "change_address", "arguments": {"order_id": order, "address": "1 New Road"}}]
                * (place % 3 == 0)
            ),
            {"name": "cancel_order", "arguments": {"order_id": order}},
        ]
        asked = f"I am {customer}. Cancel my order {order}."
        tasks.append(
            {"responses_create_params": {"input": asked}, "order": order, "expected": "cancelled", "gold": calls}
        )
    return tasks


async def retail() -> list[Figure]:
    """A shop of the size of published tool benchmarks: a world of 2.8 MB and 114 tasks.

    In each episode an agent looks up a customer, some orders and a product, and changes an order: four to six calls.
    The lines compare a replay with a run, branches with whole episodes, and forks and seeds of the large shop with
    those of a small one.
    """
    with tempfile.TemporaryDirectory() as folder:
        return [
            await _replaying(Path(folder)),
            await _branching(Path(folder)),
            *await _sizes(Path(folder)),
        ]


async def _replaying(folder: Path) -> Figure:
    numbers, environment, tasks = count(), ShopEnvironment(), make_tasks(LARGE, TASKS)
    newest = RunFiles(folder)

    async def ran() -> float:
        nonlocal newest
        plan = plan_run(environment, input=tasks, model="gold", output=folder / f"run-{next(numbers)}.jsonl")
        newest = plan.files
        return await elapsed(_solve(plan))

    async def replayed() -> float:
        async with open_store(f"sqlite:///{newest.sessions}") as store:
            start = time.perf_counter()
            found = await replay_rollouts(environment, newest.rollouts, store)
            seconds = time.perf_counter() - start
        assert all(not (each.refused or each.differences) and each.calls for each in found), found[0]
        return seconds

    running, replaying = await interleaved(ran, replayed, 1)
    what = f"shop of 2.8 MB: replaying {TASKS} episodes against running them"
    return Figure(what, replaying / running, 2, "at most", f"{replaying:.2f} s / {running:.2f} s")


async def _solve(plan: Any) -> None:
    report = await run(plan)
    assert report.failed == 0, report.first_error
    assert report.metrics["agent_metrics"]["mean/reward"] == 1.0, report.metrics


async def _branching(folder: Path) -> Figure:
    """Branches after two answers, against as many whole episodes."""
    numbers, environment, tasks = count(), ShopEnvironment(), make_tasks(LARGE, BRANCHED)

    async def branched() -> float:
        output = folder / f"tree-{next(numbers)}.jsonl"
        plan = plan_branches(environment, input=tasks, model="gold", output=output, rule=BestOf(BRANCHES, at=2))
        return await elapsed(branch(plan))

    async def ran() -> float:
        output = folder / f"repeats-{next(numbers)}.jsonl"
        return await elapsed(_solve(plan_run(environment, input=tasks, model="gold", repeats=BRANCHES, output=output)))

    branching, running = await interleaved(branched, ran, 1)
    what = f"shop of 2.8 MB: {BRANCHES} branches in each of {BRANCHED} tasks against as many episodes"
    return Figure(what, branching / running, 2, "at most", f"{branching:.2f} s / {running:.2f} s")


async def _sizes(folder: Path) -> list[Figure]:
    """Forks and seeds of the large state against the small one."""
    figures = []
    sizes = [f"{len(encode(make_shop(customers).model_dump())) / 1e6:.2f} MB" for customers in (LARGE, SMALL)]
    async with (
        open_store(f"sqlite:///{folder / 'large.db'}") as one,
        open_store(f"sqlite:///{folder / 'small.db'}") as two,
    ):
        shops = [
            (Sessions(ShopEnvironment(size), store), make_tasks(size, 1)[0])
            for size, store in ((LARGE, one), (SMALL, two))
        ]
        started: list[Session[Any]] = [await sessions.seed(task) for sessions, task in shops]
        works: dict[str, list[Callable[[], Awaitable[object]]]] = {
            "a fork": [session.fork for session in started],
            "a seed": [partial(sessions.seed, task) for sessions, task in shops],
        }
        for name, (large, small) in works.items():
            slow, quick = await interleaved(partial(repeated, large, 100), partial(repeated, small, 100), 7)
            what = f"shop: {name} at {sizes[0]} against {sizes[1]}"
            figures.append(slowdown(what, slow, quick, 3))
    return figures
