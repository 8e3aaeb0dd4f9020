"""`run`, `arun`, `serve` and `open`: Stateroom from Python without `async`, as in a notebook."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from stateroom.environment import Environment, Rooms, make_environment
from stateroom.errors import NotFound
from stateroom.rollout import Run, RunResult, missing_prompts, plan_run
from stateroom.session import BackgroundLoop

P = ParamSpec("P")
R = TypeVar("R")


def _with_options_of(plan: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a function the options of another, also for `help` and completion."""

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        returns = inspect.signature(function).return_annotation
        vars(function)["__signature__"] = inspect.signature(plan).replace(return_annotation=returns)
        return function

    return decorate


@_with_options_of(plan_run)
def run(*args: Any, **kwargs: Any) -> RunResult:
    """Run episodes of an environment with a progress bar, and wait for them: `stateroom run` from Python.

    The options and files are those of the command. `environment` is a registered name, `module:Class`,
    `path.py:Class`, a class or an instance; `model` is what `--model` takes, or a `Policy` or `Model` class or object;
    `input` is a path or a list of task rows. After Ctrl-C, the same call with `output` and `resume=True` continues.
    """
    plan = plan_run(*args, **kwargs)
    # On a loop of its own, since a notebook's thread has a running loop, which cannot be entered twice.
    with BackgroundLoop() as loop:
        try:
            return loop.run(_run(plan))
        except KeyboardInterrupt as error:
            error.add_note(f"what is done is in {plan.files.rollouts}; continue with the same output and resume=True")
            raise


@_with_options_of(plan_run)
async def arun(*args: Any, **kwargs: Any) -> RunResult:
    """The same as `run`, for code that is async itself: `await stateroom.arun("counter")`."""
    return await _run(plan_run(*args, **kwargs))


async def _run(plan: Run) -> RunResult:
    from stateroom.rollout import ProgressBar, run_with_progress  # noqa: PLC0415 - imports rich

    if told := missing_prompts(plan.environment, plan.tasks):
        warnings.warn(told, stacklevel=2)
    return RunResult(plan, await run_with_progress(plan, ProgressBar(plan.environment.name)))


def serve(*environments: str | type[Environment[Any, Any]] | Environment[Any, Any], **options: Any) -> None:
    """Serve environments over HTTP and MCP until Ctrl-C: `stateroom serve` from Python, with the same options.

    Each environment is a registered name, `module:Class`, `path.py:Class`, a class or an instance.
    """
    try:
        from stateroom import server  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NotFound(f"to serve needs {error.name}: pip install 'stateroom[server]'") from error
    server.serve(*environments, **options)


def open(
    url: str,
    environment: str | type[Environment[Any, Any]] | Environment[Any, Any] | None = None,
    *,
    env_args: Mapping[str, Any] | None = None,
    **limits: Any,
) -> Rooms:
    """The sessions in a store, for code without `async`: `with stateroom.open("sqlite:///a.db", "counter") as rooms:`.

    It has the methods of `Sessions`, and its sessions those of `Session`; all of them block. Without an environment it
    opens sessions of registered environments. `limits` are options of `Sessions`, such as `ttl`.
    """
    made = None if environment is None else make_environment(environment, env_args or {})
    return Rooms(url, made, **limits)
