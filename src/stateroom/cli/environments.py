"""`stateroom environments` and `stateroom tasks`: what can be run."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from stateroom.cli.options import AsJSON
from stateroom.cli.output import console, print_json, table
from stateroom.environment import find_environment, registered
from stateroom.rollout import example_file, generate_tasks, read_tasks


def environments(json_output: AsJSON = False) -> None:
    """List the registered environments.

    Example: stateroom environments
    """
    found = [_describe(name) for name in registered()]
    if json_output:
        print_json(found)
        return
    made = table("name!", "what", "state!", "tools#", "policies!", "tasks#")
    for row in found:
        policies = "\n".join(row["policies"])
        made.add_row(
            row["name"], row["what"], row["state"] or "none", str(len(row["tools"])), policies, str(row["examples"])
        )
    console.print(made)


def tasks(
    env: Annotated[str, typer.Argument(help="A registered name, module:Class or path.py:Class.")],
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="How many.")] = 10,
    seed: Annotated[int, typer.Option(help="The same seed gives the same tasks.")] = 0,
) -> None:
    """Generate tasks as JSONL on standard output.

    Example: stateroom tasks counter --number 100 > tasks.jsonl
    """
    for row in generate_tasks(find_environment(env), number, seed):
        print_json(row)


def _describe(name: str) -> dict[str, Any]:
    environment = find_environment(name)
    examples = example_file(environment)
    return {
        "name": name,
        "what": (inspect.getdoc(environment) or "").partition("\n")[0],
        "state": environment.state_type.__name__ if environment.state_type else None,
        "tools": sorted(environment().tools),
        "examples": len(read_tasks(examples, environment())) if examples else 0,
        "policies": sorted(environment.policies),
    }
