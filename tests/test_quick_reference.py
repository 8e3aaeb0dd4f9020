"""The quick reference is complete: what it lists is what there is."""

import inspect
import re
from pathlib import Path
from typing import get_args

from stateroom import Session, errors
from stateroom.environment import RESERVED
from stateroom.environment.environment import REPLY_INJECTED, SEED_INJECTED, VERIFY_INJECTED
from stateroom.session import INJECTED, Code
from stateroom.store.url import BUILT_IN, COMMON
from tests.commands import LEAVES

PAGE = (Path(__file__).parent.parent / "docs" / "guides" / "quick-reference.md").read_text(encoding="utf-8")

FOR_AGENTS = {"opens", "reads", "replies", "tools"}
"""What a session has for the loop of an agent, and nobody else calls."""

NOT_SERVED = {"run", "v1", "start_session"}
"""Names that no tool can have because servers of other kinds have them, or MCP clients get such a tool."""


def section(title: str) -> str:
    return re.split(r"^## ", PAGE, flags=re.MULTILINE)[[*re.findall(r"^## (.+)$", PAGE, re.MULTILINE)].index(title) + 1]


def rows(title: str, header: str) -> list[list[str]]:
    """The cells of a table, by row, each with the code in it."""
    lines = section(title).partition(f"{header}\n")[2].partition("\n")[2].splitlines()
    table = lines[: next((place for place, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [re.findall(r"`([^`]+)`", line.split("|")[1]) for line in table]


def first_words(title: str, header: str) -> set[str]:
    return {re.match(r"\w+", code)[0] for cell in rows(title, header) for code in cell}  # type: ignore[index]


def test_the_parameters_that_are_filled_in() -> None:
    assert first_words("Tools", "| name | gets | in |") == {
        *INJECTED,
        *SEED_INJECTED,
        *VERIFY_INJECTED,
        *REPLY_INJECTED,
    }


def test_what_a_session_does() -> None:
    there_is = {name for name in dir(Session) if not name.startswith("_")} - FOR_AGENTS
    assert first_words("Sessions", "| `session.` | does |") == there_is


def test_commands() -> None:
    listed = [cell[0] for cell in rows("Commands", "| command | does |")]
    assert {re.fullmatch(r"stateroom ([a-z ]+?)(?: [A-Z].*)?", code)[1] for code in listed} == LEAVES  # type: ignore[index]


def test_stores() -> None:
    schemes = set(re.findall(r"`([a-z0-9+]+)(?:://[^`]*)?`", section("Stores")))
    assert schemes <= set(BUILT_IN)
    assert {BUILT_IN[scheme] for scheme in schemes} == set(BUILT_IN.values())
    assert set(re.findall(r"`([a-z]+)=", section("Stores"))) == COMMON


def test_routes() -> None:
    paths = "".join(re.findall(r"`[^`]+`", section("Routes")))
    assert set(re.findall(r"/([a-z][a-z_.]+)", paths)) == RESERVED - NOT_SERVED


def test_errors_and_codes() -> None:
    there_are = {name for name, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, Exception)}
    assert set(re.findall(r"`([A-Z]\w+)`", section("Errors"))) == there_are
    assert set(re.findall(r"`([a-z_]+)`", section("Errors"))) == set(get_args(Code))
