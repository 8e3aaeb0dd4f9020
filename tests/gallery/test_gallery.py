"""Every registered environment: tasks, generator, README, and policies that do what they promise."""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stateroom import Environment, Sessions
from stateroom.agent import Agent, run
from stateroom.environment import find_environment, registered
from stateroom.model import Noisy, Policy
from stateroom.rollout import generate_tasks, read_tasks
from stateroom.session import Session, Verdict
from stateroom.store import open_store

ENVIRONMENTS = [find_environment(name) for name in registered()]

pytestmark = pytest.mark.parametrize("kind", ENVIRONMENTS, ids=lambda kind: kind.name)


def folder(kind: type[Environment[Any, Any]]) -> Path:
    return Path(str(files(kind.__module__.rpartition(".")[0])))


def examples(kind: type[Environment[Any, Any]]) -> Sequence[dict[str, Any]]:
    assert kind.examples is not None
    return read_tasks(folder(kind) / kind.examples, kind())


async def play(sessions: Sessions[Any], row: dict[str, Any], policy: Policy) -> tuple[Verdict, Session[Any]]:
    session = await sessions.seed(row)
    trajectory = await run(Agent(policy), session)
    assert trajectory.status == "completed"
    return await session.verify({"output": trajectory.output}), session


def test_there_are_examples_a_generator_and_a_readme(kind: type[Environment[Any, Any]]) -> None:
    assert len(examples(kind)) >= 5
    rows = generate_tasks(kind, 50, seed=3)
    assert rows == generate_tasks(kind, 50, seed=3)
    assert rows != generate_tasks(kind, 50, seed=4)
    assert len({json.dumps(row) for row in rows}) > 5
    assert json.loads(json.dumps(rows)) == rows
    readme = (folder(kind) / "README.md").read_text(encoding="utf-8")
    assert all(tool["strict"] for tool in kind().tool_definitions())
    for name in (*kind().tools, *kind.policies, *(set(kind.task_type.model_fields) - {"responses_create_params"})):
        assert f"`{name}" in readme


async def test_the_reference_policy_solves_every_task(kind: type[Environment[Any, Any]]) -> None:
    environment = kind()
    async with open_store("memory://") as store:
        sessions = Sessions[Any](environment, store)
        for index, row in enumerate([*examples(kind), *generate_tasks(kind, 40, seed=11)]):
            environment.parse_task(row)
            verdict, _ = await play(sessions, row, kind.policies["reference"](index))
            assert verdict.reward == 1.0, row


async def test_the_noisy_policy_errs_at_its_rate_and_loses_exactly_then(kind: type[Environment[Any, Any]]) -> None:
    tasks = generate_tasks(kind, 150, seed=5)
    erred = 0
    async with open_store("memory://") as store:
        sessions = Sessions[Any](kind(), store)
        for seed, row in enumerate(tasks):
            policy = kind.policies["noisy"](seed)
            assert isinstance(policy, Noisy)
            errs = policy.errs
            erred += errs
            verdict, session = await play(sessions, row, policy)
            assert verdict.reward == (0.0 if errs else 1.0), (seed, row)
            await session.close()
    assert abs(erred / len(tasks) - kind.policies["noisy"].rate) < 0.06  # type: ignore[attr-defined]


@pytest.mark.parametrize("rate", [0.0, 0.15, 1.0])
def test_the_rate_can_be_set(kind: type[Environment[Any, Any]], rate: float) -> None:
    policy = type("Mine", (kind.policies["noisy"],), {"rate": rate})
    erred = sum(policy(Random(seed).getrandbits(62)).errs for seed in range(1000))
    assert abs(erred / 1000 - rate) < 0.04


async def test_an_episode_in_which_nothing_was_done_can_be_judged(kind: type[Environment[Any, Any]]) -> None:
    async with open_store("memory://") as store:
        silent = {"type": "message", "role": "assistant", "content": []}
        responses: tuple[Any, ...] = (None, {"output": []}, {"output": [silent]})
        for response in responses:
            session = await Sessions[Any](kind(), store).seed(examples(kind)[0])
            assert (await session.verify(response)).reward == 0.0
