"""Rollouts that NeMo Gym has recorded: its agents ran them, on its own servers, and they run, replay and rescore here.

They come without indices, sessions and the fields of their tasks, with its own spacing in JSON, and with nulls where we
have nothing; `tests/gallery/nemo_gym/README.md` says where they are from.
"""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from stateroom import Environment, Episode, State, tool
from stateroom.errors import BadTask, NotFound
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment, WeatherEnvironment
from stateroom.rollout import RescoreReport, RunFiles, replay_rollouts, rescore_rollouts
from tests.messages import raises, says
from tests.rows import rows, write_rows

Call = tuple[str, str, str]
"""A tool's name, its arguments and its output."""


def recorded(asked: str, *answers: list[Call], said: str, **verdict: Any) -> dict[str, Any]:
    """A row; each answer of the model has some calls."""
    output: list[dict[str, Any]] = []
    for step, calls in enumerate(answers):
        ids = [f"call_{step}{index}" for index in range(len(calls))]
        for call_id, (name, arguments, _) in zip(ids, calls, strict=True):
            call = {"arguments": arguments, "call_id": call_id, "name": name, "type": "function_call"}
            output.append({**call, "id": f"fc_{call_id}", "status": "completed"})
        for call_id, (_, _, result) in zip(ids, calls, strict=True):
            output.append(
                {"call_id": call_id, "output": result, "type": "function_call_output", "id": None, "status": None}
            )
    text = {"annotations": [], "text": said, "type": "output_text", "logprobs": []}
    output.append({"id": "msg_1", "content": [text], "role": "assistant", "status": "completed", "type": "message"})
    asked_for = {"input": [{"content": asked, "role": "user", "type": "message"}], "background": None, "store": None}
    usage = {
        "input_tokens": 128,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 27,
        "total_tokens": 155,
    }
    about = {"id": "resp_68c08ea3fd2481a08d25b7f7410f89f601e82be386698c56", "created_at": 1757449892.0}
    response = {**about, "status": "completed", "usage": usage, "output": output}
    return {"responses_create_params": asked_for, "response": response, **verdict}


def task(asked: str, **fields: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": [{"content": asked, "role": "user"}]}, **fields}


DONE = '{"success": true}'
COUNTING = [
    recorded(
        f"add {first} then add {first + 1} then get the count",
        [
            ("increment_counter", f'{{"count":{first}}}', DONE),
            ("increment_counter", f'{{"count":{first + 1}}}', DONE),
        ],
        [("get_counter_value", "{}", f'{{"count": {count}}}')],
        said=f"The current count is {count}.",
        reward=1.0,
    )
    for first, count in ((13, 42), (10, 33))
]
COUNTS = [  # in another order
    task("add 10 then add 11 then get the count", expected_count=33, initial_count=12),
    task("add 13 then add 14 then get the count", expected_count=42, initial_count=15),
]
DATA = Path(__file__).parents[1] / "gallery" / "nemo_gym"
ENVIRONMENTS = (CounterEnvironment(), ExtractionEnvironment(), WeatherEnvironment())


@pytest.fixture(params=ENVIRONMENTS, ids=lambda environment: environment.name)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Environment[Any, Any], list[dict[str, Any]], Path]:
    """An environment, and the rollouts that Gym brings for it, in a folder with their tasks."""
    data = DATA / request.param.name
    rollouts = rows(data / "example_rollouts.jsonl")
    written(tmp_path, rollouts, rows(data / "example.jsonl"))
    return request.param, rollouts, tmp_path


def written(folder: Path, rollouts: list[dict[str, Any]], tasks: list[dict[str, Any]]) -> None:
    write_rows(folder / "rollouts.jsonl", rollouts)
    write_rows(folder / "tasks.jsonl", tasks)


async def rescore(folder: Path, environment: Environment[Any, Any], **options: Any) -> RescoreReport:
    options = {"tasks": folder / "tasks.jsonl", **options}
    return await rescore_rollouts(environment, folder / "rollouts.jsonl", RunFiles(folder / "again.jsonl"), **options)


async def test_their_calls_have_the_recorded_outputs(site: Any) -> None:
    environment, recorded, folder = site
    found = await replay_rollouts(
        environment, folder / "rollouts.jsonl", tasks=folder / "tasks.jsonl", reads="check", lenient=True
    )
    assert [(each.task, each.rollout, each.refused, each.differences) for each in found] == [
        (index, 0, None, []) for index in range(len(recorded))
    ]
    assert sum(each.calls + each.reads for each in found) == sum(
        item["type"] == "function_call" for row in recorded for item in row["response"]["output"]
    )


async def test_they_are_rescored(site: Any) -> None:
    environment, recorded, folder = site
    report = await rescore(folder, environment)
    assert (report.refused, sorted([change[1:] for change in report.changes])) == (
        0,
        sorted((row["reward"], row["reward"]) for row in recorded),
    )
    given = {"responses_create_params", "response"}
    again = sorted(rows(folder / "again.jsonl"), key=lambda row: row["_ng_task_index"])
    for old, new in zip(recorded, again, strict=True):
        assert new["response"] == old["response"]
        assert new.items() >= {name: value for name, value in old.items() if name not in given}.items()
    (metrics,) = json.loads((folder / "again_aggregate_metrics.json").read_text())
    assert metrics["agent_ref"]["name"] == f"{environment.name}_agent"
    assert metrics["key_metrics"]["mean/reward"] == fmean(row["reward"] for row in recorded)


async def test_the_state_decides_and_not_the_record(tmp_path: Path) -> None:
    written(tmp_path, COUNTING, [{**each, "expected_count": 33} for each in COUNTS])
    report = await rescore(tmp_path, CounterEnvironment())
    assert sorted([change[1:] for change in report.changes]) == [(1.0, 0.0), (1.0, 1.0)]


async def test_another_output_than_on_record_is_refused(tmp_path: Path) -> None:
    written(tmp_path, COUNTING[:1], [{**each, "initial_count": 1} for each in COUNTS])
    report = await rescore(tmp_path, CounterEnvironment())
    assert report.rows == []
    says("\n".join(report.reasons))


async def test_without_the_fields_of_their_tasks_they_are_refused(tmp_path: Path) -> None:
    written(tmp_path, COUNTING, COUNTS[:1])
    report = await rescore(tmp_path, CounterEnvironment())
    assert (len(report.rows), report.refused) == (1, 1)


async def test_a_prompt_must_tell_which_task_it_is_of(tmp_path: Path) -> None:
    written(tmp_path, COUNTING, [*COUNTS, {**COUNTS[0], "initial_count": 1}])
    with raises(BadTask):
        await rescore(tmp_path, CounterEnvironment())


async def test_without_sessions_there_are_no_states_at_revisions(tmp_path: Path) -> None:
    written(tmp_path, COUNTING, COUNTS)
    with raises(NotFound):
        await rescore(tmp_path, CounterEnvironment(), at=-1)


class Notes(State):
    said: list[str] = []


class Noting(Environment[Notes]):
    """Its verifier reads the response alone."""

    name = "noting"

    @tool
    def note(self, state: Notes, text: str) -> str:
        """Note something."""
        state.said.append(text)
        return "noted"

    def verify(self, episode: Episode) -> float:
        return float(len(episode.response["output"]))


async def rehearses(self: Any, episode: Episode) -> float:
    return float(len((await episode.after([{"name": "note", "arguments": {"text": "x"}}])).said))


def remembers(self: Any, user: Notes) -> float:
    return float(len(user.said))


@pytest.mark.parametrize(
    ("verify", "output", "rewards"),
    [
        (Noting.verify, "noted", [5.0]),
        (Noting.verify, "another output", [5.0]),
        (lambda self, episode: float(len(episode.calls())), "noted", [2.0]),
        (lambda self, episode: float(len(episode.calls())), "another output", []),
        (rehearses, "noted", [1.0]),
        (lambda self, rng: rng.random(), "noted", []),
        (remembers, "noted", []),
    ],
)
async def test_calls_run_again_only_for_verifiers_that_read_more_than_the_response(
    tmp_path: Path, verify: Any, output: str, rewards: list[float]
) -> None:
    calls = [("note", f'{{"text":"{text}"}}', output) for text in "ab"]
    written(tmp_path, [recorded("note a and b", calls, said="Done.", reward=0.0, user="u")], [task("note a and b")])
    report = await rescore(tmp_path, type("Judged", (Noting,), {"verify": verify})(), tasks=None)
    assert [row["reward"] for row in report.rows] == rewards
    assert report.refused == 1 - len(rewards)
