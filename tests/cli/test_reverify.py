"""`stateroom reverify`."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Refuses
from tests.messages import says
from tests.rows import rows, write_rows

CLOSER = '''
from stateroom import Verdict
from stateroom.gallery import CounterEnvironment


class Closer(CounterEnvironment):
    """Partial credit."""

    name = "counter"

    def verify(self, state, episode):
        off = abs(state.value - episode.task.expected_count)
        return Verdict(1 / (1 + off), components={"close": 1 / (1 + off)}, metrics={"steps": len(episode.calls())})
'''


@pytest.fixture
def rollouts(stateroom: Any, tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(CLOSER)
    assert stateroom("run", "counter", "--model", "noisy", "--repeats", 4, "--output", "out.jsonl").code == 0
    return tmp_path / "out.jsonl"


def test_rewards_change_with_the_verifier(stateroom: Any, rollouts: Path) -> None:
    before = [row["reward"] for row in rows(rollouts)]
    outcome = stateroom("reverify", rollouts, "--env", "own.py:Closer", "--output", "new.jsonl", "--json")
    assert outcome.code == 0
    found = outcome.json
    new = rows(rollouts.parent / "new.jsonl")
    wrong = before.count(0.0)
    assert (found["episodes"], found["refused"], found["resumed"]) == (32, 0, 0)
    means = {"before": sum(before) / 32, "after": sum(row["reward"] for row in new) / 32}
    assert found["rewards"] == {"up": wrong, "down": 0, "same": 32 - wrong, "new": 0, **means}
    assert found["metrics"]["mean/reward_components/close"] == found["rewards"]["after"]
    assert found["files"].keys() == {"rollouts", "metrics", "run"}
    assert json.loads(Path(found["files"]["metrics"]).read_text())[0]["agent_metrics"] == found["metrics"]


def test_the_arguments_of_a_run_are_those_of_its_rescoring(stateroom: Any, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CLOSER)
    made = ("--env-arg", "strict=true")
    assert stateroom("run", "counter", *made, "--model", "noisy", "--output", "strict.jsonl").code == 0
    assert json.loads(Path("strict_run.json").read_text())["env_args"] == {"strict": True}
    same = stateroom("reverify", "strict.jsonl", "--env", "counter", "-o", "same.jsonl", "--json").json
    assert (same["changed_arguments"], same["rewards"]["same"]) == ({}, 8)
    again = ("reverify", "strict.jsonl", "--env", "counter", "--env-arg", "strict=false", "-o", "lax.jsonl")
    assert stateroom(*again, "--json").json["changed_arguments"] == {"strict": [True, False]}
    assert json.loads(Path("lax_run.json").read_text())["env_args"] == {"strict": False}


def test_a_table_tells_what_has_changed(stateroom: Any, rollouts: Path) -> None:
    outcome = stateroom("reverify", rollouts, "-e", "own.py:Closer", "-o", "new.jsonl")
    assert "32 episodes of counter rescored" in outcome.out
    assert "Largest changes" in outcome.out
    outcome = stateroom("reverify", rollouts, "-e", "own.py:Closer", "-o", "new.jsonl")
    assert "rescored, 32 of them before" in outcome.out
    outcome = stateroom("reverify", rollouts, "-e", "counter", "-o", "same.jsonl")
    assert "Largest changes" not in outcome.out


def test_another_store_and_another_revision_can_be_named(stateroom: Any, refuses: Refuses, rollouts: Path) -> None:
    moved = rollouts.rename(rollouts.parent / "moved.jsonl")
    refuses("reverify", moved, "-e", "counter", "-o", "new.jsonl")
    store = "sqlite:///out_sessions.db"
    assert stateroom("reverify", moved, "-e", "counter", "-o", "new.jsonl", "--store", store, "--at", 1).code == 0
    assert {row["reward"] for row in rows(Path("new.jsonl"))} == {0.0}


def test_what_is_refused_is_told_and_counted(stateroom: Any, rollouts: Path) -> None:
    changed = rollouts.parent / "out.changed.jsonl"
    first, second, *others = rows(rollouts)
    write_rows(changed, [{**first, "_stateroom_session": "gone"}, {**second, "_stateroom_session": None}, *others])
    store = "sqlite:///out_sessions.db"
    outcome = stateroom("reverify", changed, "-e", "counter", "-o", "new.jsonl", "--store", store)
    assert outcome.code == 0
    says(outcome.out)
    assert len(rows(Path("new_failures.jsonl"))) == 2


def test_mistakes_are_messages(refuses: Refuses, rollouts: Path) -> None:
    for arguments in (
        ("nowhere.jsonl", "-e", "counter", "-o", "new.jsonl"),
        (rollouts, "-e", "counter", "-o", rollouts),
        (rollouts, "-e", "nothing", "-o", "new.jsonl"),
        (rollouts, "-e", "weather", "-o", "new.jsonl", "--at", 1),
    ):
        refuses("reverify", *arguments)
    assert not Path("new.jsonl").exists()


def test_rollouts_of_others_take_the_fields_of_their_tasks_from_a_file(stateroom: Any, rollouts: Path) -> None:
    """They name no session, and have neither indices nor the fields of their tasks."""
    kept = ("responses_create_params", "response", "reward")
    write_rows(Path("theirs.jsonl"), [{name: row[name] for name in kept} for row in rows(rollouts)])
    tasks = {row["_ng_task_index"]: row for row in rows(Path("out_materialized_inputs.jsonl"))}
    write_rows(Path("tasks.jsonl"), tasks.values())
    asked = ("theirs.jsonl", "--env", "counter", "-i", "tasks.jsonl", "--json")
    rescored = stateroom("reverify", *asked, "-o", "new.jsonl").json
    assert (rescored["episodes"], rescored["refused"], rescored["rewards"]["same"]) == (32, 0, 32)
    replayed = stateroom("replay", *asked, "--reads", "check").json
    assert (replayed["replayed"], replayed["refused"], replayed["differences"]) == (32, 0, 0)


def test_a_stateless_environment_needs_no_store(stateroom: Any, tmp_path: Path) -> None:
    assert stateroom("run", "weather", "--output", "out.jsonl").code == 0
    outcome = stateroom("reverify", "out.jsonl", "-e", "weather", "-o", "new.jsonl", "--json")
    assert outcome.json["rewards"]["same"] == 8
