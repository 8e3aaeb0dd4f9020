"""An episode whose judge fails waits for its verdict, and gets the one that it would have had."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stateroom import Environment, Episode, Sessions, State, Task, Verdict, tool
from stateroom.errors import NotFound, StoreUnavailable
from stateroom.model import (
    Answer,
    Item,
    Judge,
    Model,
    ModelSource,
    Policy,
    Request,
    Usage,
    function_call,
    message,
    outputs_of,
)
from stateroom.rollout import Report, RunFiles, rescore_rollouts, run, score_failures
from stateroom.store import Store
from tests.messages import raises, says
from tests.plans import make_run
from tests.rollout.conftest import DownStore
from tests.rows import comparable, rows, write_rows


class Critic(Model):
    """Scores by the length of the answer; mumbles about some answers, and counts how often it is asked."""

    name = "critic"

    def __init__(self, *mumbles_about: str) -> None:
        self.mumbles_about = mumbles_about
        self.asked = 0

    async def answer(self, request: Request) -> Answer:
        self.asked += 1
        answer = json.loads(request.items[1]["content"])["answer"]
        score = {"score": len(answer), "reason": f"{len(answer)} letters"}
        return Answer([message("Hm." if answer in self.mumbles_about else json.dumps(score))])


class Slate(State):
    text: str = ""


class SlateTask(Task):
    word: str
    weight: int = 3


class SlateEnvironment(Environment[Slate, SlateTask]):
    """Write a word, which a model judges."""

    name = "slate"

    def __init__(self, critic: Model) -> None:
        self.judge = Judge(critic, "The longer the better.", scale=(0, 10), tries=1)

    @tool
    def write(self, state: Slate, word: str) -> str:
        """Write a word."""
        state.text = word
        return word

    async def verify(self, state: Slate, episode: Episode) -> Verdict:
        found = await self.judge.verdict(question="A word?", answer=state.text)
        return Verdict(
            found.reward, found.components, {"weight": 7.0, **found.metrics}, found.reason, {"error": "none"}
        )


class Echo(Environment[None, SlateTask]):
    """Says a word, which a model judges."""

    name = "slate"
    __init__ = SlateEnvironment.__init__

    @tool
    def write(self, word: str) -> str:
        """Say a word."""
        return word

    async def verify(self, episode: Episode) -> Verdict:
        [said] = outputs_of(episode.response["output"])
        return await self.judge.verdict(question="A word?", answer=said)  # type: ignore[attr-defined]


class Writer(Policy):
    """Writes the word that it is asked for."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        word = conversation[0]["content"]
        return [message("done")] if outputs_of(conversation) else [function_call("write", "c", word=word)]

    async def answer(self, request: Request) -> Answer:
        return replace(await super().answer(request), usage=Usage(input_tokens=5, output_tokens=2))


WORDS = ("one", "three", "seven")
TASKS = [
    {"responses_create_params": {"input": word}, "word": word, "error": "task's", "weight": 3, "size": 4}
    for word in WORDS
]

Collect = Callable[..., Any]


@pytest.fixture
def collect(tmp_path: Path) -> Collect:
    """Run episodes; gives the report and the files."""

    async def collect(environment: Any, name: str = "out", **settings: Any) -> tuple[Report, RunFiles]:
        files = RunFiles(tmp_path / f"{name}.jsonl")
        plan: dict[str, Any] = {"tasks": TASKS, "store": f"sqlite:///{tmp_path / 'rooms.db'}"} | settings
        report = await run(make_run(environment=environment, model=ModelSource("writer", Writer), files=files, **plan))
        return report, files

    return collect


async def test_an_episode_whose_judge_fails_waits_with_all_that_a_judge_needs(collect: Collect, store: Store) -> None:
    report, files = await collect(SlateEnvironment(Critic("three")))
    assert (report.episodes, report.failed) == (3, 1)
    [failure] = rows(files.failures)
    assert (failure["_ng_failure_class"], failure["_ng_failure_terminal"]) == ("judge", False)
    assert "'Hm.'" in failure["error"]
    assert [item["type"] for item in failure["response"]["output"]][-1] == "message"
    assert "reward" not in failure
    session = await Sessions[Any](SlateEnvironment(Critic()), store).open(failure["_stateroom_session"])
    assert (session.closed, session.verdict, session.state.text) == (False, None, "three")
    assert [row["reward"] for row in rows(files.rollouts)] == [0.3, 0.5]


@pytest.mark.parametrize("kind", [SlateEnvironment, Echo])
@pytest.mark.parametrize("fail", [("three",), WORDS])
async def test_the_files_become_those_of_a_run_whose_judge_did_not_fail(
    kind: Any, fail: tuple[str, ...], collect: Collect, store: Store
) -> None:
    _, files = await collect(kind(Critic(*fail)), repeats=2)
    report = await score_failures(kind(Critic()), files, store)
    _, wanted = await collect(kind(Critic()), "wanted", repeats=2)
    assert (len(report.rows), report.refused, report.resumed) == (2 * len(fail), 0, 0)
    assert comparable(files.rollouts) == comparable(wanted.rollouts)
    assert json.loads(files.metrics.read_text()) == json.loads(wanted.metrics.read_text())
    assert not files.failures.exists()
    assert sorted(path.name for path in files.rollouts.parent.glob("out*.new")) == []


async def test_the_verdict_is_recorded_and_the_session_closed(collect: Collect, store: Store) -> None:
    _, files = await collect(SlateEnvironment(Critic("three")))
    await score_failures(SlateEnvironment(Critic()), files, store)
    [row] = (row for row in rows(files.rollouts) if row["word"] == "three")
    session = await Sessions[Any](SlateEnvironment(Critic()), store).open(
        row["_stateroom_session"], include_closed=True
    )
    assert session.closed
    assert session.verdict is not None
    assert session.verdict.reward == row["reward"] == 0.5
    again = RunFiles(files.rollouts.parent / "again.jsonl")
    report = await rescore_rollouts(SlateEnvironment(Critic()), files.rollouts, again, store)
    assert (len(report.rows), report.refused) == (3, 0)


async def test_what_fails_again_stays_as_it_is_and_is_counted(collect: Collect, store: Store) -> None:
    _, files = await collect(SlateEnvironment(Critic("three", "seven")))
    [*before] = rows(files.failures)
    report = await score_failures(SlateEnvironment(Critic("seven")), files, store)
    assert (len(report.rows), report.refused) == (1, 1)
    assert all("JudgeFailed" in reason and "Hm." in reason for reason in report.reasons)
    assert rows(files.failures) == [row for row in before if row["word"] == "seven"]
    assert [row["word"] for row in rows(files.rollouts)] == ["one", "three"]
    report = await score_failures(SlateEnvironment(Critic("seven")), files, store)
    assert (len(report.rows), report.refused, len(rows(files.failures))) == (0, 1, 1)
    report = await score_failures(SlateEnvironment(Critic()), files, store)
    assert (len(report.rows), report.refused, len(rows(files.rollouts))) == (1, 0, 3)


async def test_other_failures_are_left_alone(collect: Collect, store: Store) -> None:
    _, files = await collect(SlateEnvironment(Critic("three")))
    [failure] = rows(files.failures)
    others = [{**failure, "_ng_failure_class": kind, "_ng_rollout_index": 5} for kind in ("policy", "store")]
    write_rows(files.failures, [failure, *others])  # it has failed twice, and is judged once
    with files.failures.open("ab") as file:
        file.write(b'{"_ng_failure_class": "ju')
    critic = Critic()
    report = await score_failures(SlateEnvironment(critic), files, store)
    assert (len(report.rows), report.refused, critic.asked) == (1, 0, 1)
    first, second, half = files.failures.read_text().splitlines()
    assert [json.loads(first), json.loads(second), half] == [*others, '{"_ng_failure_class": "ju']


@pytest.mark.parametrize("lost", ["the row", "half the row", "nothing", "the end of the line"])
async def test_it_goes_on_where_it_was_killed_and_asks_no_judge_twice(
    lost: str, collect: Collect, store: Store
) -> None:
    """Killed after the verdict was recorded: while the row was written, or before the failures were."""
    _, files = await collect(SlateEnvironment(Critic("seven")))
    failures, lines = files.failures.read_bytes(), len(files.rollouts.read_bytes())
    await score_failures(SlateEnvironment(Critic()), files, store)
    whole = files.rollouts.read_bytes()
    kept = {"the row": lines, "half the row": (lines + len(whole)) // 2, "the end of the line": len(whole) - 1}
    files.rollouts.write_bytes(whole[: kept.get(lost, len(whole))])
    files.failures.write_bytes(failures)
    metrics = files.metrics.read_bytes()
    files.metrics.unlink()
    critic = Critic()
    report = await score_failures(SlateEnvironment(critic), files, store)
    assert (len(report.rows), report.refused, critic.asked) == (1, 0, 0)
    assert report.resumed == (lost in ("nothing", "the end of the line"))
    assert (files.rollouts.read_bytes(), files.metrics.read_bytes()) == (whole, metrics)
    assert not files.failures.exists()


@pytest.mark.parametrize("change", [{"_stateroom_session": "gone"}, {"_stateroom_session": None}, {"reward": 0.5}])
async def test_what_cannot_honestly_be_judged_stays(change: dict[str, Any], collect: Collect, store: Store) -> None:
    _, files = await collect(SlateEnvironment(Critic("seven")))
    [failure] = rows(files.failures)
    files.failures.unlink()
    write_rows(files.failures, [{**failure, **change}])
    report = await score_failures(SlateEnvironment(Critic()), files, store)
    assert (report.rows, report.refused) == ([], 1)
    says("\n".join(report.reasons))
    assert rows(files.failures) == [{**failure, **change}]


async def test_what_is_no_rows_fault_changes_nothing(collect: Collect, store: Store) -> None:
    _, files = await collect(SlateEnvironment(Critic("seven")))
    before = files.failures.read_bytes()
    with pytest.raises(StoreUnavailable):
        await score_failures(SlateEnvironment(Critic()), files, DownStore(store))
    for rollouts, given in ((files, None), (RunFiles(files.rollouts.parent / "no.jsonl"), store)):
        with raises(NotFound):
            await score_failures(SlateEnvironment(Critic()), rollouts, given)
    assert files.failures.read_bytes() == before


async def test_a_judge_that_fails_when_episodes_are_judged_again_may_be_tried_again(
    collect: Collect, store: Store
) -> None:
    _, files = await collect(SlateEnvironment(Critic()))
    again = RunFiles(files.rollouts.parent / "again.jsonl")
    report = await rescore_rollouts(SlateEnvironment(Critic("seven")), files.rollouts, again, store)
    assert (len(report.rows), report.refused) == (2, 1)
    [failure] = rows(again.failures)
    assert (failure["_ng_failure_class"], failure["_ng_failure_terminal"]) == ("judge", False)
    report = await rescore_rollouts(SlateEnvironment(Critic()), files.rollouts, again, store)
    assert (len(report.rows), report.resumed, again.failures.exists()) == (3, 2, False)
