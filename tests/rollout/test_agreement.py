"""Trees, groups, resumed runs and rescored ones agree with a plain run, for a policy that does the same every time."""

import asyncio
import json
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from stateroom import Environment, Episode, State, ToolError, tool
from stateroom.agent import SimulatedUser, UserSide
from stateroom.errors import ModelUnavailable
from stateroom.gallery import (
    CounterEnvironment,
    ExtractionEnvironment,
    OfficeEnvironment,
    RefundEnvironment,
    WeatherEnvironment,
)
from stateroom.model import (
    Answer,
    Item,
    Model,
    ModelSource,
    Policy,
    Request,
    Scripted,
    answer_of,
    function_call,
    message,
    outputs_of,
)
from stateroom.rollout import (
    Beam,
    BestOf,
    MonteCarlo,
    RunFiles,
    StoredRun,
    TreeFiles,
    branch,
    example_file,
    plan_run,
    read_tasks,
    rescore_rollouts,
    run,
)
from stateroom.store import open_store
from stateroom.training import export_rows
from tests.plans import make_branching, make_run
from tests.rows import rows

TASKS = 3

GALLERY = [CounterEnvironment, ExtractionEnvironment, OfficeEnvironment, RefundEnvironment, WeatherEnvironment]

RULES = [BestOf(2), BestOf(2, at=2), Beam(2, 1, 1), MonteCarlo(1)]


class Talk(State):
    said: list[str] = []
    rolled: list[int] = []
    user: UserSide = UserSide()


class TalkEnvironment(Environment[Talk]):
    """Talk to a customer, who may be played by a model, and roll dice meanwhile."""

    def __init__(self, user: SimulatedUser | None = None) -> None:
        self.user = user

    @tool
    def roll(self, state: Talk, rng: Random) -> list[int]:
        """Roll a die."""
        state.rolled.append(rng.randint(1, 6))
        return state.rolled

    @tool(effect="read")
    def look(self, state: Talk, rng: Random) -> list[int]:
        """Look at the dice; they seem to move."""
        return [*state.rolled, rng.randint(1, 6)]

    @tool
    def drop(self, state: Talk) -> None:
        """Drop the dice."""
        state.rolled.clear()
        raise ToolError("they are glued on")

    async def reply(self, state: Talk, message: str, rng: Random) -> str | None:
        state.said.append(message)
        if self.user is not None:
            return await self.user.reply(state.user, message, about="You want tea.", seed=rng.getrandbits(32))
        return None if message == "Bye." else f"{message} again, {rng.randint(1, 100)}?"

    def verify(self, state: Talk, episode: Episode) -> float:
        return sum(state.rolled) + 100 * len(state.said) + len(json.dumps(episode.response["output"])) / 10_000


ACTIONS: dict[str, list[Item]] = {
    "say": [message("Well.")],
    "roll": [function_call("roll", "r")],
    "look and roll": [function_call("look", "l"), function_call("roll", "r")],
    "drop": [function_call("drop", "d")],
    "unknown": [function_call("fly", "f")],
}


class Follows(Policy):
    """Follows a script, by what is in the conversation alone."""

    script: tuple[str, ...] = ()

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        spoken = [item for item in conversation if item.get("role") == "assistant"]
        ended = [item for item in conversation if item.get("call_id") in ("r", "d", "f") and "name" in item]
        made = len(spoken) + len(ended)
        return ACTIONS[self.script[made]] if made < len(self.script) else [message("Bye.")]


class Interrupted(Model):
    """A model that cannot be reached when it has answered some times, in all episodes."""

    def __init__(self, model: Any, left: list[int]) -> None:
        self._model = model
        self._left = left

    async def answer(self, request: Request) -> Answer:
        self._left[0] -= 1
        if self._left[0] == 0:
            raise ModelUnavailable("the line is down")
        return await answer_of(self._model, request)


Outcome = tuple[float, list[Item]]


def outcomes(path: Path) -> dict[int, list[Outcome]]:
    """The reward and the conversation of each episode, by task."""
    found: dict[int, list[Outcome]] = {}
    for row in rows(path):
        found.setdefault(row["_ng_task_index"], []).append((row["reward"], row["response"]["output"]))
    return found


class Runs:
    """Runs of one environment and one policy, each in files of its own."""

    def __init__(self, folder: Path, make: Any, model: ModelSource, tasks: list[Any], max_steps: int = 50) -> None:
        self.folder = folder
        self.make = make
        self.model = model
        self.tasks = tasks
        self.max_steps = max_steps

    def plan(self, name: str, **changes: Any) -> dict[str, Any]:
        """The settings of a run that writes to files of this name."""
        path = self.folder / f"{name}.jsonl"
        files = TreeFiles(path) if "rule" in changes else RunFiles(path)
        plain = {"environment": self.make(), "model": self.model, "tasks": self.tasks, "files": files}
        stored = {"store": f"sqlite:///{self.folder}/{name}.db", "max_steps": self.max_steps}
        return plain | stored | changes

    async def outcomes(self, name: str, **changes: Any) -> dict[int, list[Outcome]]:
        """What a run came to."""
        plan = self.plan(name, **changes)
        if "rule" in changes:
            assert (await branch(make_branching(**plan))).broken == 0
        else:
            await run(make_run(**plan))
        return outcomes(plan["files"].rollouts)

    async def check(self, rules: list[Any], interruption: int) -> None:
        """Compare all of them with a plain run."""
        expected = {task: [alone] for task, (alone,) in (await self.outcomes("plain")).items()}
        assert len(expected) == len(self.tasks)
        for number, rule in enumerate(rules):
            for task, found in (await self.outcomes(f"tree {number}", rule=rule)).items():
                assert found == expected[task] * len(found), rule
        for task, found in (await self.outcomes("group", group=2)).items():
            assert found == expected[task] * 2
        left = [interruption]
        first = ModelSource("interrupted", lambda seed: Interrupted(self.model.for_episode(seed), left))
        await self.outcomes("resumed", model=first, concurrency=1)
        assert await self.outcomes("resumed", model=first, concurrency=1, resume=True) == expected
        rescored = RunFiles(self.folder / "rescored.jsonl")
        plain = self.folder / "plain.jsonl"
        async with open_store(f"sqlite:///{self.folder}/plain.db") as store:
            await rescore_rollouts(self.make(), plain, rescored, store)
        assert outcomes(rescored.rollouts) == expected


@pytest.mark.parametrize("environment", GALLERY)
async def test_in_the_gallery(tmp_path: Path, environment: Any) -> None:
    examples = example_file(environment)
    assert examples is not None
    tasks = [*read_tasks(examples, environment())][: 1 if environment is OfficeEnvironment else TASKS]
    model = ModelSource("reference", environment.policies["reference"])
    await Runs(tmp_path, environment, model, tasks).check(RULES, interruption=4)


USER = Scripted(["Tea, please.", "With milk.", [function_call("end_conversation", "e")]])


async def test_with_a_user_whom_a_model_plays(tmp_path: Path) -> None:
    class Asks(Follows):
        script = ("say", "roll", "look and roll", "say", "drop", "say", "say")

    make = partial(TalkEnvironment, SimulatedUser(USER, "You are a customer."))
    await Runs(tmp_path, make, ModelSource("asks", Asks), [{"name": "tea"}]).check(RULES, interruption=4)


@pytest.mark.parametrize("kind", [BestOf, Beam, MonteCarlo])
def test_whatever_is_said_and_done(tmp_path_factory: pytest.TempPathFactory, kind: Any) -> None:
    small = st.integers(1, 2)
    rules = {
        BestOf: st.builds(BestOf, small, at=st.integers(0, 4)),
        Beam: st.builds(Beam, small, small, small),
        MonteCarlo: st.builds(MonteCarlo, small),
    }

    @settings(max_examples=8, deadline=None)
    @given(st.lists(st.sampled_from(sorted(ACTIONS)), max_size=6), rules[kind], st.integers(1, 8), st.integers(1, 8))
    def holds(script: list[str], rule: Any, max_steps: int, interruption: int) -> None:
        policy = type("Scripted", (Follows,), {"script": tuple(script)})
        folder = tmp_path_factory.mktemp("runs")
        runs = Runs(folder, TalkEnvironment, ModelSource("follows", policy), [{"name": "a"}, {"name": "b"}], max_steps)
        asyncio.run(runs.check([rule], interruption))

    holds()


class Shelf(State):
    books: dict[str, str] = {}
    taken: list[str] = []


class ShelfEnvironment(Environment[Shelf]):
    """Take books from a shelf that holds `size` bytes of them."""

    def __init__(self, size: int = 1_000) -> None:
        self.size = size

    def world(self) -> Shelf:
        return Shelf(books={f"book {number}": "x" * 1_000 for number in range(self.size // 1_000)})

    @tool
    def take(self, state: Shelf) -> str:
        """Take a book."""
        state.taken.append(state.books.pop(next(iter(state.books)))[:3] if state.books else "none")
        return state.taken[-1]

    def verify(self, state: Shelf) -> float:
        return len(state.taken) / 10


class TakesSix(Policy):
    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        return [message("done")] if len(outputs_of(conversation)) == 6 else [function_call("take", "t")]


@pytest.mark.parametrize("size", [1_000, 80_000, 5_000_000])
async def test_whatever_the_size_of_the_state(tmp_path: Path, size: int) -> None:
    make, model = partial(ShelfEnvironment, size), ModelSource("takes", TakesSix)
    runs = Runs(tmp_path, make, model, [{"name": "a"}])
    await runs.check([*RULES, MonteCarlo(4)], interruption=4)
    trees = TreeFiles(tmp_path / "tree 4.jsonl")
    exported = [row async for row in export_rows(StoredRun(trees), "jsonl", how="vine")]
    assert len(exported) == len(outcomes(trees.rollouts)[0]) == 1 + 7 * 4  # an episode, and those from its states
    origin = f"{__file__}:ShelfEnvironment"
    options: dict[str, Any] = {"env_args": {"size": size}, "model": f"{__file__}:TakesSix", "input": [{"name": "a"}]}
    plan = plan_run(origin, engine="processes:1", output=tmp_path / "processes.jsonl", **options)
    assert (await run(plan)).failed == 0
    assert outcomes(plan.files.rollouts) == outcomes(tmp_path / "plain.jsonl")
