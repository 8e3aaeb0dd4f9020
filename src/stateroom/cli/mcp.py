"""`stateroom mcp`: one environment for an MCP client that starts its servers itself."""

from __future__ import annotations

from typing import Annotated

import typer

from stateroom.cli.options import EnvArgs, StoreURL, TaskFile, env_args_of
from stateroom.cli.output import errors
from stateroom.environment import make_environment
from stateroom.errors import NotFound, needs
from stateroom.rollout import find_tasks
from stateroom.store import without_secrets


def mcp(
    env: Annotated[str, typer.Argument(help="A registered name, module:Class or path.py:Class.", show_default=False)],
    env_arg: EnvArgs = None,
    input_file: TaskFile = None,
    task: Annotated[int, typer.Option(min=0, help="The number of the task that the session is for.")] = 0,
    store: StoreURL = "sqlite:///stateroom.db",
) -> None:
    """Serve an environment over MCP at standard input and output, in a new session.

    MCP clients start this command themselves; give it to them in their list
    of servers. The session is for the first task, or for --task N, and its
    prompt is the server's instructions. The session stays in the store when
    the client leaves. `stateroom serve` serves MCP over HTTP.

    Example: stateroom mcp counter

    Example: stateroom mcp mine.py:MyEnvironment --task 3 --store sqlite:////home/me/rooms.db
    """
    with needs("MCP", "mcp"):
        from stateroom.server import run_stdio  # noqa: PLC0415 - not every command needs a server
    environment = make_environment(env, env_args_of(env_arg))
    rows = find_tasks(environment, input_file)
    if task >= len(rows):
        raise NotFound(f"there is no task {task}; the tasks are 0 to {len(rows) - 1}")

    def announce(session: str) -> None:
        place = "" if environment.state_type is None else f" in {without_secrets(store)}"
        errors.print(f"{environment.name}, task {task}: session {session}{place}", soft_wrap=True)

    run_stdio(environment, store, rows[task], announce)
