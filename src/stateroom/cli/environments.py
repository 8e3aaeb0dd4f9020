"""`stateroom init`, `check`, `environments` and `tasks`: what can be run, and whether it works."""

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
"""Characters that a name may have, so that no line of code gets too long."""

MAX_LINES = 3
"""Lines of a finding that are shown; --json has all."""

STYLES = {"ok": "green", "warning": "yellow", "problem": "red", "skipped": "dim"}

TEMPLATES = {
    "environment.py.template": ("$module.py", "the environment: a state, three tools, a verifier"),
    "policies.py.template": ("${module}_policies.py", "the reference policy, which solves every task"),
    "tasks.jsonl.template": ("tasks.jsonl", "three tasks"),
    "tests.py.template": ("test_$module.py", "tests, which pass"),
    "README.md.template": ("README.md", "what is here, and the commands"),
}
"""What is made of each template: a file, and what it is."""


def init(
    name: Annotated[str, typer.Argument(help="What it is called, such as my-shop.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where its folder is made.")] = Path(),
) -> None:
    """Make a folder with an environment to start from: its class, tasks, a policy, tests and a README.

    Example: stateroom init my-shop

    Example: stateroom init my_shop --output environments
    """
    names = _names(name)
    folder = output / name
    written = {Template(file).substitute(names): _filled(template, names) for template, (file, _) in TEMPLATES.items()}
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise CannotWrite(f"{folder} is there already; choose another name, or another folder with --output") from None
    for file, text in written.items():
        (folder / file).write_text(text, encoding="utf-8")
    _print_folder(folder, names, list(written))


def _names(name: str) -> dict[str, str]:
    """What the templates are filled with; a name that cannot be a module's is refused."""
    module = name.replace("-", "_")
    if not (module.isidentifier() and module.isascii() and module == module.lower() and module[0] != "_"):
        fault = f"{name!r} should start with a letter, and have only small letters, digits, - and _, as my-shop has"
    elif len(module) > MAX_NAME_CHARACTERS:
        fault = f"{name!r} is longer than {MAX_NAME_CHARACTERS} characters"
    elif iskeyword(module) or issoftkeyword(module):
        fault = f"{module!r} is a word of Python's; choose another"
    elif find_spec(module) is not None:
        fault = f"there is a module {module!r} already, which yours would hide; choose another name"
    else:
        title = "".join(part.capitalize() for part in module.split("_"))
        return {"name": name, "module": module, "environment": f"{title}Environment"}
    raise InvalidOption("name", fault)


def _filled(template: str, names: dict[str, str]) -> str:
    text = (files("stateroom.cli") / "scaffold" / template).read_text(encoding="utf-8")
    return Template(text).substitute(names)


def _print_folder(folder: Path, names: dict[str, str], written: list[str]) -> None:
    rows = [(file, what) for file, (_, what) in zip(written, TEMPLATES.values(), strict=True)]
    print_table(("file!", "what it is"), rows, title=f"{folder} has:")
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
    say(f"Then change {names['module']}.py into what you need.")


@options
class CheckOptions(NamedEnvironment):
    """What is checked."""

    input: Annotated[
        Path | None,
        Field(description="Tasks as JSONL; by default the environment's examples, or else generated tasks."),
        Option("-i"),
    ] = None
    everything: Annotated[
        bool, Field(description="Play all tasks; by default 20, evenly spread."), Option(flag="--all")
    ] = False


def check(options: CheckOptions) -> Output:
    """Check an environment: its schema, tasks, tools and verifier, and what it does with its state.

    Tasks are played in memory by four policies: the environment's reference,
    a random one that calls all tools except external ones, one that does
    nothing, and one that leaves out the reference's last reads and its answer;
    then again, and in turns. External tools that the reference policy
    calls really run.

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
    print_table(("check!", "result!", "what was found"), rows)
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
    rest = "; --all plays each" if report.played < report.tasks else ""
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
