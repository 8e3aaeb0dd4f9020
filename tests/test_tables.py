"""Tables in the pages are complete: they list what the code has."""

import re
from pathlib import Path
from typing import get_args

from stateroom import Session
from stateroom.environment import RESERVED
from stateroom.environment.environment import REPLY_INJECTED, SEED_INJECTED, VERIFY_INJECTED
from stateroom.session import INJECTED, Code
from stateroom.store.url import BUILT_IN, COMMON

DOCS = Path(__file__).parent.parent / "docs"

FOR_AGENTS = {"opens", "reads", "replies", "tools"}
"""Members of a session that only the loop of an agent uses."""

BELOW_OTHERS = {"responses", "studio"}
"""Parts of paths that no tool name can clash with: they stand below others, or come with an option."""


def codes(page: str, header: str, column: int = 1) -> list[str]:
    """The code spans in one column of the table that has this header."""
    table = (DOCS / page).read_text(encoding="utf-8").partition(f"| {header} |")[2].partition("\n\n")[0]
    return [code for row in table.splitlines()[2:] for code in re.findall(r"`([^`]+)`", row.split("|")[column])]


def names(page: str, header: str) -> set[str]:
    return {re.match(r"\w+", code)[0] for code in codes(page, header)}  # type: ignore[index]


def test_parameters_that_are_injected() -> None:
    injected = {*INJECTED, *SEED_INJECTED, *VERIFY_INJECTED, *REPLY_INJECTED}
    assert names("environments.md", "parameter | value | available in") == injected


def test_members_of_a_session() -> None:
    members = {name for name in dir(Session) if not name.startswith("_")} - FOR_AGENTS
    assert names("sessions.md", "method | what it does") == members


def test_urls_of_stores() -> None:
    text = (DOCS / "stores.md").read_text(encoding="utf-8")
    schemes = set(re.findall(r"`([a-z0-9+]+)://", text))
    assert schemes <= set(BUILT_IN)
    assert {BUILT_IN[scheme] for scheme in schemes} == set(BUILT_IN.values())
    assert names("stores.md", "option | effect") == COMMON


def test_endpoints() -> None:
    paths = " ".join(codes("serving.md", "endpoint | what it does"))
    assert set(re.findall(r"/([a-z][a-z_.]+)", paths)) - BELOW_OTHERS == RESERVED - {"start_session", "v1"}


def test_codes_of_failed_calls() -> None:
    text = (DOCS / "sessions.md").read_text(encoding="utf-8")
    guarantee = text.partition("A failed call changes nothing")[2].partition("\n- ")[0]
    assert set(re.findall(r"`([a-z_]+)`", guarantee)) - {"error", "code"} == set(get_args(Code))
