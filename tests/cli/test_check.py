"""`stateroom check`: what it prints, and how it ends."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Refuses

SOUND = '''
"""A door."""

from random import Random

from stateroom import Environment, State, tool
from stateroom.model import Policy, function_call, message, outputs_of


class Opens(Policy):
    def respond(self, conversation, tools):
        return [message("Open.")] if outputs_of(conversation) else [function_call("open", "call_0")]


class Door(State):
    open: bool = False


class DoorEnvironment(Environment[Door]):
    """Open a door."""

    policies = {"reference": Opens}

    @tool
    def open(self, state: Door) -> bool:
        """Open it."""
        state.open = True
        return state.open

    def verify(self, state: Door) -> float:
        return float(state.open)

    @classmethod
    def generate(cls, rng: Random):
        return {"responses_create_params": {"input": f"Open door {rng.randint(1, 10**9)}."}}
'''


@pytest.fixture
def door(tmp_path: Path) -> Path:
    path = tmp_path / "door.py"
    path.write_text(SOUND)
    return path


def test_a_warning_is_no_problem(stateroom: Command, door: Path) -> None:
    by_metrics = SOUND.replace("float(state.open)", 'Verdict(1.0, metrics={"open": float(state.open)})')
    door.write_text(by_metrics.replace("import Environment, State", "import Environment, State, Verdict"))
    done = stateroom("check", "door.py:DoorEnvironment")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "door: 1 check with a warning; played 20 of 20 tasks"


def test_one_json_object_has_it_all(stateroom: Command, door: Path) -> None:
    door.write_text(SOUND.replace("return state.open", "return open"))
    done = stateroom("check", "door.py:DoorEnvironment", "--json")
    assert done.code == 1
    report = done.json
    assert (report["environment"], report["ok"], report["tasks"], report["played"]) == ("door", False, 20, 20)
    assert [each["task"] for each in report["outcomes"]] == [*range(20)]
    assert report["outcomes"][0] == {"task": 0, "outcome": "unsolved", "reward": 0, "why": ""}
    found = {each["check"]: each for each in report["checks"]}
    assert found["schema"]["result"] == "ok"
    assert (found["tools"]["result"], found["tools"]["problems"]) == ("problem", 1)
    assert found["tools"]["found"][0].startswith("open() returned a builtin_function_or_method that is not JSON")


def test_an_environment_that_is_not_defined_well_is_told_of_in_the_table(stateroom: Command, door: Path) -> None:
    door.write_text(SOUND.replace('        """Open it."""\n', ""))
    done = stateroom("check", "door.py:DoorEnvironment")
    assert done.code == 1
    said = " ".join(done.out.split())
    assert "schema problem a tool needs a docstring" in said
    assert "tasks skipped it is not defined" in said


def test_of_many_tasks_a_sample_is_played_and_that_is_said(stateroom: Command, door: Path, tmp_path: Path) -> None:
    rows = [{"responses_create_params": {"input": f"Open door {number}."}} for number in range(25)]
    (tmp_path / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    some = stateroom("check", "door.py:DoorEnvironment", "--input", "many.jsonl")
    assert some.out.splitlines()[-1] == "door: no problem; played 20 of 25 tasks; --all plays each"
    every = stateroom("check", "door.py:DoorEnvironment", "--input", "many.jsonl", "--all")
    assert every.out.splitlines()[-1] == "door: no problem; played 25 of 25 tasks"


def test_what_is_not_there_is_a_mistake(refuses: Refuses) -> None:
    refuses("check", "nope")
