"""`stateroom.run`, `serve` and `open`: what a person does in a notebook."""

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stateroom
from stateroom.errors import (
    BadTask,
    CannotWrite,
    InvalidArguments,
    InvalidEnvironment,
    InvalidModel,
    InvalidOption,
    NotFound,
    StateroomError,
)
from stateroom.gallery import CounterEnvironment
from stateroom.model import Item, Policy, function_call, message, outputs_of
from tests.messages import raises
from tests.patience import PATIENCE
from tests.rows import comparable

TASK = {"responses_create_params": {"input": "Add 3."}, "initial_count": 3, "expected_count": 6}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Adds(Policy):
    """Adds three."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if outputs_of(conversation):
            return [message("<b>Done</b>")]
        return [function_call("increment_counter", "c", count=3)]


class Breaks(Adds):
    """Never answers."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        raise RuntimeError("<broken>")


def test_a_run_gives_the_way_to_each_session() -> None:
    result = stateroom.run("counter", model="noisy", repeats=4, output=Path("a.jsonl"))
    assert [(each.task, each.rollout) for each in result.episodes] == [(t, r) for t in range(8) for r in range(4)]
    solved = next(each for each in result.episodes if each.reward == 1)
    assert solved.conversation[0]["role"] == "user"
    assert solved.conversation[1:] == solved.response["output"]
    fork = solved.session.fork(at=1)
    assert fork.call("increment_counter", {"count": 1}).ok
    assert fork.state.value == solved.row["initial_count"] + 1
    assert solved.session.state.value == solved.row["expected_count"]


def test_it_writes_what_the_command_writes() -> None:
    stateroom.run("counter", model="noisy", repeats=2, limit=3, seed=5, output=Path("python.jsonl"))
    words = "run counter --model noisy --repeats 2 --limit 3 --seed 5 --output command.jsonl"
    subprocess.run([sys.executable, "-m", "stateroom.cli", *words.split()], check=True, timeout=PATIENCE)
    for ending in (".jsonl", "_materialized_inputs.jsonl", "_aggregate_metrics.json", "_sessions.db"):
        assert Path(f"python{ending}").exists() == Path(f"command{ending}").exists() is True
    assert comparable("python.jsonl") == comparable("command.jsonl")


def test_environments_and_models_may_be_objects_and_tasks_a_list() -> None:
    for environment in (CounterEnvironment, CounterEnvironment()):
        for model in (Adds, Adds(0), "tests.test_notebook:Adds"):
            result = stateroom.run(environment, model=model, input=[TASK], store="memory://")
            assert result.metrics["mean/reward"] == 1
    with raises(NotFound):
        result.episodes[0].log()
    result = stateroom.run("weather", limit=1)
    with raises(NotFound):
        _ = result.episodes[0].session


def test_failures_are_rows() -> None:
    result = stateroom.run("counter", model=Breaks, limit=2)
    assert [row["_ng_task_index"] for row in result.failures] == [0, 1]
    assert "<broken>" in result.failures[0]["error"]
    assert result.episodes == []
    assert "2 failed" in result._repr_html_()
    assert "2 failed" in repr(result)


async def test_runs_side_by_side_have_files_of_their_own() -> None:
    results = await asyncio.gather(*(stateroom.arun("counter", limit=1) for _ in range(8)))
    assert len({result.files.rollouts for result in results}) == 8


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"repeats": 0}, InvalidArguments, "repeats: "),
        ({"resume": True}, InvalidArguments, "resume: "),
        ({"resume": True, "force": True, "output": "a.jsonl"}, InvalidArguments, "force: "),
        ({"group": 2, "repeats": 2}, InvalidArguments, "cannot be combined with repeats"),
        ({"input": [{"initial_count": 1}]}, BadTask, "task 0: expected_count: Field required"),
        ({"input": []}, BadTask, "the list of tasks is empty"),
        ({"input": [3]}, BadTask, "task 0: a task row must be an object"),
        ({"input": "none.jsonl"}, NotFound, "the task file none.jsonl does not exist"),
        ({"model": "nobody"}, NotFound, "unknown model 'nobody'"),
        ({"model": 3}, InvalidModel, "3 is not a subclass"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(options: Any, error: type[StateroomError], told: str) -> None:
    with pytest.raises(error, match=told):
        stateroom.run("counter", **options)
    with raises(InvalidEnvironment):
        stateroom.run(3)  # type: ignore[arg-type]
    assert list(Path().iterdir()) == []


def test_existing_output_is_replaced_only_with_force() -> None:
    stateroom.run("counter", output=Path("a.jsonl"))
    with raises(CannotWrite):
        stateroom.run("counter", output=Path("a.jsonl"), limit=1)
    result = stateroom.run("counter", output=Path("a.jsonl"), limit=1, force=True)
    assert len(result.episodes) == 1
    with stateroom.open("sqlite:///a_sessions.db") as rooms:
        assert len(rooms.heads()) == 1  # the old sessions are gone too


INTERRUPTED = """
import stateroom
from stateroom.model import Answer, Model, message

class Slow(Model):
    async def answer(self, request):
        import asyncio, pathlib
        if not pathlib.Path("go").exists():
            print("waiting", flush=True)
            await asyncio.sleep(1000)
        return Answer([message("Done.")])

result = stateroom.run("counter", model=Slow, concurrency=2, output="a.jsonl", resume=True)
print(len(result.episodes), result.report.failed)
"""


def test_ctrl_c_leaves_a_run_that_resume_continues(folder: Path) -> None:
    Path("program.py").write_text(INTERRUPTED)
    program = [sys.executable, "program.py"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "waiting\n"
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=PATIENCE)
    assert running.returncode != 0
    assert told.strip().splitlines()[-2].startswith("KeyboardInterrupt")
    assert told.strip().endswith("are in a.jsonl; continue with the same output and resume=True")
    Path("go").touch()
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout == "8 0\n"


def test_a_data_frame_has_a_line_for_each_episode() -> None:
    frame = stateroom.run("counter", model="noisy", repeats=2).to_dataframe()
    assert list(frame.columns[:2]) == ["task", "rollout"]
    assert {"session", "reward", "tool_calls", "expected_count"} <= {*frame.columns}
    assert len(frame) == 16
    assert not {"response", "responses_create_params"} & {*frame.columns}
    row = {"responses_create_params": {"input": "Rain?"}, "city": "Oslo", "task": "weather", "session": "s"}
    clash = stateroom.run("weather", input=[row, row]).to_dataframe()
    assert [*clash["task"]] == [0, 1]
    assert [*clash["row/task"]] == ["weather", "weather"]
    assert {*clash["row/session"]} == {"s"}
    parts = stateroom.run("extraction", limit=1).to_dataframe()
    assert len(parts) == 1


def test_a_plot_shows_rewards_by_task_and_pass_at_k() -> None:
    figure = stateroom.run("counter", model="noisy", repeats=4).plot()
    by_task, by_k = figure.axes
    assert [bar.get_x() + bar.get_width() / 2 for bar in by_task.patches] == pytest.approx(list(range(8)))
    assert list(by_k.lines[0].get_xdata()) == [1, 2, 4]
    assert not stateroom.run("counter", model=Breaks, limit=1).plot().axes[0].lines


@pytest.mark.parametrize(("package", "method"), [("pandas", "to_dataframe"), ("matplotlib.pyplot", "plot")])
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, package: str, method: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = stateroom.run("counter", limit=1)
    with raises(NotFound):
        getattr(result, method)()


def test_tables_are_escaped() -> None:
    class Odd(CounterEnvironment):
        name = "<i>odd</i>"

    result = stateroom.run(Odd, model=Adds, input=[TASK])
    assert "&lt;i&gt;odd&lt;/i&gt;" in result._repr_html_()
    assert "<i>" not in result._repr_html_()
    shown = result.episodes[0].log()._repr_html_()
    assert "&lt;b&gt;Done" in shown
    assert "<b>" not in shown
    assert "increment_counter" in shown


CELLS = [
    "import stateroom",
    "result = stateroom.run('counter', model='noisy', repeats=4)\nresult",
    "result.plot()",
    "result.episodes[0].log()",
]


def test_a_notebook_goes_from_an_import_to_a_plot() -> None:
    import nbformat  # noqa: PLC0415 - slow
    from nbclient import NotebookClient  # noqa: PLC0415 - slow

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(
        notebook, timeout=int(PATIENCE), kernel_name="python3", resources={"metadata": {"path": "."}}
    ).execute()
    _, ran, plotted, log = ([output.get("data", {}) for output in cell.outputs] for cell in notebook.cells)
    assert "<progress" in ran[0]["text/html"]
    assert "32/32" in ran[0]["text/plain"]
    assert "pass@4" in ran[-1]["text/html"]
    assert [*plotted[0]].count("image/png") == 1 == len(plotted)
    assert log[0]["text/html"].startswith("<table>")


def test_sessions_without_async() -> None:
    with stateroom.open("sqlite:///rooms.db", "counter") as rooms:
        session = rooms.seed(TASK)
        assert session.call("increment_counter", {"count": 1}, call_id="c").output == {"success": True}
        twins = session.fork(n=2)
        with session.lease(seconds=5):
            session.call("increment_counter", {"count": 2})
        assert (session.state.value, [twin.state.value for twin in twins]) == (6, [4, 4])
        assert [entry.kind for entry in session.log(kinds={"call"})] == ["call", "call"]
        assert "increment_counter" in session.log()._repr_html_()
        assert session.diff(1) == session.diff(1, 3)
        assert session.agent.status.phase == "idle"
        session.agent.cancel("enough")
        assert session.agent.status.phase != "idle"
        assert session.verify().reward == 1
        assert "verify" in dir(session)
        assert repr(session).startswith("<Session ")
        assert session.call.__doc__
        with raises(StateroomError):
            session.call("increment_counter", {"count": 1})
    with stateroom.open("sqlite:///rooms.db") as rooms:
        assert {head.id for head in rooms.heads()} == {session.id, *(twin.id for twin in twins)}
        assert rooms.open(session.id).state.value == 6
        with raises(NotFound):
            rooms.seed(TASK)
    rooms.close()


def test_a_session_of_an_environment_that_is_not_registered_needs_its_class() -> None:
    class Own(CounterEnvironment):
        """Not registered."""

    with stateroom.open("sqlite:///rooms.db", Own) as rooms:
        name = rooms.seed(TASK).id
    with stateroom.open("sqlite:///rooms.db") as rooms, raises(NotFound):
        rooms.open(name)
    with stateroom.open("sqlite:///rooms.db", Own()) as rooms:
        assert rooms.open(name).state.value == 3


def test_sessions_may_be_closed_when_the_interpreter_ends() -> None:
    """Trainers do so; from then on no thread can start."""
    program = (
        "import stateroom, threading\n"
        "rooms = stateroom.open('sqlite:///rooms.db', 'counter')\n"
        f"rooms.seed({TASK})\n"
        "threading._register_atexit(rooms.close)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_store_that_cannot_be_opened_leaves_no_thread() -> None:
    import threading  # noqa: PLC0415

    with pytest.raises(StateroomError):
        stateroom.open("nonsense://x", ttl=5)
    with stateroom.open("memory://"):
        assert (before := [each.name for each in threading.enumerate()].count("stateroom-loop")) >= 1
    with pytest.raises(StateroomError):
        stateroom.open("nonsense://x")
    assert [each.name for each in threading.enumerate()].count("stateroom-loop") < before


SERVED = """
import asyncio
import time
import stateroom
from stateroom.gallery import CounterEnvironment

class Mine(CounterEnvironment):
    name = "mine"

    def __init__(self, step):
        self.step = step

    def verify(self, state, episode):
        return float(self.step)

from stateroom.server import process
process.LINGER_SECONDS = 0.0  # a server that ended the process would do it now
{how}
print("over", flush=True)
time.sleep(0.3)
raise SystemExit(3)
"""


@pytest.fixture(params=["plain", "beside a loop"])
def program(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    call = 'stateroom.serve(Mine(7), port=0, store="memory://")'
    how = call if request.param == "plain" else f"async def main():\n    {call}\nasyncio.run(main())"
    Path("program.py").write_text(SERVED.format(how=how))
    command = [sys.executable, "-u", "program.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        yield running
        running.kill()


def test_an_instance_is_served_until_ctrl_c_and_the_program_goes_on(program: subprocess.Popen[str]) -> None:
    assert program.stdout is not None
    url = program.stdout.readline().split()[-1]
    program.stdout.readline()
    row = {**TASK, "responses_create_params": {}}
    headers = {"Content-Type": "application/json"}
    seed = urllib.request.Request(f"{url}/seed_session", json.dumps(row).encode(), headers)
    with urllib.request.urlopen(seed) as reply:
        cookie = reply.headers["Set-Cookie"].partition(";")[0]
    ended = json.dumps({**row, "response": {}}).encode()
    verify = urllib.request.Request(f"{url}/verify", ended, {**headers, "Cookie": cookie})
    with urllib.request.urlopen(verify) as reply:
        assert json.load(reply)["reward"] == 7
    program.send_signal(signal.SIGINT)
    assert program.stdout.readline() == "over\n"
    assert program.wait(PATIENCE) == 3


def test_several_workers_make_their_own_instances() -> None:
    with pytest.raises(InvalidOption) as refused:
        stateroom.serve(CounterEnvironment(), workers=2)
    assert refused.value.option == "environments"


def test_a_task_without_a_prompt_is_a_warning() -> None:
    bare = {name: value for name, value in TASK.items() if name != "responses_create_params"}
    with pytest.warns(UserWarning, match=r"1 task has no prompt \(first: task 0\); add one in"):
        stateroom.run("counter", model=Adds, input=[bare])
