"""What an author's code raises is seen by the author: in the summary, the files and the log."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rows import rows

AIRLINE = '''
import json
import logging
import time

from pydantic import field_validator, BaseModel

from stateroom import Environment, State, ToolError, tool
from stateroom.model import Policy, function_call, message, outputs_of

logger = logging.getLogger("airline")


class Flights(State):
    seats: int = 3


class Seat(BaseModel):
    name: str

    @field_validator("name")
    def known(cls, name):
        return {}[name]  # in Seat


class AirlineEnvironment(Environment[Flights]):
    """Cancels seats."""

    @tool
    def cancel(self, state: Flights, seat: str) -> int:
        """Cancel a seat."""
        logger.warning("cancelling %s", seat)
        logger.info("state: %s", state)
        return json.loads(seat)  # in cancel

    @tool(effect="external", timeout=0.05)
    def wait(self, state: Flights) -> None:  # in wait
        """Wait for a seat."""
        time.sleep(3)

    @tool
    def oversell(self, state: Flights) -> None:
        """Sell too many seats."""
        state.seats = "many"

    @tool
    def book(self, state: Flights, seat: Seat) -> None:
        """Book a seat."""

    @tool
    def refuse(self, state: Flights) -> None:
        """Say no."""
        raise ToolError("no")

    def verify(self, state: Flights, episode) -> float:
        if episode.task.broken == "verify":
            raise KeyError("seat")  # in verify
        return 1.0

    def reply(self, state: Flights, session) -> str | None:
        if session.task.broken == "reply":
            raise KeyError("seat")  # in reply

    def seed(self, task) -> Flights:
        if task.broken == "seed":
            raise KeyError("seat")  # in seed
        return Flights()


CALLS = [
    [function_call("cancel", "a", seat="{")],
    [function_call("wait", "b"), function_call("oversell", "c")],
    [function_call("refuse", "d"), function_call("nothing", "e"), function_call("cancel", "f")],
    [function_call("book", "g", seat={"name": "1A"})],
    [message("Done.")],
]


class Busy(Policy):
    def respond(self, conversation, tools):
        answers = [item for item in conversation if item.get("type") == "function_call"]
        return CALLS[[0, 1, 3, 6, 7].index(len(answers))]


class Idle(Policy):
    def respond(self, conversation, tools):
        if "respond" in str(conversation):
            raise KeyError("seat")  # in respond
        return [message("Done.")]
'''


@pytest.fixture
def airline(tmp_path: Path) -> dict[str, str]:
    """An environment with bugs, and the places of these in its file."""
    (tmp_path / "airline.py").write_text(AIRLINE)
    row = {"responses_create_params": {"input": "Cancel my seat."}, "broken": ""}
    (tmp_path / "tasks.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    marked = [(number, line) for number, line in enumerate(AIRLINE.splitlines(), 1) if "# in " in line]
    return {line.partition("# in ")[2]: f"airline.py:{number}" for number, line in marked}


TOLD_OF_TOOLS = ("wait did not finish within 0.05 s", "oversell failed: ")
RUN = ("run", "airline.py:AirlineEnvironment", "--input", "tasks.jsonl")


def test_tool_failures_are_told_counted_and_written(stateroom: Any, airline: dict[str, str]) -> None:
    done = stateroom(*RUN, "--model", "airline.py:Busy", "-c", 1, "--output", "x.jsonl")
    told = "8 tool failures in 2 episodes, the first: {} in cancel: JSONDecodeError: Expecting property name"
    assert done.code == 0
    assert told.format(airline["cancel"]) in done.out
    assert "tool_failures: x_tool_failures.jsonl" in done.out
    counts = {"cancel": 2, "wait": 2, "oversell": 2, "book": 2}
    assert json.loads(Path("x_aggregate_metrics.json").read_text())[0]["tool_failures"] == counts
    wrong = rows("x_tool_failures.jsonl")[:4]
    codes = {"cancel": "tool_failed", "wait": "timeout", "oversell": "tool_failed", "book": "invalid_arguments"}
    assert {row["tool"]: row["code"] for row in wrong} == codes
    cancel, wait, oversell, book = (row["cause"] for row in wrong)
    assert cancel["place"] == f"{airline['cancel']} in cancel"
    assert "return json.loads(seat)" in cancel["traceback"]
    assert "stateroom" not in cancel["traceback"].partition("json.loads")[0].replace("/test_", "")
    assert wait["place"].endswith(" in wait")
    assert wait["error"] == "TimedOut: 0.05 s"
    assert oversell["place"].endswith(" in oversell")
    assert oversell["error"].startswith("InvalidState: seats: ")
    assert (book["place"], book["error"]) == (f"{airline['Seat']} in known", "KeyError: '1A'")
    first, _ = rows("x.jsonl")
    assert {row["_stateroom_session"] for row in wrong} == {first["_stateroom_session"]}
    outputs = [json.loads(item["output"]) for item in first["response"]["output"] if "output" in item]
    assert outputs[0] == {"error": {"code": "tool_failed", "message": "cancel failed: unexpected JSONDecodeError"}}
    assert "airline.py" not in json.dumps(outputs)  # the model reads nothing of a cause


def test_a_run_that_is_resumed_counts_the_failures_before(stateroom: Any, airline: dict[str, str]) -> None:
    stateroom(*RUN, "--model", "airline.py:Busy", "--output", "x.jsonl")
    Path("x.jsonl").write_text(Path("x.jsonl").read_text().splitlines(keepends=True)[0])
    done = stateroom(*RUN, "--model", "airline.py:Busy", "--output", "x.jsonl", "--resume", "--json")
    assert done.json["tool_failures"] == {"cancel": 2, "wait": 2, "oversell": 2, "book": 2}


def test_a_tree_tells_of_tool_failures_too(stateroom: Any, airline: dict[str, str]) -> None:
    done = stateroom("branch", *RUN[1:], "--model", "airline.py:Busy", "--n", 2, "--limit", 1, "--output", "x.jsonl")
    assert f"8 tool failures in 2 episodes, the first: {airline['cancel']} in cancel: " in done.out


@pytest.mark.parametrize("broken", ["seed", "verify", "reply", "respond"])
def test_an_episode_that_fails_tells_where(stateroom: Any, airline: dict[str, str], broken: str) -> None:
    row = {"responses_create_params": {"input": broken}, "broken": broken}
    Path("tasks.jsonl").write_text(json.dumps(row))
    done = stateroom(*RUN, "--model", "airline.py:Idle", "--output", "x.jsonl", "-v")
    (failed,) = rows("x_failures.jsonl")
    place = f"{airline[broken]} in {broken}"
    assert done.code == 1
    assert f"first failure: {place}: " in done.out
    assert "KeyError: 'seat'" in done.out
    assert (failed["cause"]["place"], failed["cause"]["error"]) == (place, "KeyError: 'seat'")
    assert 'raise KeyError("seat")' in failed["cause"]["traceback"]
    assert 'raise KeyError("seat")' in done.err


@pytest.mark.parametrize(
    ("options", "shown", "hidden"),
    [
        ([], ["WARNING airline: cancelling {"], ["INFO", "stateroom.", "Traceback"]),  # nothing of the framework
        (["-v"], ["INFO airline: state: ", "return json.loads(seat)", *TOLD_OF_TOOLS], []),
        (["--log-level", "ERROR"], [], ["WARNING"]),
        (["--log-level", "warning"], ["WARNING stateroom.session.invocation: cancel raised"], ["INFO"]),
    ],
)
def test_the_terminal_shows_what_is_logged_from_a_level_on(
    stateroom: Any, airline: dict[str, str], options: list[str], shown: list[str], hidden: list[str]
) -> None:
    told = stateroom(*RUN, "--model", "airline.py:Busy", "--limit", 1, *options).err
    assert [text for text in shown if text not in told] == [text for text in hidden if text in told] == []
