"""From a run to its reason: `stateroom runs`, `show` and `compare`."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, Refuses
from tests.messages import says
from tests.rollout.bad_runs import BAD_RUNS, ODD_RUNS, make_runs
from tests.rows import rows

PILE = Path(__file__).with_name("pile.py").read_text()


def tasks(*numbers: int) -> str:
    return "".join(f'{{"responses_create_params": {{"input": "{number}"}}}}\n' for number in numbers)


@pytest.fixture
def pile(tmp_path: Path) -> tuple[str, ...]:
    """What runs an environment of one's own, with three tasks, of which the last breaks its policy down."""
    (tmp_path / "pile.py").write_text(PILE)
    (tmp_path / "tasks.jsonl").write_text(tasks(2, 1, 9))
    return "pile.py:PileEnvironment", "-m", "pile.py:Puts", "-i", "tasks.jsonl"


@pytest.fixture
def collect(stateroom: Command, pile: tuple[str, ...]) -> Any:
    def run(name: str, policy: str = "Puts", *options: Any) -> None:
        env, model = "pile.py:PileEnvironment", f"pile.py:{policy}"
        done = stateroom("run", env, "-m", model, "-i", "tasks.jsonl", "-o", f"out/{name}.jsonl", *options)
        assert done.code == 0, done.err

    return run


# What a run says of itself.


def test_a_run_describes_itself(stateroom: Command, collect: Any) -> None:
    collect("a", "Puts", "-r", 2, "--seed", 7, "--solved-threshold", 0.5)
    found = json.loads(Path("out/a_run.json").read_text())
    assert (found["environment"], found["spec"], found["model"]) == ("pile", "pile.py:PileEnvironment", "pile.py:Puts")
    assert (found["store"], found["server"], found["seed"]) == ("sqlite:///out/a_sessions.db", None, 7)
    assert (found["tasks"], found["episodes"], found["options"]["repeats"]) == (3, 6, 2)
    assert found["solved_threshold"] == 0.5
    assert found["started"] <= found["finished"]
    assert set(found["versions"]) == {"stateroom", "python"}
    assert json.loads(Path("out/a_aggregate_metrics.json").read_text())[0]["key_metrics"]["pass@1"] == 1


def test_a_run_that_goes_on_keeps_its_start(stateroom: Command, collect: Any) -> None:
    collect("a")
    path = Path("out/a_run.json")
    before = json.loads(path.read_text())
    path.write_text(json.dumps({**before, "started": "2020-01-01T00:00:00+00:00", "elapsed": 1000.0}))
    collect("a", "Puts", "--resume")
    after = json.loads(path.read_text())
    assert after["started"] == "2020-01-01T00:00:00+00:00"
    assert after["elapsed"] >= 1000
    assert (after["episodes"], after["tasks"]) == (3, 3)


def test_branches_and_rescored_runs_describe_themselves(stateroom: Command, collect: Any) -> None:
    collect("a")
    asked = ("-m", "pile.py:Lazy", "-i", "tasks.jsonl", "--solved-threshold", 0.5)
    stateroom("branch", "pile.py:PileEnvironment", *asked, "-o", "out/b.jsonl")
    assert json.loads(Path("out/b_run.json").read_text())["options"]["rule"] == "BestOf"
    assert json.loads(Path("out/b_aggregate_metrics.json").read_text())[0]["key_metrics"]["pass@1"] == 1
    again = ("reverify", "out/a.jsonl", "-e", "pile.py:PileEnvironment")
    solved = stateroom(*again, "-o", "out/c.jsonl", "--solved-threshold", 0.5, "--json").json
    assert solved["metrics"]["pass@1"] == 1
    assert stateroom(*again, "-o", "out/d.jsonl", "--json").json["metrics"]["pass@1"] == 0.5
    assert json.loads(Path("out/c_run.json").read_text())["store"] == "sqlite:///out/a_sessions.db"
    assert 'stones: "red" added at its end' in stateroom("show", "out/c", "--task", 0).out


def test_a_description_has_no_password(stateroom: Command) -> None:
    stateroom("run", "counter", "--limit", 1, "--store", "memory://me:secret@h", "-o", "x.jsonl")
    assert json.loads(Path("x_run.json").read_text())["finished"] is not None
    assert "secret" not in Path("x_run.json").read_text()


PAID = """
from stateroom.model import Answer, Model, Usage, message

class Paid(Model):
    async def answer(self, request):
        return Answer([message('hi')], Usage(1_000_000, 500_000))
"""


@pytest.mark.parametrize("more", [(), ("--engine", "processes:1"), ("--group", 2)])
def test_no_episode_starts_once_they_have_cost_enough(
    stateroom: Command, refuses: Refuses, tmp_path: Path, more: tuple[Any, ...]
) -> None:
    (tmp_path / "paid.py").write_text(PAID)
    asked = ("run", "weather", "-m", "paid.py:Paid", "--limit", 3, "-o", "x.jsonl", "--concurrency", 1, "--json", *more)
    asked = asked if "--group" in more else (*asked, "--repeats", 2)
    priced = (*asked, "--price", "in=0.15,out=0.6")
    stopped = stateroom(*priced, "--max-cost", 0.5)
    assert (stopped.code, stopped.json["not_started"], len(rows("x.jsonl"))) == (3, 4, 2)
    still = stateroom(*priced, "--max-cost", 0.9, "--resume")
    assert (still.code, still.json["not_started"]) == (3, 4)
    done = stateroom(*priced, "--max-cost", 10, "--resume")
    assert (done.code, done.json["not_started"], len(rows("x.jsonl"))) == (0, 0, 6)
    refuses(*asked, "--max-cost", 1, "--force")


def test_rows_have_times_and_costs(stateroom: Command, refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "paid.py").write_text(PAID)
    asked = ("run", "weather", "-m", "paid.py:Paid", "--limit", 4, "--price", "in=0.15,out=0.6", "-o")
    done = stateroom(*asked, "x.jsonl")
    assert "cost 1.8, 0.45 per episode" in done.out
    assert "episodes/s" in done.out
    assert "tokens/s" in done.out
    for row in rows("x.jsonl"):
        times = row["_stateroom_times"]
        assert row["cost"] == 0.45
        assert set(times) == {"wall", "model", "tool"}
        assert times["wall"] >= times["model"] + times["tool"] > 0
    metrics = json.loads(Path("x_aggregate_metrics.json").read_text())[0]["agent_metrics"]
    assert metrics["mean/cost"] == 0.45
    assert not [name for name in metrics if "times" in name]  # the metrics of a run are the same each time
    assert stateroom(*asked, "y.jsonl", "--json").json["cost"] == pytest.approx(1.8)
    assert json.loads(Path("x_run.json").read_text())["price"] == {"in": 0.15, "out": 0.6}
    refuses("run", "weather", "--price", "free")


# Show.


def test_what_is_long_is_cut_short(stateroom: Command, collect: Any) -> None:
    collect("a")
    lines = stateroom("show", "out/a.jsonl", "--task", 0).out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "           … cut; --json has all" in lines


def test_the_lowest_and_the_failed_are_chosen(stateroom: Command, refuses: Refuses, collect: Any) -> None:
    collect("a")

    def shown(*options: Any) -> list[str]:
        return [line for line in stateroom("show", "out/a", *options).out.splitlines() if line.startswith("task ")]

    low, high = "task 1, rollout 0: reward 0.5", "task 0, rollout 0: reward 1"
    assert shown("--lowest", 1) == [low]
    assert shown("--lowest", 5) == [low, high]
    assert shown("--failed") == ["task 2, rollout 0: failed"]
    assert shown() == ["task 2, rollout 0: failed", low, high]
    assert shown("--rollout", 0) == [high, low, "task 2, rollout 0: failed"]
    assert "error  ModelFailed: Puts raised RuntimeError" in stateroom("show", "out/a", "--failed").out
    for mistake in (["--task", 7], ["--failed", "--task", 0], ["--failed", "--lowest", 1]):
        refuses("show", "out/a", *mistake)


def test_episodes_for_machines(stateroom: Command, collect: Any) -> None:
    collect("a")
    [found] = stateroom("show", "out/a", "--task", 1, "--json").json
    assert (found["task"], found["rollout"], found["failed"], found["reward"]) == (1, 0, False, 0.5)
    assert (found["reward_components"], found["reason"]) == ({"height": 0.5, "style": 0.25}, "1 of 2 stones")
    assert set(found["times"]) == {"wall", "model", "tool"}
    changes = [item["changes"] for item in found["items"] if "changes" in item]
    assert changes == [['stones: "red" added at its end']]


def test_without_its_store_a_run_is_shown_without_changes(stateroom: Command, collect: Any, tmp_path: Path) -> None:
    collect("a", "Puts", "--store", "sqlite:///rooms.db")
    assert "added at its end" in stateroom("show", "out/a", "--task", 0).out  # the run knows where its store is
    Path("rooms.db").rename("moved.db")
    done = stateroom("show", "out/a", "--task", 0)
    assert (done.code, "added at its end" in done.out, '{"height":2}' in done.out) == (0, False, True)
    says(done.err)
    assert "added at its end" in stateroom("show", "out/a", "--task", 0, "--store", "sqlite:///moved.db").out
    assert stateroom("show", "out/a", "--store", "sqlite:///rooms.db").code == 2
    collect("b", "Puts", "--store", "memory://")
    says(stateroom("show", "out/b").err)


def test_a_session_that_has_gone_is_shown_by_its_row(stateroom: Command, collect: Any) -> None:
    collect("a")
    [row, *others] = rows("out/a.jsonl")
    text = "".join(json.dumps(each) + "\n" for each in ({**row, "_stateroom_session": "gone"}, *others))
    Path("out/a.jsonl").write_text(text)
    done = stateroom("show", "out/a", "--task", row["_ng_task_index"])
    says(done.err)
    assert "result  {" in done.out


@pytest.mark.parametrize(("options", "name"), [(["--group", 2], "run"), ([], "branch")])
def test_forks_are_shown_with_what_they_share(stateroom: Command, pile: Any, options: list[Any], name: str) -> None:
    more = [*options] if name == "run" else ["--rule", "best-of", "--at", 2, "--n", 2]
    stateroom(name, *pile, "-o", "out/x.jsonl", "--limit", 1, *more)
    done = stateroom("show", "out/x", "--rollout", 1)
    assert done.out.count("added at its end") == 2


def test_a_stateless_run_has_nothing_more_to_show(stateroom: Command) -> None:
    stateroom("run", "weather", "-o", "x.jsonl", "--limit", 1)
    done = stateroom("show", "x")
    assert (done.code, done.err) == (0, "")
    assert "get_weather(" in done.out


def test_a_run_is_named_by_its_file_its_stem_or_its_folder(stateroom: Command, refuses: Refuses, collect: Any) -> None:
    collect("a")
    assert stateroom("show", "out/a.jsonl").out == stateroom("show", "out/a").out == stateroom("show", "out").out
    collect("b")
    refuses("show", "out")
    refuses("show", "nope")


# Runs.


def test_runs_are_listed_the_newest_first(stateroom: Command, collect: Any) -> None:
    collect("a", "Puts", "-r", 2)
    collect("b", "Lazy")
    path = Path("out/a_run.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "started": "2020-01-01T00:00:00+00:00"}))
    newest, oldest = stateroom("runs", "out", "--json").json
    assert (newest["name"], newest["model"], newest["environment"]) == ("b", "pile.py:Lazy", "pile")
    assert (oldest["done"], oldest["episodes"], oldest["failed"], oldest["finished"]) == (4, 6, 2, True)
    assert oldest["metrics"]["mean/reward"] == 0.75
    assert "a  " not in stateroom("runs", "out", "--limit", 1).out


def test_a_bad_run_is_listed_with_what_is_wrong_and_hides_no_other(stateroom: Command, tmp_path: Path) -> None:
    make_runs(tmp_path / "all")
    found = {run["name"].removesuffix("/x"): run for run in stateroom("runs", "all", "--json").json}
    assert found.keys() == {"good", *BAD_RUNS, *ODD_RUNS}
    assert {name for name, run in found.items() if run["warnings"]} == {*BAD_RUNS}
    listed = stateroom("runs", "all")
    assert listed.code == 0
    assert "not a regular file" in listed.out


def test_a_run_is_listed_whatever_its_files_ending(stateroom: Command) -> None:
    for name in ("x.jsonl", "y.json", "z"):
        stateroom("run", "weather", "--limit", 1, "-o", f"out/{name}")
    assert {run["name"] for run in stateroom("runs", "out", "--json").json} == {"x", "y", "z"}


def test_where_there_are_no_runs_that_is_told(stateroom: Command, refuses: Refuses, tmp_path: Path) -> None:
    refuses("runs")
    (tmp_path / "empty").mkdir()
    assert stateroom("runs", "empty").out == "no runs in empty\n"


# Compare.


def test_two_runs_are_compared(stateroom: Command, collect: Any) -> None:
    collect("a")
    collect("b", "Lazy")
    assert "$ stateroom show out/a --task 0 --rollout 0" in stateroom("compare", "out/a", "out/b").out
    found = stateroom("compare", "out/b", "out/a", "--json").json
    assert (found["won"], found["lost"], found["tied"], found["difference"]) == (1, 0, 1, 0.25)
    worst, best = found["tasks"]
    assert (worst["task"], worst["outcome"], worst["divergence"]) == (1, "tied", None)
    assert (best["task"], best["divergence"]["item"], best["divergence"]["second"]["name"]) == (0, 5, "put")
    assert stateroom("compare", "out/a", "out/a").out.count("stateroom show") == 0


def test_where_two_runs_part_is_shown_however_late_it_is(stateroom: Command, collect: Any) -> None:
    policies = "\n".join(
        f"class {name}(Policy):\n    def respond(self, conversation, tools):\n"
        f"        return [function_call('put', 'c', colour='x' * 500 + '{name}')] * (not outputs_of(conversation)) "
        f"or [function_call('put', 'd', colour='red')] * ({name == 'Two'} and len(outputs_of(conversation)) == 1) "
        f"or [message('Done.')]\n"
        for name in ("One", "Two")
    )
    Path("pile.py").write_text(f"{PILE}\n{policies}")
    collect("a", "One")
    collect("b", "Two")
    told = stateroom("compare", "out/a.jsonl", "out/b.jsonl").out.replace("\n", "").replace(" ", "")
    assert 'xOne"' in told
    assert 'xTwo"' in told


def test_tasks_that_differ_are_left_out(stateroom: Command, refuses: Refuses, collect: Any) -> None:
    collect("a")
    Path("tasks.jsonl").write_text(tasks(2, 2, 9, 1))
    collect("b")
    done = stateroom("compare", "out/a", "out/b")
    assert "1 task: B won 0, lost 0, tied 1" in done.out
    says(done.err)
    Path("tasks.jsonl").write_text(tasks(1, 2))
    collect("c")
    refuses("compare", "out/a", "out/c")


def test_a_run_is_compared_with_its_rescored_one(stateroom: Command, collect: Any) -> None:
    collect("a")
    code = Path("pile.py").read_text().replace("reward = 0.5 *", "reward = 0.25 *")
    Path("stricter.py").write_text(code)
    stateroom("reverify", "out/a.jsonl", "-e", "stricter.py:PileEnvironment", "-o", "out/b.jsonl")
    done = stateroom("compare", "out/a", "out/b")
    assert "2 tasks: B won 0, lost 2, tied 0" in done.out
    assert "same conversation" in done.out  # the verifier alone has changed


# The gold actions of a task.


def test_gold_actions_may_speak_to_the_user(stateroom: Command) -> None:
    found = stateroom("run", "office", "-m", "gold", "--store", "memory://", "--limit", 24, "--json").json
    assert (found["failed"], found["metrics"]["mean/reward"]) == (0, 1.0)


def test_a_check_plays_gold_actions_without_a_reference_policy(stateroom: Command, pile: Any) -> None:
    gold = [{"name": "put", "arguments": {"colour": "blue"}}, {"name": "look"}]
    Path("gold.jsonl").write_text(json.dumps({"responses_create_params": {"input": "2"}, "gold": gold}))
    done = stateroom("check", "pile.py:PileEnvironment", "--input", "gold.jsonl")
    assert done.code == 1
    assert "it called put, look, and got 0.5: 1 of 2 stones" in " ".join(done.out.split())
