"""The runner: its files, failures, seeds, and that nothing finished is lost or overwritten."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment, Episode, State, Verdict, open_store
from stateroom.errors import CannotWrite
from stateroom.gallery import CounterEnvironment
from stateroom.model import Item, ModelSource, Policy, Scripted, function_call, message
from stateroom.rollout import Report, RunFiles, RunPlan, aggregate, run
from tests.messages import raises
from tests.plans import make_run
from tests.rows import comparable, rows, write_rows

REFERENCE, NOISY = (ModelSource(name, CounterEnvironment.policies[name]) for name in ("reference", "noisy"))


def counter_task(start: int, addition: int, **more: Any) -> dict[str, Any]:
    request = {"input": f"add {addition}"}
    return {"responses_create_params": request, "initial_count": start, "expected_count": start + addition, **more}


TASKS = [counter_task(n, n + 1) for n in range(3)]


def plan(tmp_path: Path, model: ModelSource = REFERENCE, name: str = "out", **changes: Any) -> RunPlan:
    settings: dict[str, Any] = {"environment": CounterEnvironment(), "tasks": TASKS, "store": "memory://"}
    return make_run(model=model, files=RunFiles(tmp_path / f"{name}.jsonl"), **(settings | changes))


class Judge(State):
    value: int = 0


class JudgeEnvironment(Environment[Judge]):
    """Whatever the task wants of its verdict."""

    def verify(self, state: Judge, episode: Episode) -> Verdict:
        verdict = VERDICTS[episode.task.verdict]
        if isinstance(verdict, BaseException):
            raise verdict
        return verdict


VERDICTS: dict[str, Any] = {
    "plain": Verdict(0.25, components={"part": 0.25}, metrics={"m": 2}, reason="so", details={"seen": [1]}),
    "clash": Verdict(0.5, metrics={"reward": 9, "tool_calls": 9}, details={"_ng_task_index": 9, "response": 9}),
    "set": Verdict(1.0, details={"seen": {1, 2}}),
    "none": None,
    "raises": ZeroDivisionError("oops"),
    "exits": SystemExit(3),
    "cancels": asyncio.CancelledError(),
    "interrupts": KeyboardInterrupt(),
}


SILENT = ModelSource("silent", lambda seed: Scripted([""]))


async def judged(tmp_path: Path, *verdicts: str) -> tuple[Report, RunFiles]:
    tasks = [{"verdict": verdict} for verdict in verdicts]
    planned = plan(tmp_path, SILENT, environment=JudgeEnvironment(), tasks=tasks)
    return await run(planned), planned.files


async def test_a_rollout_is_its_input_and_the_verdict(tmp_path: Path) -> None:
    given = plan(tmp_path, repeats=2, limit=2)
    report = await run(given)
    inputs = [json.loads(line) for line in given.files.inputs.read_text().splitlines()]
    assert [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in inputs] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({row["_stateroom_session"] for row in inputs}) == 4
    agent = {"type": "responses_api_agents", "name": "counter_agent"}
    rollouts = rows(given.files.rollouts)
    assert (report.episodes, report.failed) == (4, 0)
    for told, row in zip(inputs, rollouts, strict=True):
        own = {name: told[name] for name in ("_ng_task_index", "_ng_rollout_index", "_stateroom_session")}
        assert told == {**TASKS[told["_ng_task_index"]], "agent_ref": agent, **own}
        assert row.items() >= told.items()
        assert (row["reward"], row["tool_calls"], row["truncated"]) == (1.0, 2, 0)
        assert row["response"]["object"] == "response"
        assert row["response"]["status"] == "completed"
        kinds = [item["type"] for item in row["response"]["output"]]
        assert kinds == ["function_call", "function_call_output"] * 2 + ["message"]
        assert {tool["name"] for tool in row["response"]["tools"]} == {"increment_counter", "get_counter_value"}
    assert not given.files.failures.exists()


REQUIRED = {
    "response": {"id", "created_at", "model", "object", "output", "parallel_tool_calls", "tool_choice", "tools"},
    "message": {"id", "content"},
    "reasoning": {"id", "summary"},
    "function_call": {"arguments", "call_id", "name"},
    "function_call_output": {"call_id", "output"},
    "output_text": {"annotations", "text"},
}
"""Fields that NeMo Gym 0.7 requires: those of its `NeMoGymResponse`, of the items of its output, and of their parts."""


async def test_rollouts_have_what_nemo_gym_requires(tmp_path: Path) -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    answers = [thought, function_call("get_counter_value", "c")], [message("done"), {**message("no"), "id": "msg_own"}]
    given = plan(tmp_path, ModelSource("thinks", lambda seed: Scripted([*answers])), limit=1)
    await run(given)
    (row,) = rows(given.files.rollouts)
    assert row.keys() >= {"responses_create_params", "response", "reward"}
    assert row["response"].keys() >= REQUIRED["response"]
    output = row["response"]["output"]
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    assert all(part.keys() >= REQUIRED[part["type"]] for part in [*output, *parts])
    assert [item.get("id") for item in output] == ["rs_0", "fc_1", None, "msg_3", "msg_own"]


async def test_rows_as_other_tools_write_them_run_unchanged(tmp_path: Path) -> None:
    tools = [{"type": "function", "name": "increment_counter", "parameters": {}, "strict": True}]
    task = {
        "responses_create_params": {
            "input": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "input_text", "text": "add 4 then add 3 then get the count"}]},
            ],
            "tools": tools,
            "parallel_tool_calls": False,
            "temperature": 0.7,
        },
        "initial_count": 3,
        "expected_count": 10,
        "agent_ref": {"type": "responses_api_agents", "name": "theirs"},
        "verifier_metadata": {"difficulty": [1, None, "x"]},
        "id": 17,
    }
    given = plan(tmp_path, tasks=[task])
    report = await run(given)
    (row,) = rows(given.files.rollouts)
    assert row["reward"] == 1.0
    assert row.items() >= task.items()
    assert row["response"]["tools"] == tools
    (written,) = json.loads(given.files.metrics.read_text())
    assert written["agent_ref"] == task["agent_ref"]
    assert "mean/id" not in report.metrics["agent_metrics"]


async def test_rollouts_can_be_run_again(tmp_path: Path) -> None:
    first = plan(tmp_path, NOISY, repeats=4)
    await run(first)
    again = plan(tmp_path, name="again", tasks=rows(first.files.rollouts))
    report = await run(again)
    assert report.metrics["agent_metrics"]["mean/reward"] == 1.0
    assert {row["reward"] for row in rows(again.files.rollouts)} == {1.0}
    assert [row["_ng_task_index"] for row in rows(again.files.inputs)] == list(range(12))


async def test_aggregate_metrics_are_written(tmp_path: Path) -> None:
    given = plan(tmp_path, NOISY, repeats=4)
    report = await run(given)
    (written,) = json.loads(given.files.metrics.read_text())
    assert written.pop("agent_ref") == {"type": "responses_api_agents", "name": "counter_agent"}
    assert written == report.metrics
    assert written == aggregate(rows(given.files.rollouts), given=TASKS[0])
    assert 0 < written["agent_metrics"]["mean/reward"] < 1


@pytest.mark.parametrize("times", [{"repeats": 8}, {"group": 4}], ids=["repeats", "group"])
async def test_the_seed_decides_everything(tmp_path: Path, times: dict[str, int]) -> None:
    plans = [
        plan(tmp_path, NOISY, "a", **times, seed=7, concurrency=1),
        plan(tmp_path, NOISY, "b", **times, seed=7, concurrency=16, store=f"sqlite:///{tmp_path / 'rooms.db'}"),
        plan(tmp_path, NOISY, "c", **times, seed=8),
    ]
    for each in plans:
        await run(each)
    first, same, other = (comparable(each.files.rollouts) for each in plans)
    assert first == same
    assert [row["reward"] for row in first] != [row["reward"] for row in other]


ERRORS: list[BaseException] = [RuntimeError("no answer"), SystemExit(), asyncio.CancelledError()]
ERRORS += [KeyboardInterrupt(), GeneratorExit()]


class Broken(Policy):
    """Breaks down in a way of its own for each task."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        match int(conversation[0]["content"].split()[1]):
            case number if number <= len(ERRORS):
                raise ERRORS[number - 1]
            case 6:
                return [{"type": "message", "content": {1}}]
        return [function_call("increment_counter", "c", count=7)] if len(conversation) == 1 else [message("\ud800")]


async def test_a_broken_policy_fails_its_episode_and_the_run_goes_on(tmp_path: Path) -> None:
    tasks = [counter_task(0, n) for n in range(1, 8)]
    given = plan(
        tmp_path, ModelSource("broken", Broken), tasks=tasks, concurrency=1, store=f"sqlite:///{tmp_path / 'rooms.db'}"
    )
    report = await run(given)
    (finished,), failed = rows(given.files.rollouts), rows(given.files.failures)
    assert (report.episodes, report.failed, finished["reward"]) == (7, 6, 1.0)
    assert [row["_ng_task_index"] for row in failed] == [0, 1, 2, 3, 4, 5]
    for row in failed:
        assert row.items() >= tasks[row["_ng_task_index"]].items()
        assert (row["_ng_failure_class"], row["_ng_failure_terminal"]) == ("model", True)
        assert row["error"].startswith("ModelFailed: Broken ")
        async with open_store(given.store) as store:
            assert (await store.head(row["_stateroom_session"])).closed  # so it keeps nothing outside
        assert "reward" not in row
    assert failed[0]["error"] == "ModelFailed: Broken raised RuntimeError: no answer"
    assert report.first_error == f"{failed[0]['cause']['place']}: {failed[0]['error']}"
    assert report.metrics["agent_metrics"]["mean/reward"] == 1.0


async def test_a_policy_that_cannot_be_made_is_a_policy_failure(tmp_path: Path) -> None:
    given = plan(tmp_path, ModelSource("unmade", lambda seed: dict[str, Any]()["no such model"]))
    assert (await run(given)).failed == 3
    assert {row["_ng_failure_class"] for row in rows(given.files.failures)} == {"model"}
    assert rows(given.files.rollouts) == []


@pytest.mark.parametrize("verdict", ["set", "none", "raises", "exits", "cancels", "interrupts"])
async def test_a_broken_verifier_fails_its_episode_and_the_run_goes_on(tmp_path: Path, verdict: str) -> None:
    report, files = await judged(tmp_path, verdict, "plain", verdict)
    assert (report.failed, len(report.rows)) == (2, 1)
    assert {row["_ng_failure_class"] for row in rows(files.failures)} == {"environment"}
    assert rows(files.rollouts)[0]["verdict"] == "plain"


async def test_what_a_verdict_says_is_in_the_row_and_cannot_change_the_bookkeeping(tmp_path: Path) -> None:
    report, files = await judged(tmp_path, "plain", "clash")
    plain, clash = rows(files.rollouts)
    assert (plain["reward"], plain["m"], plain["reason"], plain["seen"]) == (0.25, 2, "so", [1])
    assert plain["reward_components"] == {"part": 0.25}
    assert report.metrics["agent_metrics"]["mean/m"] == 2
    assert (clash["reward"], clash["tool_calls"], clash["_ng_task_index"]) == (0.5, 0, 1)
    assert clash["response"]["object"] == "response"
    assert len(report.metrics["group_level_metrics"]) == 2


@pytest.mark.parametrize(("waits", "limits"), [(False, {"max_steps": 1}), (True, {"deadline": 1})])
async def test_limits_end_an_episode_and_it_is_verified_all_the_same(
    tmp_path: Path, waits: bool, limits: dict[str, Any]
) -> None:
    class Endless(Policy):
        async def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
            if len(conversation) > 1 and waits:
                await asyncio.Event().wait()
            return [function_call("increment_counter", "c", count=1)]

    given = plan(tmp_path, ModelSource("endless", Endless), tasks=[counter_task(0, 1)], **limits)
    await run(given)
    (row,) = rows(given.files.rollouts)
    assert (row["reward"], row["truncated"], row["response"]["status"]) == (1.0, 1, "incomplete")


@pytest.mark.parametrize("taken", ["rollouts", "inputs", "failures", "metrics"])
async def test_an_earlier_run_is_never_written_over(tmp_path: Path, taken: str) -> None:
    given = plan(tmp_path)
    path: Path = getattr(given.files, taken)
    write_rows(path, [{"precious": 1}])
    with raises(CannotWrite):
        await run(given)
    assert rows(path) == [{"precious": 1}]
    assert os.listdir(tmp_path) == [path.name]


async def test_a_file_that_takes_no_more_ends_the_run_with_one_clear_error(tmp_path: Path) -> None:
    given = plan(tmp_path)

    def fill(row: Any) -> None:
        given.files.failures.symlink_to("/dev/full")

    def model(seed: int) -> Scripted:
        return Scripted([""] if not rows(given.files.rollouts) else [RuntimeError()])

    with raises(CannotWrite):
        await run(plan(tmp_path, ModelSource("raises", model), concurrency=1), fill)
    assert len(rows(given.files.rollouts)) == 1
