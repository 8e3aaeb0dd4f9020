"""Checking an environment: one that is well passes, and each fault is found by the check that is there for it."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, Field, PositiveFloat, PositiveInt

from stateroom import Environment, Episode, Resource, SessionInfo, State, Task, TempFolder, ToolError, Verdict, tool
from stateroom.environment import find_environment, registered
from stateroom.errors import EnvironmentFailed, TimedOut
from stateroom.model import Item, Policy, calls_of, function_call, last_user_text, message, outputs_of
from stateroom.rollout import CheckReport, Finding, check_environment, example_file, read_tasks
from tests.messages import raises

Check = Callable[..., Any]

NUMBERS = count()
"""Something in a module that changes with each use."""

CURRENT: list[int] = []
"""Whose turn it is, in a module."""


class Till(State):
    total: int = 0
    sold: list[int] = []
    at: int = 0


class TillTask(Task):
    prices: list[int]


class ReferencePolicy(Policy):
    """Looks, then sells what the user names."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        prices = [int(word) for word in last_user_text(conversation).split() if word.isdigit()]
        step = len(outputs_of(conversation))
        if step == 0:
            return [function_call("total", f"call_{step}")]
        if step <= len(prices):
            return [function_call("sell", f"call_{step}", price=prices[step - 1])]
        return [message("Done.")]


class TillEnvironment(Environment[Till, TillTask]):
    """Sells, and counts the money. Nothing is wrong with it."""

    policies = {"reference": ReferencePolicy}

    def seed(self, task: TillTask) -> Till:
        return Till()

    @tool
    def sell(self, state: Till, price: PositiveInt) -> Any:
        """Sell something.

        Args:
            price: What it costs.
        """
        state.sold.append(price)
        return self.sale(state, price)

    def sale(self, state: Till, price: int) -> Any:
        """What else a sale does: others do something else here."""
        state.total += price
        return state.total

    @tool(effect="read")
    def total(self, state: Till) -> int:
        """What was taken in."""
        return state.total

    def verify(self, state: Till, episode: Episode) -> float:
        return float(list(state.sold) == episode.task.prices)


def till(name: str, **parts: Any) -> type[TillEnvironment]:
    """A till some parts of which are others."""
    return type(name, (TillEnvironment,), {"__doc__": "Sells in a way of its own.", **parts})


def judging(name: str, judge: Callable[[Till, float], Any]) -> type[TillEnvironment]:
    """A till with another verdict on its state, for which the reward is known that is right."""

    def verify(self: Any, state: Till, episode: Episode) -> Any:
        return judge(state, float(list(state.sold) == episode.task.prices))

    return till(name, verify=verify)


def task(*prices: int, **more: Any) -> dict[str, Any]:
    asked = f"Look, then sell for {' and '.join(map(str, prices))} ."
    return {"responses_create_params": {"input": asked}, "prices": list(prices)} | more


ROWS = [task(1, 2), task(3), task(4, 5, 6), task(7, 8)]


def written(folder: Path, rows: list[Any]) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.fixture
def checked(tmp_path: Path) -> Check:
    """Check an environment with some tasks."""

    async def run(environment: type[Environment[Any, Any]], rows: list[Any] = ROWS, **more: Any) -> CheckReport:
        return await check_environment(environment, written(tmp_path, rows), **more)

    return run


def wrong(report: CheckReport) -> dict[str, str]:
    """The checks that found something, and how bad it is."""
    return {each.check: each.result for each in report.findings if each.result in ("problem", "warning")}


def finding(report: CheckReport, name: str) -> Finding:
    [found] = [each for each in report.findings if each.check == name]
    return found


# What is well.


async def test_nothing_is_found_in_an_environment_that_is_well(checked: Check) -> None:
    report = await checked(TillEnvironment)
    assert [each for each in report.findings if each.result != "ok"] == []
    assert report.problems == []
    assert [each.check for each in report.findings] == [
        *("schema", "tasks", "seed", "determinism", "isolation", "hidden state", "read back"),
        *("reference", "idle", "shortcut", "verifier", "tools", "cost"),
    ]


@pytest.mark.parametrize("name", registered())
async def test_the_gallery_has_no_problems(checked: Check, name: str) -> None:
    environment = find_environment(name)
    examples = example_file(environment)
    assert examples is not None
    rows = read_tasks(examples, environment())
    report = await checked(environment, rows[:: 1 + len(rows) // 4])  # of many some will do
    assert report.problems == []


@tool(effect="external")
def pay(self: Any) -> None:
    """Pay for all."""
    raise AssertionError("nobody has asked for this")


@tool
def unlock_by_chance(self: Any, state: Till, code: str) -> None:
    """Open the till.

    Args:
        code: The code.
    """
    raise ToolError("that is not the code")


def sells(sell: Callable[..., Any]) -> Any:
    """A tool that sells like that of the till, and does more."""
    sell.__doc__ = TillEnvironment.sell.__doc__
    return tool(sell)


class Members(State):
    points: int = 0


class Club(TillEnvironment):
    """Sessions of one user share a state, which is no fault."""

    @sells
    def sell(self, state: Till, user: Members, price: PositiveInt) -> int:
        state.sold.append(price)
        user.points += 1
        return user.points


class Street(TillEnvironment):
    """Starts from a world, which is made once in each process."""

    def world(self) -> Till:
        return Till(sold=[1] * 1000)

    def seed(self, state: Till, task: TillTask) -> None:
        state.sold.clear()


class Slate(Resource[list[int]]):
    """What is written on it cannot be saved."""

    kind = "restart_only"

    def start(self, session: SessionInfo) -> list[int]:
        return []


class Outside(TillEnvironment):
    """Keeps what it sold in a file and on a slate too, by async tools."""

    resources = {"folder": TempFolder(), "slate": Slate()}

    @sells
    async def sell(self, state: Till, folder: Path, slate: list[int], price: PositiveInt) -> int:
        state.sold.append(price)
        slate.append(price)
        (folder / "sold.json").write_text(json.dumps(list(state.sold)))
        return len(slate)

    def verify(self, folder: Path, slate: list[int], episode: Episode) -> float:
        path = folder / "sold.json"
        return float(path.exists() and json.loads(path.read_text()) == slate == episode.task.prices)


class Approving(TillEnvironment):
    """Asks a person before it sells."""

    @sells
    def sell(self, state: Till, ask: Callable[[str], Any], price: PositiveInt) -> int:
        ask(f"Sell for {price}?")
        state.sold.append(price)
        return price


# What is not. Each of these has one fault.


@tool
def sell_without_a_word(self: Any, state: Till, price: PositiveInt) -> int:
    """Sell something."""
    state.sold.append(price)
    return price


@tool(effect="read")
def total_of_anything(self: Any, state: Till, options: dict[str, int] = {}) -> int:  # noqa: B006 - as an author may write it
    """What was taken in.

    Args:
        options: What to leave out.
    """
    return state.total


class Silent(TillEnvironment):
    pass


class Founded(Street):
    """Starts from another world each time."""

    def world(self) -> Till:
        return Till(total=next(NUMBERS), sold=[1] * 1000)


@tool(effect="read")
def peek(self: Any, state: Till) -> int:
    """Look, they say."""
    state.total += 1
    return state.total


class Leaving(Outside):
    """Leaves a file behind when it looks."""

    @tool(effect="read")
    def peek(self, folder: Path) -> bool:
        """Whether the folder is there."""
        (folder / "seen").touch()
        return True


@tool
def refund(self: Any, state: Till) -> int:
    """Give the money back."""
    return state.missing  # type: ignore[attr-defined]


@tool(effect="read")
def price_of(self: Any, state: Till, place: int) -> int:
    """What something costs.

    Args:
        place: Where it stands.
    """
    return (4, 5, 6, 7, 8, 9, 10, 11)[place]


@tool(effect="read")
def open_up(self: Any, state: Till) -> object:
    """Look inside."""
    return object()


@tool
def unlock(self: Any, state: Till) -> None:
    """Open the till."""
    raise ToolError("there is no key")


class Reaching(TillEnvironment):
    """Reaches behind the state's back."""

    @tool(effect="read")
    def total(self, state: Till) -> int:
        """What was taken in."""
        vars(state)["sold"].append(0)
        return state.total

    def verify(self, state: Till, episode: Episode) -> float:
        return float([price for price in state.sold if price] == episode.task.prices)


class LooksLast(ReferencePolicy):
    """Sells, then looks."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        prices = [int(word) for word in last_user_text(conversation).split() if word.isdigit()]
        step = len(outputs_of(conversation))
        steps = [*(function_call("sell", f"call_{at}", price=price) for at, price in enumerate(prices))]
        return [[*steps, function_call("total", "last"), message("Done.")][step]]


UNASKING = till("Unasking", policies={"reference": LooksLast})
ASKING = till(
    "Asking",
    policies={"reference": LooksLast},
    verify=lambda self, state, episode: (
        TillEnvironment.verify(self, state, episode) * bool(calls_of(episode.response, "total"))
    ),
)


@pytest.mark.parametrize(
    ("environment", "check", "told"),
    [
        (till("Asks", pay=pay), "tools", "2 of 3 succeeded, in 36 calls; not tested: pay"),
        (till("Locked", unlock=unlock_by_chance), "tools", "not tested: unlock"),
        (Club, "isolation", "identical to each alone"),
        (Street, "seed", "the world and each seed are reproducible"),
        (Outside, "isolation", "identical to each alone"),
        (ASKING, "shortcut", "solved without the last reads"),
    ],
)
async def test_what_is_no_fault_is_not_found(
    checked: Check, environment: type[Environment[Any, Any]], check: str, told: str
) -> None:
    report = await checked(environment, [{**row, "user": "ann"} for row in ROWS])
    assert wrong(report) == {}
    assert told in finding(report, check).found[0]


class Lost(ReferencePolicy):
    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        raise LookupError("where am I?")


class Tireless(ReferencePolicy):
    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        return [function_call("total", f"call_{len(conversation)}")]


class Needy(TillEnvironment):
    """Needs something."""

    def __init__(self, prices: list[int]) -> None:
        self.prices = prices


UNDESCRIBED = till("Undescribed", sell=sell_without_a_word)
NO_POLICY = till("NoPolicy", policies={"reference": ReferencePolicy, "other": dict})
LUCKY = till("Lucky", sale=lambda self, state, price: random.random())
TIMELY = till("Timely", sale=lambda self, state, price: setattr(state, "at", time.perf_counter_ns()))
SEEDED = till("Seeded", seed=lambda self, task: Till(total=next(NUMBERS)))
UNSEEDED = till("Unseeded", seed=lambda self, task: 1 / 0)
REMEMBERING = till(
    "Remembering",
    __init__=lambda self: setattr(self, "seen", []),
    sale=lambda self, state, price: self.seen.append(price) or len(self.seen),
)
TURNED = till(  # keeps the session that is its turn in a module: alone, each episode is well
    "Turned",
    seed=lambda self, task: CURRENT.clear() or Till(),
    sale=lambda self, state, price: CURRENT.append(price) or sum(CURRENT),
)
CACHING = till(
    "Caching",
    __init__=lambda self: setattr(self, "cache", {}),
    sale=lambda self, state, price: self.cache.setdefault(price, price * price),
)
COPYING = till(
    "Copying",
    seed=lambda self, task: Till(total=5000),
    sale=lambda self, state, price: setattr(state, "sold", [*([0] * 5000 * (len(state.sold) == 1)), *state.sold]),
    verify=lambda self, state, episode: float(state.sold[-len(episode.task.prices) :] == episode.task.prices),
)
SETTING = till("Setting", sale=lambda self, state, price: setattr(self, "last", price))
UNSOLVABLE = judging(
    "Unsolvable", lambda state, right: Verdict(0.5 if state.sold else 0.0, reason="there should be more")
)
COUNTED = judging("Counted", lambda state, right: Verdict(1.0, metrics={"sold": len(state.sold)}))
GENEROUS = judging("Generous", lambda state, right: 1.0)
MEDDLING = judging("Meddling", lambda state, right: setattr(state, "total", 0))
NAN = judging("Nan", lambda state, right: float("nan"))
PERCENT = judging("Percent", lambda state, right: 100 * right)
REFUSING = till("Refusing", unlock=unlock)
ARBITRARY = till("Arbitrary", generate=classmethod(lambda cls, rng: task(random.randint(1, 10**9))))
BREAKING = till("Breaking", generate=classmethod(lambda cls, rng: 1 / 0))

FAULTS: list[tuple[type[Environment[Any, Any]], dict[str, str], str]] = [
    (UNDESCRIBED, {"schema": "warning"}, "sell: `price` has no description; add it to the docstring, under Args:"),
    (till("Loose", total=total_of_anything), {"schema": "warning"}, "`options` is a dict with any keys"),
    (Silent, {"schema": "warning"}, "Silent has no docstring"),
    (NO_POLICY, {"schema": "problem"}, "policies: other is not a subclass of stateroom.model.Policy"),
    (LUCKY, {"determinism": "problem"}, "take randomness, time and ids from `rng`, `clock` and `new_id`"),
    (TIMELY, {"determinism": "problem"}, "sell changes the state by"),
    (SEEDED, {"seed": "problem"}, "task 0: its initial state differs each time: total: "),
    (Founded, {"seed": "problem"}, "task 0: its initial state differs each time: total: "),
    (UNSEEDED, {"seed": "problem"}, "task 0: seed failed: ZeroDivisionError: division by zero (line "),
    (REMEMBERING, {"isolation": "problem", "hidden state": "warning"}, "differs after other episodes: sell(price="),
    (TURNED, {"isolation": "problem", "hidden state": "warning"}, "interleaved on two instances: sell(price="),
    (SETTING, {"hidden state": "problem"}, "self.last was set in an episode; keep it in the state"),
    (CACHING, {"hidden state": "warning"}, "self.cache changed in an episode; unless it is a cache"),
    (Reaching, {"read back": "problem"}, "the state in memory is not the stored one, after total: sold[0]: new, 0"),
    (UNSOLVABLE, {"reference": "problem"}, "it called total, sell, sell, and got 0.5: there should be more"),
    (UNASKING, {"shortcut": "warning"}, "the full reward does not require the last total or an answer"),
    (Approving, {"reference": "warning"}, "it waits for a person to answer 'Sell for 1?'"),
    (COUNTED, {"idle": "warning"}, "only the metrics differ"),
    (GENEROUS, {"idle": "problem"}, "task 0, 1, 2 and 1 more: doing nothing gets the full reward"),
    (MEDDLING, {"reference": "warning", "verifier": "problem"}, "verify failed: this state is read-only"),
    (NAN, {"reference": "warning", "verifier": "problem"}, "verify must return a finite number"),
    (PERCENT, {"verifier": "warning"}, "the reward is 100; use 0 to 1"),
    (till("Writing", peek=peek), {"tools": "problem"}, "peek() changes the state, but is declared as a read (line "),
    (Leaving, {"tools": "problem"}, "declared as a read, so it cannot change the folder"),
    (till("Broken", refund=refund), {"tools": "problem"}, "refund() raised AttributeError: "),
    (till("Careless", price=price_of), {"tools": "warning"}, "IndexError: tuple index out of range (line "),
    (till("Opaque", open=open_up), {"tools": "problem"}, "open() returned a object that is not JSON"),
    (REFUSING, {"tools": "warning"}, "unlock failed in each of 12 calls, such as unlock(): there is no key"),
    (till("Led", policies={"reference": Lost}), {"reference": "problem"}, "where am I?"),
    (till("Tiring", policies={"reference": Tireless}), {"reference": "problem"}, "total, total and 40 more, and got 0"),
    (Needy, {"schema": "problem"}, "Needy needs the argument"),
    (ARBITRARY, {"tasks": "problem"}, "generate returns different tasks for the same seed"),
    (BREAKING, {"tasks": "problem"}, "generate failed: ZeroDivisionError: division by zero"),
    (COPYING, {"cost": "warning"}, "of the state, so calls get slower as it grows"),
]


@pytest.mark.parametrize(("environment", "expected", "told"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
async def test_a_fault_is_found_by_its_check_and_by_no_other(
    checked: Check, environment: type[Environment[Any, Any]], expected: dict[str, str], told: str
) -> None:
    report = await checked(environment)
    assert wrong(report) == expected
    assert any(told in line for name in expected for line in finding(report, name).found), report.findings
    assert bool(report.problems) == ("problem" in expected.values())


async def test_every_task_has_its_outcome_and_none_without_a_verdict_counts_as_solved(checked: Check) -> None:
    class Gilded(TillEnvironment):
        """Is compared with gold actions, of which some fail."""

        policies = {}

        async def verify(self, state: Till, episode: Episode) -> float:
            gold = await episode.after(episode.task.gold, skip_failures=episode.task.lenient)
            return float(list(state.sold) == list(gold.sold) == episode.task.prices)

    def gold(*prices: int, lenient: bool = False) -> dict[str, Any]:
        return {"gold": [{"name": "sell", "arguments": {"price": price}} for price in prices], "lenient": lenient}

    rows = [task(1, **gold(1)), task(2, **gold(-1, 2)), task(3, **gold(-1, 3, lenient=True)), task(4, **gold())]
    report = await checked(Gilded, rows)
    assert [(each.task, each.outcome, each.reward) for each in report.outcomes] == [
        (0, "solved", 1),
        (1, "failed", None),
        (2, "solved", 1),
        (3, "unsolved", 0),
    ]
    assert "action 1, sell, failed" in report.outcomes[1].why
    lines = " ".join(finding(report, "reference").found)
    assert "task 1" in lines
    assert "task 3" in lines


async def test_a_row_may_describe_the_parameters(checked: Check) -> None:
    sell = {"name": "sell", "parameters": {"properties": {"price": {"type": "integer", "description": "In cents."}}}}
    rows = [row | {"responses_create_params": {**row["responses_create_params"], "tools": [sell]}} for row in ROWS]
    assert wrong(await checked(till("Undescribed", sell=sell_without_a_word), rows)) == {}


@pytest.mark.parametrize(
    "judge",
    [
        lambda state, right: Verdict(right, metrics={"mood": random.random()}),
        lambda state, right: Verdict(right, reason=f"asked {next(NUMBERS)} times"),
    ],
)
async def test_a_verifier_that_is_not_the_same_twice_is_found(checked: Check, judge: Any) -> None:
    report = await checked(judging("Fickle", judge))
    assert wrong(report) == {"determinism": "problem", "verifier": "problem"}
    assert finding(report, "isolation").result == "skipped"
    assert "when repeated, verify returns" in finding(report, "verifier").found[0]


async def test_a_problem_comes_before_what_is_only_worth_a_look(checked: Check) -> None:
    both = till("Both", total=total_of_anything, policies={"reference": ReferencePolicy, "lost": int})
    report = await checked(both)
    [problem] = report.problems
    assert problem.startswith("schema: policies:")
    first, second = finding(report, "schema").found
    assert problem == f"schema: {first}"
    assert "has no strict schema" in second


async def test_without_a_reference_policy_the_others_still_look(checked: Check) -> None:
    report = await checked(till("Alone", policies={}, sale=lambda self, state, price: random.random()))
    assert finding(report, "reference").result == "skipped"
    assert wrong(report) == {"determinism": "problem"}


class Stuck(TillEnvironment):
    """Has a part that does not end."""

    at = ""

    def stop(self, at: str) -> None:
        if at == self.at:
            raise TimedOut("30 s")  # as is raised in its place when the time is up

    def seed(self, task: TillTask) -> Till:
        self.stop("seed")
        return Till()

    def sale(self, state: Till, price: int) -> Any:
        self.stop("sale")

    def verify(self, state: Till, episode: Episode) -> float:
        self.stop("verify")
        return 0.0


@pytest.mark.parametrize(
    ("at", "name", "told"),
    [
        ("sale", "tools", "sell did not finish within 30 s; to allow more time, set timeout="),
        ("seed", "seed", "stuck.seed did not finish within 30 s"),
        ("verify", "verifier", "verify did not finish within 30 s"),
    ],
)
async def test_what_does_not_end_is_told_of_and_not_waited_for_again(
    checked: Check, monkeypatch: pytest.MonkeyPatch, at: str, name: str, told: str
) -> None:
    monkeypatch.setattr(Stuck, "at", at)
    played: list[None] = []
    report = await checked(Stuck, on_play=lambda: played.append(None))
    assert report.problems == [f"{name}: task 0, by reference: {told}"]
    assert len(played) == 1
    assert finding(report, "cost").result == "skipped"


# Tasks.


@pytest.mark.parametrize(
    ("rows", "result", "told"),
    [
        ([task(9, responses_create_params={})], "warning", "task 4: no prompt"),
        ([task(9, responses_create_params={"input": [{"role": "user", "content": " "}]})], "warning", "task 4: "),
        ([task(3)], "warning", "task 1, 4: identical tasks"),
        ([task(9, id="a"), task(8, id="b"), task(7, id="a")], "problem", "task 4, 6: duplicate id 'a'"),
        (["{"], "problem", "tasks.jsonl, line 5: not a JSON object"),
        ([{"prices": "many"}], "problem", "tasks.jsonl, line 5: prices: Input should be a valid list"),
        (
            [task(9, responses_create_params={"input": "Sell 9", "tools": [{"name": "steal"}]})],
            "problem",
            "task 4: unknown tool steal",
        ),
    ],
)
async def test_rows_that_are_wrong_are_found(checked: Check, rows: list[Any], result: str, told: str) -> None:
    report = await checked(TillEnvironment, [*ROWS, *rows])
    assert finding(report, "tasks").result == result
    assert any(told in line for line in finding(report, "tasks").found)


async def test_without_tasks_nothing_can_be_played() -> None:
    report = await check_environment(TillEnvironment)
    assert wrong(report) == {"tasks": "problem"}
    assert "the environment has no tasks" in report.problems[0]
    assert finding(report, "cost").result == "skipped"


async def test_tasks_of_a_generator_will_do() -> None:
    report = await check_environment(
        till("Generating", generate=classmethod(lambda cls, rng: task(rng.randint(1, 10**9))))
    )
    assert wrong(report) == {}
    assert "20 from the generator" in finding(report, "tasks").found[0]


async def test_without_tasks_a_generator_must_work() -> None:
    assert (await check_environment(BREAKING)).problems == [
        "tasks: generate failed: ZeroDivisionError: division by zero"
    ]


async def test_an_environment_of_which_there_can_be_only_one_is_refused(checked: Check) -> None:
    class Single(TillEnvironment):
        """Can be made once."""

        made: ClassVar[list[int]] = []

        def __init__(self) -> None:
            self.made.append(1)
            if len(self.made) > 1:
                raise RuntimeError("there is one already")

    with raises(EnvironmentFailed):
        await checked(Single)


async def test_of_many_tasks_some_from_all_over_are_played_unless_all_are_to_be(checked: Check) -> None:
    rows = [task(number) for number in range(1, 61)]
    played: list[None] = []
    some = await checked(TillEnvironment, rows, on_play=lambda: played.append(None))
    assert (some.tasks, some.played) == (60, 20)
    assert len(played) == 20 * 5  # by each of three, and twice by two of them
    rows[-1]["prices"] = [0]  # which cannot be sold
    assert (await checked(TillEnvironment, rows)).problems == []
    assert (await checked(TillEnvironment, [*rows[:30], rows[-1], *rows[30:-1]])).problems != []
    every = await checked(TillEnvironment, rows, everything=True)
    assert (every.tasks, every.played) == (60, 60)
    assert "task 59: it called total, sell, and got 0" in every.problems[0]


# By chance.


class Part(BaseModel):
    name: str


class Library(TillEnvironment):
    """Has tools that are asked by chance."""

    asked: ClassVar[Counter[str]] = Counter()

    @tool(effect="read")
    def weigh(
        self,
        count: Annotated[int, Field(ge=3, le=5)],
        rate: PositiveFloat,
        sizes: Annotated[list[int], Field(min_length=2)],
        colour: Literal["red", "blue"],
        seven: Literal[7],
        part: Part,
        spare: int | None,
        flag: bool,
    ) -> None:
        """Weigh a part."""
        self.asked["weigh"] += 1

    @tool(effect="read")
    def find_books(self) -> list[dict[str, str]]:
        """The books."""
        self.asked["find"] += 1
        return [{"id": "B-1", "title": "Tea"}, {"id": "B-2", "title": "Cups"}]

    @tool(effect="read")
    def open_book(self, book_id: str) -> None:
        """Open a book."""
        self.asked[book_id] += 1


async def test_arguments_fit_their_schema_and_are_guessed_from_what_was_seen(checked: Check) -> None:
    await checked(Library, [task(number) for number in range(1, 21)])
    asked = Library.asked
    assert asked.pop("weigh") == asked.pop("find") > 0  # no call of the one was refused for its arguments
    assert asked.keys() - {"a", "tea", "two words", ""} == {"B-1", "B-2"}
