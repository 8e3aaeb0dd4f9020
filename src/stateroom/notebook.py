"""`run`, `arun`, `serve` and `open`: Stateroom from Python without `async`, as in a notebook."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from stateroom.environment import Environment, SyncSessions, make_environment
from stateroom.errors import needs
from stateroom.options import takes
from stateroom.rollout import RunOptions, RunPlan, RunResult, missing_prompts
from stateroom.server import ServeOptions
from stateroom.session import BackgroundLoop


@takes(RunOptions)
def run(options: RunOptions) -> RunResult:
    """Run episodes of an environment with a progress bar, like `stateroom run`.

    After Ctrl-C, repeat the call with `output` and `resume=True` to continue.
    """
    plan = RunPlan.of(options)
    # In a separate thread and loop: a notebook's own thread already runs a loop, which cannot be nested.
    with BackgroundLoop() as loop:
        try:
            return loop.run(_run(plan))
        except KeyboardInterrupt as error:
            finished = f"finished episodes are in {plan.files.rollouts}"
            error.add_note(f"{finished}; continue with the same output and resume=True")
            raise


@takes(RunOptions)
async def arun(options: RunOptions) -> RunResult:
    """The async version of `run`: `await stateroom.arun("counter")`."""
    return await _run(RunPlan.of(options))


async def _run(plan: RunPlan) -> RunResult:
    from stateroom.rollout import ProgressBar, run_with_progress  # noqa: PLC0415 - imports rich

    if problem := missing_prompts(plan.environment, plan.tasks):
        warnings.warn(problem, stacklevel=2)
    return RunResult(plan, await run_with_progress(plan, ProgressBar(plan.environment.name)))


@takes(ServeOptions)
def serve(options: ServeOptions) -> None:
    """Serve an environment, or a list of them, over HTTP and MCP until Ctrl-C, like `stateroom serve`."""
    with needs("to serve", "server"):
        from stateroom.server import start_server  # noqa: PLC0415
    start_server(options)


def open(
    url: str,
    environment: str | type[Environment[Any, Any]] | Environment[Any, Any] | None = None,
    *,
    env_args: Mapping[str, Any] | None = None,
    **limits: Any,
) -> SyncSessions:
    """Open the sessions of a store without `async`: `with stateroom.open("sqlite:///a.db", "counter") as rooms:`.

    The methods are those of `Sessions` and `Session`, but blocking. Without an environment you can open sessions of all
    registered environments. `limits` are options of `Sessions`, such as `ttl`.
    """
    made = None if environment is None else make_environment(environment, env_args or {})
    return SyncSessions(url, made, **limits)
