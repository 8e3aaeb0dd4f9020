"""`stateroom branch`: episodes that branch."""

from __future__ import annotations

import asyncio
import inspect
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.text import Text

from stateroom.agent import MAX_STEPS
from stateroom.cli.options import (
    AdminToken,
    APIKey,
    AsJSON,
    EnvArgs,
    EnvName,
    Force,
    KeyVariable,
    Limit,
    MaxSteps,
    ModelConcurrency,
    ModelSpec,
    Output,
    RequestsPerMinute,
    Seed,
    ServerURL,
    SolvedAt,
    SplitTokens,
    StoreChoice,
    TaskFile,
    Tokens,
    TokensPerMinute,
    env_args_of,
    exactness_of,
    warn_of_missing_prompts,
)
from stateroom.cli.output import console, counted, errors, number, print_json, show_files, table
from stateroom.environment import load_class
from stateroom.errors import NotFound, StateroomError
from stateroom.rollout import (
    SOLVED,
    Beam,
    BestOf,
    Branching,
    Budget,
    Grown,
    MonteCarlo,
    ProgressBar,
    Rule,
    TreeFiles,
    branch as grow_trees,
    model_limits,
    plan_fields,
)
from stateroom.session import contained

RULES: dict[str, type[Rule]] = {"best-of": BestOf, "beam": Beam, "monte-carlo": MonteCarlo}

SHOWN = 20
"""Tasks that are shown one by one."""

COLUMNS = ("reward", "tree_reward", "tree_branches", "tree_steps", "tree_tool_calls")

RuleName = Annotated[
    str,
    typer.Option("--rule", "-R", help="best-of, beam, monte-carlo, or your own: module:Class or path.py:Class."),
]
Branches = Annotated[
    int | None,
    typer.Option(
        "--n",
        "-n",
        min=1,
        help="Branches per node: 4 for best-of, 2 for beam, 4 for monte-carlo.",
    ),
]
Continuations = Annotated[int | None, typer.Option(min=0, help="beam: continuations that estimate a node's value (2).")]


def branch(
    env: EnvName = None,
    env_arg: EnvArgs = None,
    rule: RuleName = "best-of",
    n: Branches = None,
    at: Annotated[int | None, typer.Option(min=0, help="best-of: answers that all branches share (0).")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="beam: nodes that continue at each step (2).")] = None,
    continuations: Continuations = None,
    input_file: TaskFile = None,
    model: ModelSpec = None,
    api_key_env: KeyVariable = None,
    model_concurrency: ModelConcurrency = None,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Branches at a time.")] = 8,
    store: StoreChoice = None,
    server: ServerURL = None,
    api_key: APIKey = None,
    admin_token: AdminToken = None,
    output: Output = None,
    force: Force = False,
    limit: Limit = None,
    seed: Seed = 0,
    max_steps: MaxSteps = MAX_STEPS,
    max_branches: Annotated[int | None, typer.Option(min=1, help="Branches per task.")] = None,
    max_nodes: Annotated[int | None, typer.Option(min=1, help="Nodes per task after which no branch begins.")] = None,
    deadline: Annotated[float | None, typer.Option(min=0.001, help="Seconds that a branch may take.")] = None,
    tokens: Tokens = False,
    split_tokens: SplitTokens = False,
    solved_at: SolvedAt = SOLVED,
    json_output: AsJSON = False,
) -> None:
    """Branch episodes: a model tries several ways from states in the middle of episodes, and a rule chooses the best.

    The rule says where the episodes branch. best-of: at one step, and the best end is the answer. beam: at each step,
    and the nodes of the highest value continue. monte-carlo: at each state of one episode, to estimate its value.

    Example: stateroom branch extraction --model noisy --rule best-of --n 4 --at 2

    Example: stateroom branch extraction --model noisy --rule beam --width 2 --continuations 2

    On a server: stateroom branch counter --rule monte-carlo --server http://127.0.0.1:8000
    """
    if server is not None and store is not None:
        raise typer.BadParameter("not together with --server, which has a store of its own", param_hint="--store")
    given = {"n": n, "at": at, "width": width, "continuations": continuations}
    plan = Branching(
        **plan_fields(
            env,
            env_args_of(env_arg),
            input_file,
            model,
            store,
            server,
            output,
            kind=TreeFiles,
            api_key_env=api_key_env,
            limits=model_limits(model_concurrency, requests_per_minute, tokens_per_minute),
        ),
        force=force,
        api_key=api_key or None,
        admin_token=admin_token or None,
        concurrency=concurrency,
        limit=limit,
        seed=seed,
        max_steps=max_steps,
        deadline=deadline,
        tokens=exactness_of(tokens, split_tokens),
        solved_at=solved_at,
        rule=find_rule(rule, {name: value for name, value in given.items() if value is not None}),
        budget=Budget(max_branches, max_nodes),
    )
    warn_of_missing_prompts(plan.environment, plan.tasks)
    _finish(plan, _grow(plan), rule, json_output)


def find_rule(name: str, settings: dict[str, int]) -> Rule:
    """The rule of a name, or of `module:Class`, with its settings."""
    found: Any = RULES.get(name)
    if found is None:
        if ":" not in name:
            known = ", ".join(RULES)
            raise NotFound(f"there is no rule {name!r}; there are {known}. One of your own is module:Class")
        found = load_class(name)
    if not (isinstance(found, type) and inspect.iscoroutinefunction(getattr(found, "grow", None))):
        raise NotFound(f"{name} is not a rule: a class with a method `async def grow(self, tree)`")
    taken = inspect.signature(found).parameters
    for setting in settings:
        if setting not in taken:
            known = ", ".join(f"--{each}" for each in taken) or "none"
            raise typer.BadParameter(f"{name} has no such setting; it has {known}", param_hint=f"--{setting}")
    try:
        with contained:
            made: Rule = found(**settings)
    except StateroomError:
        raise
    except Exception as error:
        raise NotFound(f"the rule {name} cannot be made: {type(error).__name__}: {error}") from error
    return made


def _grow(plan: Branching) -> Grown:
    """Grow the trees with a progress bar."""
    name = plan.environment.name
    bar = ProgressBar(name, len(plan.tasks[: plan.limit]))
    branches = 0

    def grown(_: Any) -> None:
        nonlocal branches
        branches += 1
        bar.what = f"{name}, {counted(branches, 'branch', 'branches')}"
        bar.start()  # not before: a run that is refused shows no bar

    try:
        return asyncio.run(grow_trees(plan, grown, lambda _: bar.advance()))
    except KeyboardInterrupt:
        errors.print(f"interrupted; what has grown is in {plan.files.tree}", style="red", soft_wrap=True)
        raise typer.Exit(130) from None
    finally:
        bar.stop()


def _finish(plan: Branching, report: Grown, rule: str, json_output: bool) -> None:
    """Print a report; the exit code is 1 if a task has no answer, or a branch failed."""
    if json_output:
        print_json(
            {
                "tasks": report.tasks,
                "failed": report.failed,
                "branches": report.branches,
                "broken": report.broken,
                "elapsed": round(report.elapsed, 3),
                "tool_failures": report.tool_failures.counts,
                "metrics": report.metrics["agent_metrics"],
                "files": plan.files.as_dict(),
            }
        )
    else:
        _show(plan, report, rule)
    if report.failed or report.broken:
        raise typer.Exit(1)


def _show(plan: Branching, report: Grown, rule: str) -> None:
    """Print a report as a table: the answers, and what their trees took."""
    what = f"{counted(report.tasks, 'task', 'tasks')} of {plan.environment.name}, by {plan.model.name}, {rule}"
    failed = f", {report.failed} without an answer" if report.failed else ""
    broken = f", {counted(report.broken, 'branch', 'branches')} failed" if report.broken else ""
    console.print(Text.assemble((what, "bold"), (failed + broken, "red")), soft_wrap=True)
    if report.first_error:
        console.print(f"the first failure: {report.first_error}", style="red", soft_wrap=True)
    if report.tool_failures:
        console.print(str(report.tool_failures), style="red", soft_wrap=True)
    if report.rows:
        made = table("task#", "answer", "reward#", "all ends#", "branches#", "steps#", "tool calls#")
        rows = sorted(report.rows, key=lambda row: row["_ng_task_index"])
        for row in rows[:SHOWN]:
            figures = (number(row[name]) for name in COLUMNS)
            made.add_row(str(row["_ng_task_index"]), row["_stateroom_node"], *figures)
        if len(rows) > SHOWN:
            made.add_row("…", f"and {len(rows) - SHOWN} more", style="dim")
        made.add_section()
        made.add_row("all", "mean", *(number(fmean(row[name] for row in rows)) for name in COLUMNS), style="bold")
        console.print(made)
    console.print(f"{report.elapsed:,.1f} s")
    show_files(plan.files)
    console.print(f"$ stateroom tree {plan.files.tree}", style="dim", soft_wrap=True)
