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
    """Run episodes of an environment with a progress bar, and wait for them: `stateroom run` from Python.

    After Ctrl-C, the same call with `output` and `resume=True` continues.
    """
    plan = RunPlan.of(options)
    # On a loop of its own, since a notebook's thread has a running loop, which cannot be entered twice.
    with BackgroundLoop() as loop:
        try:
            return loop.run(_run(plan))
        except KeyboardInterrupt as error:
            error.add_note(f"what is done is in {plan.files.rollouts}; continue with the same output and resume=True")
            raise


@takes(RunOptions)
async def arun(options: RunOptions) -> RunResult:
    """The same as `run`, for code that is async itself: `await stateroom.arun("counter")`."""
    return await _run(RunPlan.of(options))


async def _run(plan: RunPlan) -> RunResult:
    from stateroom.rollout import ProgressBar, run_with_progress  # noqa: PLC0415 - imports rich

    if problem := missing_prompts(plan.environment, plan.tasks):
        warnings.warn(problem, stacklevel=2)
    return RunResult(plan, await run_with_progress(plan, ProgressBar(plan.environment.name)))


@takes(ServeOptions)
def serve(options: ServeOptions) -> None:
    """Serve an environment, or several in a list, over HTTP and MCP until Ctrl-C: `stateroom serve` from Python."""
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
    """The sessions in a store, for code without `async`: `with stateroom.open("sqlite:///a.db", "counter") as rooms:`.

    It has the methods of `Sessions`, and its sessions those of `Session`; all of them block. Without an environment it
    opens sessions of registered environments. `limits` are options of `Sessions`, such as `ttl`.
    """
    made = None if environment is None else make_environment(environment, env_args or {})
    return SyncSessions(url, made, **limits)
