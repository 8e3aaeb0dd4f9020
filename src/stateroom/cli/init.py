"""`stateroom init`: a first environment of one's own, in a folder."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword, issoftkeyword
from pathlib import Path
from shlex import quote
from string import Template
from typing import Annotated

import typer

from stateroom.cli.output import console, table
from stateroom.errors import CannotWrite

LONGEST = 40
"""Characters that a name may have, so that no line of code gets too long."""

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
    _show(folder, names, list(written))


def _names(name: str) -> dict[str, str]:
    """What the templates are filled with; a name that cannot be a module's is refused."""
    module = name.replace("-", "_")
    if not (module.isidentifier() and module.isascii() and module == module.lower() and module[0] != "_"):
        raise typer.BadParameter(
            f"{name!r} should start with a letter, and have only small letters, digits, - and _, as my-shop has",
            param_hint="NAME",
        )
    if len(module) > LONGEST:
        raise typer.BadParameter(f"{name!r} is longer than {LONGEST} characters", param_hint="NAME")
    if iskeyword(module) or issoftkeyword(module):
        raise typer.BadParameter(f"{module!r} is a word of Python's; choose another", param_hint="NAME")
    if find_spec(module) is not None:
        raise typer.BadParameter(
            f"there is a module {module!r} already, which yours would hide; choose another name", param_hint="NAME"
        )
    title = "".join(part.capitalize() for part in module.split("_"))
    return {"name": name, "module": module, "environment": f"{title}Environment"}


def _filled(template: str, names: dict[str, str]) -> str:
    text = (files("stateroom.cli") / "scaffold" / template).read_text(encoding="utf-8")
    return Template(text).substitute(names)


def _show(folder: Path, names: dict[str, str], written: list[str]) -> None:
    made = table("file!", "what it is", title=f"{folder} has:")
    for file, (_, what) in zip(written, TEMPLATES.values(), strict=True):
        made.add_row(file, what)
    console.print(made)
    env = f"{names['module']}.py:{names['environment']}"
    console.print("\nNext:", style="bold")
    for command in (
        f"cd {quote(str(folder))}",
        *(["pip install pytest"] if find_spec("pytest") is None else []),
        "pytest",
        f"stateroom check {env}",
        f"stateroom run {env}",
    ):
        console.print(f"  {command}", soft_wrap=True)
    console.print(f"Then change {names['module']}.py into what you need.", soft_wrap=True)
