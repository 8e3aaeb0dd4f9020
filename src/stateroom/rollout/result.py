"""`RunResult`: the metrics, failures and episodes of a run with their sessions, for Python and notebooks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property, partial
from html import escape
from importlib import import_module
from operator import itemgetter
from statistics import fmean
from threading import Thread
from typing import Any
from weakref import finalize

from stateroom.agent import task_items
from stateroom.environment import SyncSessions, variant_of
from stateroom.errors import MissingPackage, NotFound
from stateroom.model import Item
from stateroom.rollout.files import RunFiles
from stateroom.rollout.index import RunIndex
from stateroom.rollout.lazy import LazyMap
from stateroom.rollout.plan import RunPlan
from stateroom.rollout.rows import SESSION, Row, key_of
from stateroom.rollout.runner import Report
from stateroom.session import LogEntries

NOT_COLUMNS = frozenset({"responses_create_params", "response", "agent_ref"})
"""Fields of a row that a data frame omits: conversations."""

MAX_TASKS = 10
"""The most tasks that a notebook shows."""


class EpisodeResult:
    """A finished episode, with its row and session."""

    def __init__(self, run: RunResult, row: Row) -> None:
        self._run = run
        self.row = row
        """The row in the rollouts file."""

    def __repr__(self) -> str:
        return f"<EpisodeResult of task {self.task}, rollout {self.rollout}, reward {self.reward:g}>"

    @property
    def task(self) -> int:
        """The index of the task in the input."""
        return key_of(self.row)[0]

    @property
    def rollout(self) -> int:
        """The index of the episode within the task."""
        return key_of(self.row)[1]

    @property
    def reward(self) -> float:
        return float(self.row["reward"])

    @property
    def response(self) -> dict[str, Any]:
        """The messages and calls of the model, as a Responses object."""
        return self.row["response"]  # type: ignore[no-any-return]

    @property
    def conversation(self) -> list[Item]:
        """The items of the conversation: the prompt and the response."""
        return [*task_items(self.row), *self.response.get("output", ())]

    @property
    def session(self) -> Any:
        """The session as a blocking `Session`, to read, fork, and call tools on the fork."""
        return self._run.session_of(self.row)

    def log(self) -> LogEntries:
        """The log of the session."""
        return self.session.log()  # type: ignore[no-any-return]


class RunResult:
    """The results of a run. A notebook shows them as a table."""

    def __init__(self, plan: RunPlan, report: Report) -> None:
        self.plan = plan
        self.report = report

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics over all episodes: `pass@1`, `mean/reward` and so on."""
        return self.report.metrics["agent_metrics"]  # type: ignore[no-any-return]

    @property
    def files(self) -> RunFiles:
        """The files of the run."""
        return self.plan.files

    @cached_property
    def episodes(self) -> Sequence[EpisodeResult]:
        """The finished episodes, sorted by task and rollout; each is read from the run's files on access."""
        return LazyMap(partial(EpisodeResult, self), self._rows("rollouts"))

    @cached_property
    def failures(self) -> Sequence[Row]:
        """The rows of failed episodes; the field `error` has the reason."""
        return self._rows("failures")

    def _rows(self, name: str) -> Sequence[Row]:
        return self._index.rows("file = ?", (name,), order="task, rollout")

    @cached_property
    def _index(self) -> RunIndex:
        index = RunIndex.of(self.files, "rollouts", "failures")
        index.ensure_whole("rollouts", "failures")
        return index

    def session_of(self, row: Row) -> Any:
        """The blocking session of a row."""
        plan = self.plan
        if not plan.keeps_sessions:
            why = (
                f"they are on {plan.options.server}" if plan.options.server else f"{plan.environment.name} is stateless"
            )
            raise NotFound(f"this run has no local sessions: {why}; use the `conversation` of an episode")
        if plan.store.startswith("memory:"):
            raise NotFound("the sessions of this run were in memory; set another `store`, or omit it to use a file")
        return self._sessions.sessions(variant_of(plan.environment, row)).open(row[SESSION], include_closed=True)

    @cached_property
    def _sessions(self) -> SyncSessions:
        sessions = SyncSessions(self.plan.store)
        # On a thread, because the garbage collector may run on the loop that it closes; threads cannot start at exit.
        finalize(self, lambda: Thread(target=sessions.close, daemon=True).start()).atexit = False
        return sessions

    def rewards_by_task(self) -> dict[int, list[float]]:
        """The rewards of the episodes of each task."""
        by_task: dict[int, list[float]] = defaultdict(list)
        rewards = ((key_of(row), float(row["reward"])) for row in self.report.rows)
        for (task, _), reward in sorted(rewards, key=itemgetter(0)):
            by_task[task].append(reward)
        return dict(by_task)

    def to_dataframe(self) -> Any:
        """A pandas data frame with a line per finished episode: the fields of its row without the conversation."""
        return _imported("pandas", "a data frame").DataFrame([_columns(episode.row) for episode in self.episodes])

    def plot(self) -> Any:
        """A matplotlib figure with the rewards by task, and pass@k."""
        plt = _imported("matplotlib.pyplot", "a plot")
        figure, (by_task, by_k) = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
        plt.close(figure)  # otherwise a notebook would show it twice
        rewards = self.rewards_by_task()
        by_task.bar(list(rewards), [fmean(each) for each in rewards.values()], color="C0", alpha=0.4, label="mean")
        points = [(task, reward) for task, each in rewards.items() for reward in each]
        if points:
            by_task.plot(*zip(*points, strict=True), "o", color="C0", label="episode")
        by_task.set(title=f"{self.plan.environment.name}, by {self.plan.model.name}", xlabel="task", ylabel="reward")
        by_task.margins(y=0.06)
        by_task.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)
        passes = self._passes()
        by_k.plot(list(passes), list(passes.values()), "o-", color="C1")
        by_k.set(title="pass@k", xlabel="k", ylim=(-0.02, 1.02), xticks=list(passes))
        return figure

    def _passes(self) -> dict[int, float]:
        """pass@k by k."""
        passes = ((name.removeprefix("pass@"), value) for name, value in self.metrics.items() if "pass@" in name)
        return {int(k): value for k, value in passes if k.isdecimal()}

    def __repr__(self) -> str:
        plan, report = self.plan, self.report
        figures = [f"{name} {self.metrics[name]:.3g}" for name in ("mean/reward", "pass@1") if name in self.metrics]
        counts = [
            f"{report.episodes} episodes of {plan.environment.name} by {plan.model.name}",
            f"{report.failed} failed",
        ]
        return f"<RunResult: {', '.join(counts + figures)}; {plan.files.rollouts}>"

    def _repr_html_(self) -> str:
        plan, rewards = self.plan, self.rewards_by_task()
        lines = [
            f"<tr><td>{task}</td><td>{fmean(each):.3g}</td>"
            f"<td style='text-align: left'>{' '.join(f'{reward:.3g}' for reward in each)}</td></tr>"
            for task, each in [*rewards.items()][:MAX_TASKS]
        ]
        if len(rewards) > MAX_TASKS:
            lines.append(f"<tr><td>…</td><td></td><td>and {len(rewards) - MAX_TASKS} more</td></tr>")
        failed = f", {self.report.failed} failed" if self.report.failed else ""
        title = f"{self.report.episodes} episodes of {plan.environment.name}, by {plan.model.name}{failed}"
        figures = {"mean reward": self.metrics.get("mean/reward")} | {f"pass@{k}": v for k, v in self._passes().items()}
        shown_figures = ", ".join(f"{name} = {value:.3g}" for name, value in figures.items() if value is not None)
        return (
            f"<p><b>{escape(title)}</b><br>{escape(shown_figures)}<br><code>{escape(str(plan.files.rollouts))}</code></p>"
            f"<table><tr><th>task</th><th>mean</th><th>rewards</th></tr>{''.join(lines)}</table>"
        )


def _imported(module: str, what: str) -> Any:
    """Import a module of an optional package."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        raise MissingPackage(what, package, package) from None


def _columns(row: Row) -> Row:
    """The fields of a row as columns, with plain names for the indices and the session, and one column per component.

    A task field that is named `task`, `rollout` or `session` is in the column `row/task` and so on.
    """
    names = {"_ng_task_index": "task", "_ng_rollout_index": "rollout", SESSION: "session"}
    first = {plain: row[name] for name, plain in names.items() if name in row}
    own = {name: value for name, value in row.items() if name not in NOT_COLUMNS and not name.startswith("_")}
    rest = {f"row/{name}" if name in names.values() else name: value for name, value in own.items()}
    components = rest.pop("reward_components", None) or {}
    return {**first, **rest, **{f"reward_components/{name}": value for name, value in components.items()}}
