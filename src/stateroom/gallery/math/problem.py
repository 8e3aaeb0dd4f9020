"""Word problems: dependent results, their wording, and a parser for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import add, floordiv, mul, sub
from random import Random
from typing import Literal, NamedTuple

from pydantic import BaseModel

Operation = Literal["add", "subtract", "multiply", "divide"]

OPERATIONS = {"add": add, "subtract": sub, "multiply": mul, "divide": floordiv}

WORDINGS: dict[Operation, tuple[str, ...]] = {
    "add": ("{left} and {right} together", "{left} with {right} on top"),
    "subtract": ("{left} without {right}", "what is left of {left} when {right} is paid"),
    "multiply": ("what {left} bring at {right} each", "{left} times {right}"),
    "divide": ("the whole part of {left} that falls to each of the {right}", "{left} over {right}, rounded down"),
}
"""The wordings of each operation in a problem."""

CHOICE = re.compile(
    r"- (?P<result>\w+): if (?P<test>\w+) is above (?P<limit>\d+), (?P<formula>.+); if not, (?P<other>.+)"
)
PLAIN = re.compile(r"- (?P<result>\w+): (?P<formula>.+)")

RULES = """You work with a ledger. You cannot see the quantities in it: the tool computes with their names, one
operation at a time, and tells you each result. Compute every result that is listed, under its own name; one may have to
wait for others. Then submit the value that is asked for."""

PROBLEM = """{opening} The ledger has these quantities: {quantities}. Compute:
{lines}
Submit the value of {asked}."""


class Formula(BaseModel):
    """An operation on two names, each of a quantity or an earlier result."""

    operation: Operation
    left: str
    right: str


class Step(BaseModel):
    """A result to compute by one formula, or by one of two, depending on an earlier result."""

    result: str
    formula: Formula
    test: str | None = None
    """The earlier result; None if there is only one formula."""
    limit: int = 0
    """The formula applies if the earlier result is above this, otherwise `otherwise`."""
    otherwise: Formula | None = None

    def chosen(self, values: Mapping[str, int]) -> Formula:
        """The formula that applies."""
        return self.formula if self.otherwise is None or values[self.test or ""] > self.limit else self.otherwise

    def needs(self, values: Mapping[str, int]) -> set[str]:
        """The names that are needed to compute it, given the known values."""
        if self.test is not None and self.test not in values:
            return {self.test}
        formula = self.chosen(values)
        return {formula.left, formula.right}


class Story(NamedTuple):
    """Names for the quantities of a problem."""

    opening: str
    sold: dict[str, str]
    """The names of goods and their prices."""
    costs: str
    people: str


STORIES = (
    Story("A bakery closes its books.", {"loaves": "loaf_price", "cakes": "cake_price"}, "rent flour wages", "bakers"),
    Story("A choir has sung.", {"seats": "seat_price", "stands": "stand_price"}, "hall posters travel", "singers"),
    Story(
        "A farm comes from the market.", {"eggs": "egg_price", "melons": "melon_price"}, "stall fuel feed", "farmers"
    ),
    Story(
        "A ferry counts its day.",
        {"cars": "car_fare", "bicycles": "bicycle_fare"},
        "diesel harbour_fee repairs",
        "sailors",
    ),
    Story(
        "A print shop writes its bills.", {"books": "book_price", "maps": "map_price"}, "paper ink postage", "printers"
    ),
    Story(
        "A school had its fair.", {"games": "game_price", "waffles": "waffle_price"}, "tents prizes batter", "classes"
    ),
)


def solve(steps: Iterable[Step], quantities: Mapping[str, int]) -> dict[str, int]:
    """The value of each result; the steps must be in a possible order."""
    values = dict(quantities)
    results: dict[str, int] = {}
    for step in steps:
        formula = step.chosen(values)
        results[step.result] = OPERATIONS[formula.operation](values[formula.left], values[formula.right])
        values |= results
    return results


def draw(rng: Random) -> tuple[str, dict[str, int], list[Step]]:
    """A problem: its prompt, and the hidden quantities and steps in order."""
    story = rng.choice(STORIES)
    sold = rng.sample([*story.sold.items()], rng.randint(1, 2))
    costs = story.costs.split()
    quantities = {name: rng.randint(30, 200) for name, _ in sold} | {name: rng.randint(5, 30) for _, name in sold}
    quantities |= dict(zip(costs, rng.sample(range(10, 61), 3), strict=True))  # so a wrong one makes a difference
    quantities[story.people] = rng.randint(3, 12)
    steps = [_step(f"from_{thing}", "multiply", thing, price) for thing, price in sold]
    if len(sold) == 2:
        steps.append(_step("income", "add", *(step.result for step in steps)))
    income = steps[-1].result
    value = solve(steps, quantities)[income]
    costs = rng.sample(costs, 3)
    formulas = [Formula(operation="subtract", left=income, right=cost) for cost in costs[:2]]
    limit = value - rng.randint(-40, 39)  # true half of the time
    steps.append(Step(result="rest", formula=formulas[0], test=income, limit=limit, otherwise=formulas[1]))
    if rng.random() < 0.5:
        steps.append(_step("balance", rng.choice(["add", "subtract"]), "rest", costs[2]))
    if rng.random() < 0.5:
        steps.append(_step("share", "divide", steps[-1].result, story.people))
    lines = [_worded(step, rng) for step in steps]
    rng.shuffle(lines)
    names = rng.sample(sorted(quantities), len(quantities))
    wording = {"quantities": ", ".join(names), "lines": "\n".join(lines), "asked": steps[-1].result}
    return PROBLEM.format(opening=story.opening, **wording), quantities, steps


def read(prompt: str) -> list[Step]:
    """Parse the steps of a prompt, in its order."""
    return [_read(line) for line in prompt.splitlines() if line.startswith("- ")]


def _step(result: str, operation: Operation, left: str, right: str) -> Step:
    return Step(result=result, formula=Formula(operation=operation, left=left, right=right))


def _worded(step: Step, rng: Random) -> str:
    def words(formula: Formula) -> str:
        return rng.choice(WORDINGS[formula.operation]).format(left=formula.left, right=formula.right)

    if step.otherwise is None:
        return f"- {step.result}: {words(step.formula)}"
    formula, other = words(step.formula), words(step.otherwise)
    return f"- {step.result}: if {step.test} is above {step.limit}, {formula}; if not, {other}"


def _read(line: str) -> Step:
    if choice := CHOICE.fullmatch(line):
        formula, other = _formula(choice["formula"]), _formula(choice["other"])
        return Step(
            result=choice["result"], formula=formula, test=choice["test"], limit=int(choice["limit"]), otherwise=other
        )
    plain = PLAIN.fullmatch(line)
    assert plain is not None
    return Step(result=plain["result"], formula=_formula(plain["formula"]))


def _formula(words: str) -> Formula:
    for operation, wordings in WORDINGS.items():
        for wording in wordings:
            if match := re.fullmatch(wording.format(left=r"(?P<left>\w+)", right=r"(?P<right>\w+)"), words):
                return Formula(operation=operation, **match.groupdict())
    raise ValueError(f"unknown wording of an operation: {words!r}")
