"""Our runner on our server: the same files as in process, whatever happens on the way."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stateroom import Environment, State, ToolError, tool
from stateroom.errors import JudgeFailed
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment, WeatherEnvironment
from stateroom.model import Item, Policy, function_call, message, outputs_of
from stateroom.pauses import Pauses
from stateroom.rollout import client, generate_tasks, run
from stateroom.session import Clock, SessionInfo
from tests.messages import says
from tests.rows import rows, write_rows
from tests.server.conftest import until
from tests.server.here_and_there import lines, plan, run_in_both, run_to_failure
from tests.servers.proxy import FAULTS, Fault, Proxy

COUNTS = generate_tasks(CounterEnvironment, 8, seed=1)
REFERENCE, NOISY = (CounterEnvironment.policies[name] for name in ("reference", "noisy"))


@pytest.mark.parametrize("policy", ["reference", "noisy"])
@pytest.mark.parametrize("kind", [CounterEnvironment, ExtractionEnvironment, WeatherEnvironment])
async def test_here_and_there_give_the_same_files_and_sessions_that_are_closed(
    serve: Any, tmp_path: Path, kind: type[Environment[Any, Any]], policy: str, store_url: str
) -> None:
    served = await serve(kind(), store=store_url)
    tasks = generate_tasks(kind, 8, seed=1)
    report, there = await run_in_both(tmp_path, served.url, kind(), kind.policies[policy], tasks=tasks)
    assert report.episodes == len(report.rows) == 24
    assert policy == "noisy" or report.metrics["agent_metrics"]["mean/reward"] == 1.0
    heads = await served.services.store.heads(limit=100)
    names = {row["_stateroom_session"] for row in rows(there.files.rollouts)}
    assert {(head.id, head.closed) for head in heads} == (
        {(name, True) for name in names} if kind is not WeatherEnvironment else set()
    )


class Dice(State):
    seen: list[str] = []


class DiceEnvironment(Environment[Dice]):
    """All the luck that there is."""

    def seed(self, rng: Random, clock: Clock, new_id: Callable[[], str]) -> Dice:
        return Dice(seen=[f"{rng.random()} {clock.now()} {new_id()}"])

    @tool
    def roll(self, state: Dice, session: SessionInfo, rng: Random, clock: Clock, new_id: Callable[[], str]) -> Any:
        """Try one's luck."""
        state.seen.append(f"{rng.random()} {clock.now()} {new_id()} {session.call_id} {session.step}")
        return state.seen

    def instructions(self, state: Dice, session: SessionInfo, rng: Random, clock: Clock) -> str:
        return f"You have rolled {len(state.seen)} times, {session.step} of them yourself: {rng.random()} {clock.now()}"

    def verify(self, state: Dice, rng: Random) -> float:
        return rng.random()


class OracleEnvironment(Environment):
    """Luck without a state."""

    @tool
    def roll(self, rng: Random, clock: Clock, new_id: Callable[[], str]) -> str:
        """Try one's luck."""
        return f"{rng.random()} {clock.now()} {new_id()}"

    def instructions(self, rng: Random, clock: Clock) -> str:
        return f"{rng.random()} {clock.now()}"

    def verify(self) -> float:
        return 1.0


class Rolls(Policy):
    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if len(outputs_of(conversation)) == 6:
            return [message("done")]
        return [function_call("roll", "again"), function_call("roll", "again")]


@pytest.mark.parametrize("kind", [DiceEnvironment, OracleEnvironment])
async def test_luck_and_time_are_the_same(serve: Any, tmp_path: Path, kind: type[Environment[Any, Any]]) -> None:
    served = await serve(kind())
    report, there = await run_in_both(tmp_path, served.url, kind(), Rolls, tasks=[{}, {}], seed=5)
    assert report.episodes == 6
    outputs = [text for row in rows(there.files.rollouts) for text in map(str, outputs_of(row["response"]["output"]))]
    assert len(set(outputs)) == len(outputs) == 36
    assert len({row["response"]["instructions"] for row in rows(there.files.rollouts)}) == 6


class Waits(Policy):
    """Makes a call, and then thinks for ever."""

    async def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if outputs_of(conversation):
            await asyncio.Event().wait()
        return [function_call("roll", "c")]


@pytest.mark.parametrize(("policy", "limits"), [(Waits, {"deadline": 0.3}), (Rolls, {"max_steps": 2})])
async def test_limits_are_the_same(serve: Any, tmp_path: Path, policy: type[Policy], limits: dict[str, Any]) -> None:
    served = await serve(DiceEnvironment())
    report, _ = await run_in_both(tmp_path, served.url, DiceEnvironment(), policy, tasks=[{}], **limits)
    assert [row["truncated"] for row in report.rows] == [1, 1, 1]


async def test_rollouts_can_be_run_again(serve: Any, tmp_path: Path) -> None:
    served = await serve(ExtractionEnvironment())
    tasks = generate_tasks(ExtractionEnvironment, 4, seed=1)
    policies = ExtractionEnvironment.policies
    first = plan(tmp_path, "first", ExtractionEnvironment(), policies["noisy"], tasks=tasks, server=served.url)
    await run(first)
    again = {"tasks": rows(first.files.rollouts), "repeats": 1}
    here = plan(tmp_path, "here", ExtractionEnvironment(), policies["reference"], **again)
    there = plan(tmp_path, "there", ExtractionEnvironment(), policies["reference"], server=served.url, **again)
    await run(here)
    await run(there)
    assert lines(there.files.rollouts) == lines(here.files.rollouts)


async def test_a_row_cannot_make_episodes_share_a_session(served: Any, tmp_path: Path) -> None:
    tasks = [{**task, "resources_session_id": "ours"} for task in COUNTS]
    report, _ = await run_in_both(tmp_path, served.url, CounterEnvironment(), REFERENCE, tasks=tasks)
    assert report.metrics["agent_metrics"]["mean/reward"] == 1.0


async def test_one_of_several_environments(serve: Any, tmp_path: Path) -> None:
    served = await serve(CounterEnvironment(), WeatherEnvironment())
    await run_in_both(tmp_path, f"{served.url}/counter/", CounterEnvironment(), REFERENCE, tasks=COUNTS)
    lost = plan(tmp_path, "lost", CounterEnvironment(), REFERENCE, tasks=COUNTS, server=served.url)
    report = await run(lost)
    assert report.failed == 24
    says(str(report.first_error))


class Mishaps(State):
    done: list[str] = []


class MishapEnvironment(Environment[Mishaps]):
    """Tools that fail, each in its own way."""

    @tool
    def work(self, state: Mishaps, text: Any) -> Any:
        """Do something."""
        state.done.append(repr(text))
        return {"text": text, "é": "\ud83d", "all": state.done}

    @tool
    def refuse(self, state: Mishaps, why: str) -> None:
        """Say no."""
        state.done.append("refuse")
        raise ToolError(why)

    @tool
    def crash(self, state: Mishaps) -> None:
        """Break."""
        state.done.append("crash")
        raise ZeroDivisionError("a secret")

    @tool
    def mumble(self, state: Mishaps) -> Any:
        """Return what is not JSON."""
        return object()

    @tool(timeout=0.02)
    async def dawdle(self, state: Mishaps) -> None:
        """Take too long."""
        await asyncio.Event().wait()

    @tool(effect="read")
    def peek(self, state: Mishaps) -> None:
        """Change what may only be read."""
        state.done.append("peek")

    @tool(effect="external")
    def reach(self, state: Mishaps) -> None:
        """Fail outside."""
        raise OSError("outside")

    def verify(self, state: Mishaps) -> float:
        return float(len(state.done))


def raw_call(name: str, arguments: Any = "{}") -> Item:
    return {"type": "function_call", "call_id": "c", "name": name, "arguments": arguments}


MISHAPS = [
    raw_call("work", '{"text": "fine"}'),
    raw_call("work", '{"text": "\\ud800 é \\u0000"}'),
    raw_call("work", '{"text": [1e400, -1e400, NaN, 123456789012345678901234567890, 1.0, 1e16, null]}'),
    raw_call("work", '{"text": 1, "text": 2}'),
    raw_call("work", '{"text": ' + "[" * 400 + "]" * 400 + "}"),
    raw_call("work"),
    raw_call("work", ""),
    raw_call("work", None),
    raw_call("work", '{"text": 1, "more": 2}'),
    raw_call("work", '{"text": '),
    raw_call("work", "[1]"),
    raw_call("refuse", '{"why": "not <today> é"}'),
    raw_call("refuse", '{"why": 5}'),
    raw_call("refuse", '{"why": ""}'),
    raw_call("crash"),
    raw_call("mumble"),
    raw_call("dawdle"),
    raw_call("peek"),
    raw_call("reach"),
    *map(raw_call, ("nothing", "verify", "seed_session", "close_session", "admin", "openapi.json", "health", "mcp")),
    raw_call("peek"),  # or it would be ended for so many calls that cannot be tried
    *map(raw_call, ("", "/", "..", "../health", "work/", "work?a=b", "a b", "wörk", "work\n")),
    raw_call("peek"),
    raw_call("\ud800"),
]


class Stumbles(Policy):
    """Makes all the calls, one at a time."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        done = len(outputs_of(conversation))
        return [dict(MISHAPS[done])] if done < len(MISHAPS) else [message("done")]


async def test_a_call_that_fails_reads_the_same(serve: Any, tmp_path: Path) -> None:
    served = await serve(MishapEnvironment())
    report, there = await run_in_both(
        tmp_path, served.url, MishapEnvironment(), Stumbles, tasks=[{}], repeats=2, max_steps=len(MISHAPS) + 1
    )
    assert [row["reward"] for row in report.rows] == [4.0, 4.0]
    outputs = outputs_of(rows(there.files.rollouts)[0]["response"]["output"])
    codes = [output["error"]["code"] for output in outputs if "error" in output]
    assert {*codes} == {"invalid_arguments", "tool_error", "tool_failed", "timeout", "unknown_tool"}
    assert codes.count("unknown_tool") == 18
    assert report.tool_failures.counts["crash"] == 2
    assert report.tool_failures.first == "crash: tool_failed"  # the server alone knows the place


@pytest.mark.parametrize(
    ("what", "code"),
    [("close", "410 session_closed"), ("verify", "409 session_sealed"), ("delete", "410 unknown_session")],
)
async def test_a_session_that_is_gone_ends_the_episode(served: Any, tmp_path: Path, what: str, code: str) -> None:

    async def happens() -> None:
        sessions = served.services.environments["counter"].sessions
        (head,) = await sessions.store.heads(limit=2)
        if what == "delete":
            sessions.forget(head.id)
            await sessions.store.sweep(head.expires + 1)
        else:
            session = await sessions.open(head.id)
            await (session.close() if what == "close" else session.verify())

    class Meddles(Policy):
        """Lets something happen to the session between two calls."""

        async def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
            if outputs_of(conversation):
                await happens()
            return [function_call("increment_counter", "c", count=1)]

    failed = await run_to_failure(tmp_path, served.url, CounterEnvironment(), Meddles, tasks=COUNTS[:1], max_steps=5)
    assert (failed["_ng_failure_class"], failed["_ng_failure_terminal"]) == ("environment", True)
    assert failed["error"].startswith(f"ServerFailed: increment_counter got {code}")
    assert len(failed["_stateroom_session"]) == 24


async def test_a_verifier_that_breaks_fails_the_episode(serve: Any, tmp_path: Path) -> None:
    class BrokenEnvironment(Environment[Dice]):
        """Cannot judge."""

        @tool
        def roll(self, state: Dice) -> None:
            """Nothing."""

        def verify(self, state: Dice) -> float:
            raise LookupError("a secret")

    served = await serve(BrokenEnvironment())
    failed = await run_to_failure(tmp_path, served.url, BrokenEnvironment(), Rolls, tasks=[{}])
    assert (failed["_ng_failure_class"], failed["_ng_failure_terminal"]) == ("environment", True)
    says(failed["error"])


class Mumbling(CounterEnvironment):
    name = "counter"

    def verify(self, state: Any, episode: Any) -> float:
        raise JudgeFailed("the judge's model mumbles")


async def test_an_episode_whose_judge_fails_waits_for_its_verdict(serve: Any, tmp_path: Path) -> None:
    served = await serve(Mumbling())
    row = await run_to_failure(tmp_path, served.url, CounterEnvironment(), REFERENCE, tasks=COUNTS[:1])
    assert (row["_ng_failure_class"], row["_ng_failure_terminal"]) == ("judge", False)
    assert "the judge's model mumbles" in row["error"]
    assert row["response"]["output"]
    session = await served.services.environments["counter"].sessions.open(row["_stateroom_session"])
    assert session.verdict is None  # and it is open


async def test_a_task_that_the_server_cannot_use_fails_its_episode(served: Any, tmp_path: Path) -> None:
    failed = await run_to_failure(tmp_path, served.url, DiceEnvironment(), Rolls, tasks=[{}, COUNTS[0]])
    says(failed["error"])


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_bad_network_changes_nothing(served: Any, tmp_path: Path, fault: Fault) -> None:
    here = plan(tmp_path, "here", CounterEnvironment(), NOISY, tasks=COUNTS)
    await run(here)
    with Proxy(served.url) as proxy:
        proxy.fail(*[Fault.NONE, Fault.NONE, Fault.NONE, Fault.NONE, fault] * 20)
        there = plan(tmp_path, "there", CounterEnvironment(), NOISY, tasks=COUNTS, server=proxy.url)
        report = await run(there)
    assert proxy.faults == 20
    assert report.first_error is None
    assert lines(there.files.rollouts) == lines(here.files.rollouts)
    assert 0 < report.metrics["agent_metrics"]["mean/reward"] < 1


async def test_a_server_that_goes_away_fails_the_episodes_that_are_left(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSES", Pauses(0.0, 0.0))
    served = await serve()
    with Proxy(served.url) as proxy:
        proxy.delay = 0.005
        given: dict[str, Any] = {"tasks": COUNTS, "server": proxy.url, "concurrency": 4}
        there = plan(tmp_path, "there", CounterEnvironment(), REFERENCE, **given)
        running = asyncio.create_task(run(there))
        await until(lambda: there.files.rollouts.exists() and len(rows(there.files.rollouts)) >= 4)
        proxy.refuse()
        report = await running
    finished, failed = rows(there.files.rollouts), rows(there.files.failures)
    assert (len(finished), len(failed)) == (24 - report.failed, report.failed)
    assert failed
    assert {row["reward"] for row in finished} == {1.0}
    for row in failed:
        assert (row["_ng_failure_class"], row["_ng_failure_terminal"]) == ("server", False)
        assert row["error"].startswith(f"ServerUnavailable: no answer from {proxy.url}/")
    begun = [row for row in failed if "_stateroom_session" in row]
    assert 0 < len(begun) <= 4


async def command(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """How `stateroom run` ended, and what it printed."""
    program = [sys.executable, "-m", "stateroom.cli", "run", *arguments]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*program, cwd=folder, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_the_command_without_an_environment(served: Any, tmp_path: Path) -> None:
    tasks = generate_tasks(CounterEnvironment, 8, seed=1)
    for task in tasks:
        task["responses_create_params"]["tools"] = CounterEnvironment().tool_definitions()
    write_rows(tmp_path / "tasks.jsonl", tasks)
    policy = "stateroom.gallery.counter.policies:ReferencePolicy"
    code, out, err = await command(
        tmp_path, "--server", served.url, "--input", "tasks.jsonl", "--model", policy, "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    assert (found["episodes"], found["failed"], found["metrics"]["mean/reward"]) == (8, 0, 1.0)
    assert Path(found["files"]["rollouts"]).name.startswith("remote-")
