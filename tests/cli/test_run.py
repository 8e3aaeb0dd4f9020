"""`stateroom run`, `tasks` and `environments`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stateroom.gallery import CounterEnvironment
from stateroom.rollout import RunFiles, generate_tasks
from tests.cli.conftest import Command, Refuses
from tests.messages import says
from tests.rows import rows

OWN = Path(__file__).with_name("pile.py").read_text()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    (tmp_path / "tasks.jsonl").write_text('{"responses_create_params": {"input": "2"}}\n')
    return path


def test_json_is_one_object_and_nothing_else(stateroom: Any, tmp_path: Path) -> None:
    done = stateroom("run", "counter", "--model", "noisy", "--repeats", 4, "--output", "deep/er/x.jsonl", "--json")
    found = done.json
    assert done.code == 0
    assert done.out.count("\n") == 1
    counts = {"episodes", "failed", "transient", "waiting", "not_started"}
    assert set(found) == counts | {"elapsed", "tool_failures", "metrics", "files"}
    assert (found["episodes"], found["failed"]) == (32, 0)
    assert 0 < found["metrics"]["mean/reward"] == found["metrics"]["pass@1"] < found["metrics"]["pass@4"] <= 1
    assert found["files"] == {
        "rollouts": "deep/er/x.jsonl",
        "inputs": "deep/er/x_materialized_inputs.jsonl",
        "metrics": "deep/er/x_aggregate_metrics.json",
        "run": "deep/er/x_run.json",
        "sessions": "deep/er/x_sessions.db",
    }
    assert len(rows(found["files"]["rollouts"])) == 32
    assert "counter" in done.err
    assert "32/32" in done.err


def test_runs_in_the_same_second_do_not_get_in_each_others_way(stateroom: Any) -> None:
    made = [stateroom("run", "weather", "--limit", 1, "--json").json["files"] for _ in range(3)]
    assert len({files["rollouts"] for files in made}) == 3
    assert {*made[0]} == {"rollouts", "inputs", "metrics", "run"}  # what is stateless needs no store


@pytest.mark.parametrize("name", ["what?.jsonl", "50%41.jsonl", "a b#c.jsonl"])
def test_any_file_name_will_do(stateroom: Any, name: str, tmp_path: Path) -> None:
    found = stateroom("run", "counter", "--limit", 1, "--output", tmp_path / name, "--json").json
    assert found["files"]["rollouts"] == str(tmp_path / name)
    assert Path(found["files"]["sessions"]) == tmp_path / f"{name.removesuffix('.jsonl')}_sessions.db"


def test_an_environment_and_a_policy_of_ones_own(stateroom: Any, own: Path) -> None:
    for env, policy in ((f"{own}:PileEnvironment", "own.py:Puts"), ("own:PileEnvironment", "own:Puts")):
        found = stateroom("run", env, "-m", policy, "-i", "tasks.jsonl", "-r", 3, "--json").json
        assert (found["episodes"], found["failed"], found["metrics"]["mean/reward"]) == (3, 0, 1.0)


def test_without_a_model_the_gold_actions_play_where_there_is_no_reference(
    stateroom: Command, refuses: Refuses, own: Path
) -> None:
    put = {"name": "put", "arguments": {"colour": "blue"}}
    task = {"responses_create_params": {"input": "Put two."}, "gold": [put, put]}
    Path("tasks.jsonl").write_text(json.dumps(task) + "\n")
    Path("bare.jsonl").write_text(json.dumps(task) + '\n{"responses_create_params": {"input": "Put two."}}\n')
    run = ("run", f"{own}:PileEnvironment", "--input", "tasks.jsonl", "--output", "gold.jsonl", "--json")
    assert stateroom(*run).json["metrics"]["mean/reward"] == 1
    resumed = stateroom(*run, "--resume")
    assert (resumed.code, resumed.json["episodes"]) == (0, 1)
    refuses("run", f"{own}:PileEnvironment", "--input", "bare.jsonl")
    tree = stateroom("branch", *run[1:4], "--model", "gold", "--n", 2, "--json")
    assert tree.json["metrics"]["mean/reward"] == 1


def test_a_task_without_a_prompt_is_a_warning(stateroom: Any, own: Path) -> None:
    Path("bare.jsonl").write_text('{"responses_create_params": {"input": "2"}}\n{}\n')
    done = stateroom("run", "own.py:PileEnvironment", "--model", "own.py:Puts", "--input", "bare.jsonl", "--json")
    assert done.code == 0
    says(done.err.partition("\n")[0])
    done = stateroom("run", "own.py:PileEnvironment", "--model", "own.py:Puts", "--input", "tasks.jsonl", "--json")
    assert "warning" not in done.err


EXTENDED = '''
from stateroom import Environment, tool
from stateroom.gallery import Counter, CounterEnvironment


class Noted(Counter):
    notes: list[str] = []


class NotedEnvironment(CounterEnvironment, Environment[Noted]):
    """Counts, and takes notes."""

    @tool
    def note(self, state: Noted, text: str) -> None:
        """Take a note."""
        state.notes.append(text)
'''


def test_a_subclass_with_one_more_field_runs_on_the_examples_of_its_base(stateroom: Any, tmp_path: Path) -> None:
    (tmp_path / "noted.py").write_text(EXTENDED)
    done = stateroom("run", "noted.py:NotedEnvironment", "--output", "x.jsonl", "--json")
    found = done.json
    assert (found["episodes"], found["failed"], found["metrics"]["mean/reward"]) == (8, 0, 1.0)
    session = rows("x.jsonl")[0]["_stateroom_session"]
    assert "notes: []" in stateroom("sessions", "show", session, "--store", "sqlite:///x_sessions.db").out


@pytest.mark.parametrize(
    "options",
    [
        "-m own.py:Puts --resume",
        "-m own.py:Puts -o x.jsonl --resume --force",
        "-m own.py:Raises -o x.jsonl --resume --store sqlite:///elsewhere.db",
        "-m own.py:Puts -o x.jsonl --resume",
    ],
)
def test_a_run_that_cannot_go_on(stateroom: Command, refuses: Refuses, own: Path, options: str) -> None:
    here = "run own.py:PileEnvironment -m own.py:Puts -i tasks.jsonl -o x.jsonl --store sqlite:///elsewhere.db"
    assert stateroom(*here.split()).code == 0
    refuses("run", "own.py:PileEnvironment", *options.split())


@pytest.mark.parametrize("left", [None, "", "inputs only"], ids=["nothing", "an empty file", "inputs"])
def test_resume_starts_a_run_that_never_began(stateroom: Any, left: str | None) -> None:
    command = ("run", "counter", "--output", "x.jsonl", "--resume", "--json")
    if left == "inputs only":
        assert stateroom(*command).code == 0
        Path("x.jsonl").unlink()
    elif left is not None:
        Path("x.jsonl").write_text(left)
    for _ in range(2):  # a scheduler repeats it
        found = stateroom(*command).json
        assert (found["episodes"], found["failed"], found["metrics"]["mean/reward"]) == (8, 0, 1.0)
        assert len(rows("x.jsonl")) == 8


def test_force_replaces_an_earlier_run(stateroom: Command, refuses: Refuses) -> None:
    command = ("run", "counter", "--output", "x.jsonl", "--json")
    assert stateroom(*command).code == 0
    refuses(*command)
    assert stateroom(*command, "--limit", 2, "--force").json["episodes"] == 2
    assert len(rows("x.jsonl")) == len(rows("x_materialized_inputs.jsonl")) == 2
    tree = ("branch", "counter", "--output", "x.jsonl", "--limit", 1)
    assert stateroom(*tree).code == 2
    assert stateroom(*tree, "--force").code == 0
    assert stateroom(*tree, "--force").code == 0


def test_force_leaves_a_run_alone_that_is_going_on(stateroom: Command, refuses: Refuses) -> None:
    assert stateroom("run", "counter", "--output", "x.jsonl").code == 0
    with RunFiles(Path("x.jsonl")).lock():
        refuses("run", "counter", "--output", "x.jsonl", "--force")
    assert len(rows("x.jsonl")) == 8


def test_tasks_are_generated_and_run(stateroom: Any) -> None:
    made = stateroom("tasks", "counter", "--number", 30, "--seed", 9)
    assert [json.loads(line) for line in made.out.splitlines()] == generate_tasks(CounterEnvironment, 30, 9)
    Path("more.jsonl").write_text(made.out)
    found = stateroom("run", "counter", "--input", "more.jsonl", "--store", "memory://", "--json").json
    assert (found["episodes"], found["metrics"]["mean/reward"]) == (30, 1.0)
    assert "sessions" not in found["files"]


def test_environments_are_listed(stateroom: Any) -> None:
    shown = stateroom("environments").out
    assert all(len(line) <= 80 for line in shown.splitlines())
    found = stateroom("environments", "--json").json
    assert [row["name"] for row in found] == [
        *("calculator", "counter", "database", "extraction", "facts", "math", "office", "refund", "weather")
    ]
    for row in found:
        assert row["examples"] >= 8
        assert set(row["policies"]) >= {"reference", "noisy"}
        assert all(name in shown for name in (row["name"], *row["policies"]))
    assert re.search(r"^office +.+ Office +38 +destructive +275$", shown, re.MULTILINE)


ROW = '{"responses_create_params": {"input": "add 1"}, "initial_count": 1, "expected_count": 2}\n'


def written(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__"}


@pytest.mark.parametrize(
    "arguments",
    [
        "run nope",
        "tasks nope",
        "tasks own.py:PileEnvironment",
        "run nope.py:Class",
        "run nope:Class",
        "run own.py:Nope",
        "run own.py:Puts",
        "run own.py:PileAbstract -i good.jsonl",
        "run own.py:PileEnvironment -m own.py:Puts",
        "run own.py:PileEnvironment -i good.jsonl",
        "run own.py:PileEnvironment -i good.jsonl -m reference",
        "run broken.py:Class",
        "run counter --model nope",
        "run counter --model own.py:Pile",
        "run counter --model own.py:Idle",
        "run counter --model broken.py:P",
        "run counter --model gold",
        "branch counter --model gold",
        "run own.py:PileEnvironment --model gold --input gold.jsonl",
        "run counter --model nope.py:P",
        "run counter --input nope.jsonl",
        "run counter --input missing.jsonl",
        "run counter --input wrong.jsonl",
        "run counter --input torn.jsonl",
        "run counter --store nope://x",
        "run counter --store nope",
        "run counter --output good.jsonl",
        "run counter --output good.jsonl/x.jsonl",
        "run counter --output .",
        "run counter --server http://127.0.0.1:1",
        "run counter --server nope",
        "branch counter --server http://h --store memory://",
        "run --server http://127.0.0.1:1",
        "run --server http://127.0.0.1:1 -m own.py:Puts",
        "run counter --repeats 0",
        "run counter --group 3 --repeats 2",
        "run counter --seed x",
        "run",
        "nope",
    ],
)
def test_a_mistake_is_a_short_message(refuses: Refuses, own: Path, arguments: str) -> None:
    Path("good.jsonl").write_text(ROW)
    Path("missing.jsonl").write_text(ROW + '{"initial_count": 1}\n')
    Path("wrong.jsonl").write_text(ROW + ROW.replace("1,", '"x",'))
    Path("gold.jsonl").write_text('{"responses_create_params": {"input": "2"}, "gold": [{"tool": "put"}]}\n')
    Path("torn.jsonl").write_text(ROW + ROW[:40])
    Path("broken.py").write_text("def f(:\n")
    before = written(own.parent)
    refuses(*arguments.split())
    assert written(own.parent) == before


def test_without_arguments_the_commands_are_listed(stateroom: Any) -> None:
    done = stateroom()
    for command in ("demo", "run", "environments", "tasks", "sessions"):
        assert command in done.out + done.err
