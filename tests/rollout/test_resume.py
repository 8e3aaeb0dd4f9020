"""Going on with a run: what has broken down through no fault of its own goes on where it was, and nothing else runs."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment, Episode, State, Task, open_store, tool
from stateroom.environment import make_environment
from stateroom.errors import (
    Busy,
    CannotWrite,
    InvalidOption,
    JudgeFailed,
    ModelFailed,
    ModelUnavailable,
    NotFound,
    StoreUnavailable,
)
from stateroom.model import Answer, Model, ModelSource, Request, function_call, message, outputs_of
from stateroom.rollout import RunFiles, run
from stateroom.session import Sessions
from tests.messages import raises
from tests.plans import make_run
from tests.rows import comparable, rows

EPISODES = 6


class Pile(State):
    stones: int = 0


class PileTask(Task):
    wanted: int


class PileEnvironment(Environment[Pile, PileTask]):
    """Piles up stones."""

    name = "pile"

    def __init__(self) -> None:
        self.seeded: list[int] = []
        self.put: list[int] = []
        self.broken: dict[str, Exception] = {}
        """What is raised, by where."""

    def break_down(self, where: str, wanted: int) -> None:
        if wanted == 2 and where in self.broken:
            raise self.broken[where]

    def seed(self, task: PileTask) -> Pile:
        self.break_down("seed", task.wanted)
        self.seeded.append(task.wanted)
        return Pile()

    @tool
    def put_stone(self, state: Pile) -> int:
        """Put a stone on the pile."""
        self.put.append(state.stones)
        state.stones += 1
        return state.stones

    def verify(self, state: Pile, episode: Episode) -> float:
        self.break_down("verify", episode.task.wanted)
        return float(state.stones == episode.task.wanted)


class Weighing(Environment):
    """The same without a state: what a stone weighs is all that can be asked."""

    name = "weighing"

    @tool
    def put_stone(self) -> int:
        """Weigh a stone."""
        return 7

    def verify(self, episode: Episode) -> float:
        return float(len(outputs_of(episode.response["output"])))


class Mason(Model):
    """Puts as many stones as are wanted, and says so; cannot be reached, or fails, as it is told."""

    name = "mason"

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.broken: dict[int, Exception] = {}
        """What is raised, by the number of the stone."""

    async def answer(self, request: Request) -> Answer:
        await asyncio.sleep(0)
        done, wanted = len(outputs_of([*request.items])), int(request.items[0]["content"])
        if wanted == 3 and done in self.broken:
            raise self.broken[done]
        self.asked.append((request.seed, request.step))
        if done == wanted:
            return Answer([message(f"{done} stones")])
        return Answer([function_call("put_stone", f"c{done}")])


BUSY = ModelUnavailable("busy")


@contextmanager
def broken(parts: dict[Any, Exception], where: Any, error: Exception) -> Iterator[None]:
    parts[where] = error
    yield
    del parts[where]


class Site:
    """A run, as often as somebody goes on with it."""

    def __init__(self, folder: Path, name: str = "out", **settings: Any) -> None:
        self.environment = settings.pop("environment", None) or PileEnvironment()
        self.model = Mason()
        self.files = RunFiles(folder / f"{name}.jsonl")
        self.store = settings.pop("store", f"sqlite:///{folder / name}.db")
        self._settings = settings

    async def run(self, *, resume: bool = True, **more: Any) -> Any:
        tasks = [{"responses_create_params": {"input": str(n)}, "wanted": n} for n in range(EPISODES)]
        plan = make_run(
            environment=more.pop("environment", self.environment),
            model=more.pop("model", None) or ModelSource("mason", lambda seed: self.model),
            tasks=[] if resume else tasks,
            files=self.files,
            store=self.store,
            resume=resume,
            **self._settings,
            **more,
        )
        return await run(plan)

    async def break_down(self, error: Exception = BUSY, **more: Any) -> Any:
        """Run it with a model that fails before its third stone of three."""
        with broken(self.model.broken, 2, error):
            return await self.run(resume=False, **more)

    @property
    def rollouts(self) -> list[dict[str, Any]]:
        return rows(self.files.rollouts)

    @property
    def failures(self) -> list[dict[str, Any]]:
        return rows(self.files.failures)


async def whole(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """The rows of the same run in one piece."""
    site = Site(folder, "whole", **settings)
    assert (await site.run(resume=False)).failed == 0
    return comparable(site.files.rollouts)


async def test_a_model_that_could_not_be_reached_is_asked_for_what_is_missing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    report = await site.break_down()
    assert (report.failed, [row["_ng_failure_terminal"] for row in site.failures]) == (1, [False])
    report = await site.run()
    assert (report.episodes, report.failed, len(report.rows)) == (EPISODES, 0, EPISODES)
    assert site.failures == []
    assert comparable(site.files.rollouts) == await whole(tmp_path)
    assert len(site.model.asked) == len({*site.model.asked})
    assert len(site.environment.put) == sum(range(EPISODES))
    assert len(site.environment.seeded) == EPISODES


@pytest.mark.parametrize("where", ["seed", "verify"])
@pytest.mark.parametrize("error", [Busy("later"), StoreUnavailable("gone"), JudgeFailed("what?")])
async def test_what_may_pass_is_tried_again(tmp_path: Path, where: str, error: Exception) -> None:
    site = Site(tmp_path)
    with broken(site.environment.broken, where, error):
        for resume in (False, True):
            report = await site.run(resume=resume)
            assert (report.failed, len(site.rollouts), len(site.failures)) == (1, EPISODES - 1, 1)
    assert (await site.run()).failed == 0
    assert comparable(site.files.rollouts) == await whole(tmp_path)
    assert len(site.model.asked) == len({*site.model.asked})


async def test_an_episode_that_another_worker_has_is_left_to_it_and_tried_again(tmp_path: Path) -> None:
    class Taken(Mason):
        async def answer(self, request: Request) -> Answer:
            if request.items[0]["content"] == "1" and request.step == 1:
                row = next(row for row in rows(site.files.inputs) if row["wanted"] == 1)
                held.append(await Sessions(PileEnvironment(), store).open(row["_stateroom_session"]))
                await stack.enter_async_context(held[0].lease())
            return await super().answer(request)

    site, held = Site(tmp_path), list[Any]()
    site.model = Taken()
    async with open_store(site.store) as store, AsyncExitStack() as stack:
        report = await site.run(resume=False)
        assert "is held by another worker" in str(report.first_error)
        assert [row["_ng_failure_terminal"] for row in site.failures] == [False]
        await held[0].call("put_stone")
    site.model = Mason()
    assert (await site.run()).failed == 0
    assert [row["reward"] for row in site.rollouts] == [1.0, 0.0, *[1.0] * (EPISODES - 2)]


@pytest.mark.parametrize("error", [ModelFailed("nonsense"), ZeroDivisionError("oops")])
async def test_what_has_failed_for_good_is_not_tried_again(tmp_path: Path, error: Exception) -> None:
    site = Site(tmp_path)
    await site.break_down(error)
    failures = site.failures
    assert [row["_ng_failure_terminal"] for row in failures] == [True]
    asked = [*site.model.asked]
    report = await site.run()
    assert (report.episodes, report.failed, len(report.rows)) == (EPISODES, 1, EPISODES - 1)
    assert (site.failures, site.model.asked) == (failures, asked)


async def test_a_failure_whose_row_was_lost_is_the_same_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    await site.break_down(ModelFailed("nonsense"))
    failures = site.failures
    site.files.failures.unlink()
    report = await site.run()
    assert (report.failed, report.first_error) == (1, "ModelFailed: nonsense")
    assert site.failures == failures


async def test_a_run_that_is_done_is_left_as_it_is(tmp_path: Path) -> None:
    site = Site(tmp_path)
    before = await site.run(resume=False)
    written = {path: path.read_bytes() for path in (site.files.inputs, site.files.rollouts, site.files.metrics)}
    report = await site.run()
    assert (report.episodes, report.failed) == (EPISODES, 0)
    assert report.metrics == before.metrics
    assert {path: path.read_bytes() for path in written} == written
    assert len(site.environment.seeded) == EPISODES


async def test_rows_that_are_lost_or_cut_short_are_written_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    await site.run(resume=False)
    whole = comparable(site.files.rollouts)
    lines = site.files.rollouts.read_bytes().splitlines(keepends=True)
    site.files.rollouts.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    asked, put = [*site.model.asked], [*site.environment.put]
    assert (await site.run()).failed == 0
    assert comparable(site.files.rollouts) == whole
    assert site.files.rollouts.read_bytes().startswith(b"".join(lines[:3]))
    assert (site.model.asked, site.environment.put) == (asked, put)


async def test_a_limit_that_was_reached_before_is_still_known(tmp_path: Path) -> None:
    site = Site(tmp_path, max_steps=3)
    await site.run(resume=False)
    before = comparable(site.files.rollouts)
    assert {row["truncated"] for row in before} == {0, 1}
    site.files.rollouts.write_bytes(b"")
    await site.run()
    assert comparable(site.files.rollouts) == before


# Groups.


async def test_members_of_a_group_go_on_in_their_own_forks(tmp_path: Path) -> None:
    site = Site(tmp_path, group=3)
    assert (await site.break_down()).failed == 3
    begun = [(row["_stateroom_session"], row["_stateroom_parent"]) for row in site.failures]
    assert (await site.run()).failed == 0
    assert [
        (row["_stateroom_session"], row["_stateroom_parent"]) for row in site.rollouts if row["_ng_task_index"] == 3
    ] == begun
    assert comparable(site.files.rollouts) == await whole(tmp_path, group=3)
    assert len(site.environment.put) == 3 * sum(range(EPISODES))
    assert len(site.environment.seeded) == EPISODES


async def test_a_group_that_was_forked_only_in_part_is_completed(tmp_path: Path) -> None:
    site = Site(tmp_path, group=3)
    with broken(site.environment.broken, "seed", StoreUnavailable("gone")):
        assert (await site.run(resume=False)).failed == 3
    inputs = [row for row in rows(site.files.inputs) if row["_ng_task_index"] == 2]
    async with open_store(site.store) as store:  # as the process would have done that was killed
        parent = await Sessions[Any](site.environment, store).seed(
            {"wanted": 2, "responses_create_params": {"input": "2"}},
            session_id=inputs[0]["_stateroom_parent"]["session"],
        )
        await parent.fork(n=1, ids=[inputs[1]["_stateroom_session"]])
        await parent.close()
    assert (await site.run()).failed == 0
    done = [row for row in site.rollouts if row["_ng_task_index"] == 2]
    for name in ("_stateroom_session", "_stateroom_parent"):
        assert [row[name] for row in done] == [row[name] for row in inputs]


# Without a state.


@pytest.mark.parametrize(("kept", "asked_again"), [({}, 0), ({"store": "memory://"}, 2)], ids=["a store", "none"])
async def test_without_a_state_answers_are_kept_in_a_store_that_is_given(
    tmp_path: Path, kept: dict[str, Any], asked_again: int
) -> None:
    site = Site(tmp_path, environment=Weighing(), **kept)
    assert (await site.break_down()).failed == 1
    assert (await site.run()).failed == 0
    assert comparable(site.files.rollouts) == await whole(tmp_path, environment=Weighing(), **kept)
    assert len(site.model.asked) == len({*site.model.asked}) + asked_again


# What is refused.


class HighPileEnvironment(PileEnvironment):
    """One that is made with an argument."""

    name = "pile"

    def __init__(self, height: int) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("option", "other"),
    [
        ("model", {"model": ModelSource("other", lambda seed: Mason())}),
        ("environment", {"environment": type("Other", (PileEnvironment,), {"name": "other"})()}),
        ("env_args", {"environment": make_environment(HighPileEnvironment, {"height": 3})}),
        ("seed", {"seed": 1}),
        ("max_steps", {"max_steps": 3}),
        ("settings", {"settings": {"temperature": 0.5}}),
        ("server", {"server": "http://127.0.0.1:9"}),
    ],
)
async def test_what_would_give_other_rows_is_refused(tmp_path: Path, option: str, other: dict[str, Any]) -> None:
    site = Site(tmp_path)
    await site.break_down()
    before = {path: path.read_bytes() for path in (site.files.rollouts, site.files.failures)}
    with pytest.raises(InvalidOption) as refused:
        await site.run(**other)
    assert refused.value.option == option
    assert {path: path.read_bytes() for path in before} == before


async def test_rollouts_without_their_inputs_are_refused(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.files.rollouts.write_text("{}\n")
    with raises(NotFound):
        await site.run()
    assert not site.files.metrics.exists()


async def test_a_session_that_has_expired_is_not_begun_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    await site.break_down()
    put = [*site.environment.put]
    async with open_store(site.store) as store:
        await store.touch(site.failures[0]["_stateroom_session"], now=0.0, expires=1.0)
    report = await site.run()
    assert report.failed == 1
    assert "has expired" in str(report.first_error)
    assert site.environment.put == put


async def test_a_run_is_held_while_it_goes_on(tmp_path: Path) -> None:
    site, refused = Site(tmp_path), []

    class Intruder(Mason):
        async def answer(self, request: Request) -> Answer:
            with raises(CannotWrite):
                await site.run()
            refused.append(request.seed)
            return await super().answer(request)

    site.model = Intruder()
    assert (await site.run(resume=False)).failed == 0
    assert len(refused) == len(site.model.asked)


async def test_what_is_a_group_and_what_is_not_must_be_gone_on_with_as_such(tmp_path: Path) -> None:
    for before, now in ((None, 2), (2, None)):
        site = Site(tmp_path, f"from-{before}")
        await site.break_down(group=before)
        failures = site.failures
        with pytest.raises(InvalidOption) as refused:
            await site.run(group=now)
        assert (refused.value.option, site.failures) == ("group", failures)
        assert (await site.run(group=before)).failed == 0


async def test_the_times_of_all_processes_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("stateroom.agent.loop.perf_counter", lambda: next(ticks))  # all that is waited for takes 1 s
    site = Site(tmp_path, concurrency=1)
    await site.break_down()
    await site.run()
    for row in site.rollouts:
        times = row["_stateroom_times"]
        assert (times["model"], times["tool"]) == (row["wanted"] + 1, row["wanted"])
    resumed = next(row["_stateroom_times"] for row in site.rollouts if row["wanted"] == 3)
    assert resumed["wall"] > 3  # two answers and a call of the first process are in the log


def test_a_run_that_is_replaced_is_gone_before_its_lock_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RunFiles(tmp_path / "x.jsonl")
    remaining: list[Path] = []
    files.begin([{}])
    lock = RunFiles.lock

    @contextmanager
    def watched(files: RunFiles) -> Iterator[None]:
        with lock(files):
            yield
            remaining.extend(tmp_path.iterdir())

    monkeypatch.setattr(RunFiles, "lock", watched)
    files.remove()
    assert remaining == []
