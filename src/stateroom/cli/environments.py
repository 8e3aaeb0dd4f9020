"""`stateroom init`, `check`, `environments` and `tasks`: create, check and list environments."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import asdict
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword, issoftkeyword
from pathlib import Path
from shlex import quote
from string import Template
from typing import Annotated, Any

import typer
from pydantic import Field
from rich.text import Text

from stateroom.cli.command import Output
from stateroom.cli.options import EnvArgument, NamedEnvironment
from stateroom.cli.output import console, counted, print_json, print_table, say, shown_progress
from stateroom.environment import Environment, find_environment, registered
from stateroom.errors import CannotWrite, DefinitionError, InvalidOption
from stateroom.options import Option, options
from stateroom.rollout import (
    CheckReport,
    Finding,
    check_environment,
    example_file,
    generate_tasks,
    read_tasks,
)

MAX_NAME_CHARACTERS = 40
"""The longest name, which keeps lines of generated code short."""

MAX_LINES = 3
"""Lines shown per finding; --json has all."""

STYLES = {"ok": "green", "warning": "yellow", "problem": "red", "skipped": "dim"}

TEMPLATES = {
    "environment.py.template": ("$module.py", "the environment: a state, three tools and a verifier"),
    "policies.py.template": ("${module}_policies.py", "the reference policy that solves every task"),
    "tasks.jsonl.template": ("tasks.jsonl", "three tasks"),
    "tests.py.template": ("test_$module.py", "tests that pass"),
    "README.md.template": ("README.md", "an overview, and the commands"),
}
"""The file for each template, and its description."""


def init(
    name: Annotated[str, typer.Argument(help="The name, such as my-shop.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The parent folder.")] = Path(),
) -> None:
    """Create a folder with a starter environment: its class, tasks, a policy, tests and a README.

    Example: stateroom init my-shop

    Example: stateroom init my_shop --output environments
    """
    names = _names(name)
    folder = output / name
    written = {Template(file).substitute(names): _filled(template, names) for template, (file, _) in TEMPLATES.items()}
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise CannotWrite(f"{folder} already exists; choose another name, or another folder with --output") from None
    for file, text in written.items():
        (folder / file).write_text(text, encoding="utf-8")
    _print_folder(folder, names, list(written))


def _names(name: str) -> dict[str, str]:
    """The values for the templates; refuses a name that cannot name a module."""
    module = name.replace("-", "_")
    if not (module.isidentifier() and module.isascii() and module == module.lower() and module[0] != "_"):
        fault = f"{name!r} is not a valid name; start with a letter, and use lowercase letters, digits, - and _"
    elif len(module) > MAX_NAME_CHARACTERS:
        fault = f"{name!r} is longer than {MAX_NAME_CHARACTERS} characters"
    elif iskeyword(module) or issoftkeyword(module):
        fault = f"{module!r} is a Python keyword; choose another name"
    elif find_spec(module) is not None:
        fault = f"{module!r} would hide an existing module; choose another name"
    else:
        title = "".join(part.capitalize() for part in module.split("_"))
        return {"name": name, "module": module, "environment": f"{title}Environment"}
    raise InvalidOption("name", fault)


def _filled(template: str, names: dict[str, str]) -> str:
    text = (files("stateroom.cli") / "scaffold" / template).read_text(encoding="utf-8")
    return Template(text).substitute(names)


def _print_folder(folder: Path, names: dict[str, str], written: list[str]) -> None:
    rows = [(file, what) for file, (_, what) in zip(written, TEMPLATES.values(), strict=True)]
    print_table(("file!", "description"), rows, title=f"Created {folder} with:")
    env = f"{names['module']}.py:{names['environment']}"
    console.print("\nNext:", style="bold")
    for command in (
        f"cd {quote(str(folder))}",
        *(["pip install pytest"] if find_spec("pytest") is None else []),
        "pytest",
        f"stateroom check {env}",
        f"stateroom run {env}",
    ):
        say(f"  {command}")
    say(f"Then adapt {names['module']}.py to your needs.")


@options
class CheckOptions(NamedEnvironment):
    """The environment and the tasks to check."""

    input: Annotated[
        Path | None,
        Field(description="Tasks as JSONL; by default the environment's examples, otherwise generated tasks."),
        Option("-i"),
    ] = None
    everything: Annotated[
        bool, Field(description="Play all tasks instead of 20 evenly spaced ones."), Option(flag="--all")
    ] = False


def check(options: CheckOptions) -> Output:
    """Check an environment: its schema, tasks, tools, verifier and state handling.

    Four policies play the tasks in memory: the environment's reference policy,
    a random one that calls all tools except external ones, one that does
    nothing, and one that skips the reference's last reads and its answer. The
    episodes are then repeated, and interleaved. External tools that the
    reference policy calls run for real.

    The exit code is 1 if there is a problem; warnings do not count. --json
    lists the reference's outcome for each task.

    Example: stateroom check counter

    Example: stateroom check mine.py:MyEnvironment --input more.jsonl --all
    """
    try:
        environment = find_environment(options.environment)
    except DefinitionError as error:
        report = CheckReport.undefined(options.environment, str(error))
    else:
        report = asyncio.run(_check(environment, options))
    return Output(lambda: _report_data(report), lambda: _print_report(report), 1 if report.problems else 0)


async def _check(environment: type[Environment[Any, Any]], options: CheckOptions) -> CheckReport:
    how: dict[str, Any] = {"env_args": options.env_args, "everything": options.everything}
    async with shown_progress(f"playing {environment.name}") as step:
        return await check_environment(environment, options.input, **how, on_play=step)


def _report_data(report: CheckReport) -> dict[str, Any]:
    return {
        "environment": report.environment,
        "ok": not report.problems,
        "tasks": report.tasks,
        "played": report.played,
        "outcomes": [outcome._asdict() for outcome in report.outcomes],
        "checks": [asdict(finding) for finding in report.findings],
    }


def _print_report(report: CheckReport) -> None:
    rows = [
        (finding.check, Text(finding.result, STYLES[finding.result]), _first_lines(finding))
        for finding in report.findings
    ]
    print_table(("check!", "result!", "findings"), rows)
    console.print()
    say(_conclusion(report))


def _conclusion(report: CheckReport) -> Text:
    results = [finding.result for finding in report.findings]
    counts = [
        counted(results.count(kind), f"check with a {kind}", f"checks with a {kind}")
        for kind in ("problem", "warning")
        if kind in results
    ]
    worst = "problem" if report.problems else "ok"
    rest = " (all with --all)" if report.played < report.tasks else ""
    played = f"; played {report.played} of {counted(report.tasks, 'task', 'tasks')}{rest}" if report.tasks else ""
    return Text.assemble((f"{report.environment}: {', '.join(counts) or 'no problem'}", STYLES[worst]), played)


def _first_lines(finding: Finding) -> str:
    more = len(finding.found) - MAX_LINES
    lines = finding.found[:MAX_LINES] + ([f"and {more} more; --json lists them all"] if more > 0 else [])
    return "\n".join(lines)


def environments() -> Output:
    """List the registered environments.

    Example: stateroom environments
    """
    described = [*map(_describe, registered())]
    rows = [
        (
            row["name"],
            row["what"],
            row["state"] or "none",
            len(row["tools"]),
            "\n".join(row["policies"]),
            row["examples"],
        )
        for row in described
    ]
    columns = ("name!", "what", "state!", "tools#", "policies!", "tasks#")
    return Output(lambda: described, lambda: print_table(columns, rows))


def tasks(
    env: EnvArgument,
    number: Annotated[int, typer.Option("--number", "-n", min=1, help="The number of tasks.")] = 10,
    seed: Annotated[int, typer.Option(help="The random seed; the same seed gives the same tasks.")] = 0,
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
