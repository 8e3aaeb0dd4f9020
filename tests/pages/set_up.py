"""Commands that set this project up: they would need a network, or have been done. They are looked at, and not run."""

import re
import tomllib
from pathlib import Path

from tests.pages.errors import PageError
from tests.pages.steps import Command

ROOT = Path(__file__).parents[2]


def is_set_up(command: Command) -> bool:
    """Whether a command is one of these.

    Raises:
        PageError: It would not work, or shows an output that nobody checks.
    """
    match command.text.split():
        case ["make", target]:
            possible = target in re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        case ["pip" | ".venv/bin/pip", "install", *_]:
            extras = re.search(r"\[(.*)\]", command.text)
            possible = not extras or set(extras[1].split(",")) <= _extras()
        case ["git", "clone", _] | ["python3" | "python", "-m", "venv", _] | ["." | "source", ".venv/bin/activate"]:
            possible = True
        case _:
            return False
    if not possible:
        raise PageError(f"{command.text}\nis not possible")
    if command.shown:
        raise PageError(f"{command.text}\nshows an output that nobody checks")
    return True


def _extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])
