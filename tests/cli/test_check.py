"""`stateroom check`: what it prints, and how it ends. Its tables are on pages of the documentation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, Refuses

OWN = '''
from stateroom import Verdict, tool
from stateroom.gallery import Counter, CounterEnvironment


class Own(CounterEnvironment):
    """Counts."""

    {}
'''


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Any]:
    """Makes a counter with something more, as `own.py:Own`."""
    return lambda more: (tmp_path / "own.py").write_text(OWN.format(more))


def test_a_warning_is_no_problem(stateroom: Command, write: Callable[[str], Any]) -> None:
    write("def verify(self, state, episode): return Verdict(1.0, metrics={'value': state.value})")
    done = stateroom("check", "own.py:Own")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "own: 1 check with a warning; played 8 of 8 tasks"


def test_one_json_object_has_it_all(stateroom: Command, write: Callable[[str], Any]) -> None:
    write("@tool(effect='read')\n    def open(self) -> object:\n        'Open it.'\n        return open")
    done = stateroom("check", "own.py:Own", "--json")
    assert done.code == 1
    report = done.json
    assert (report["environment"], report["ok"], report["tasks"], report["played"]) == ("own", False, 8, 8)
    assert [each["task"] for each in report["outcomes"]] == [*range(8)]
    assert report["outcomes"][0] == {"task": 0, "outcome": "solved", "reward": 1, "why": ""}
    found = {each["check"]: each for each in report["checks"]}
    assert found["schema"]["result"] == "ok"
    assert (found["tools"]["result"], found["tools"]["problems"]) == ("problem", 1)
    assert found["tools"]["found"][0].startswith("open() returned a builtin_function_or_method that is not JSON")


def test_an_environment_that_is_not_defined_well_is_told_of_in_the_table(
    stateroom: Command, write: Callable[[str], Any]
) -> None:
    write("@tool\n    def undo(self, state: Counter) -> None: pass")
    done = stateroom("check", "own.py:Own")
    assert done.code == 1
    said = " ".join(done.out.split())
    assert "schema problem a tool needs a docstring" in said
    assert "tasks skipped the class is invalid" in said


def test_of_many_tasks_a_sample_is_played_and_that_is_said(stateroom: Command) -> None:
    Path("many.jsonl").write_text(stateroom("tasks", "counter", "--number", 25).out)
    some = stateroom("check", "counter", "--input", "many.jsonl")
    assert (some.code, some.out.endswith("; played 20 of 25 tasks (all with --all)\n")) == (0, True)
    every = stateroom("check", "counter", "--input", "many.jsonl", "--all")
    assert (every.code, every.out.endswith("; played 25 of 25 tasks\n")) == (0, True)


def test_what_is_not_there_is_a_mistake(refuses: Refuses) -> None:
    refuses("check", "nope")
