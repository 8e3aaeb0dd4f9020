"""`import stateroom` is light: what only some need is loaded when it is needed."""

import json
import subprocess
import sys

import pytest

from tests.patience import PATIENCE

HEAVY = ["typer", "rich", "sqlite3", "docstring_parser", "starlette"]


def loaded_by(statement: str) -> list[str]:
    program = f"import json, sys\n{statement}\nprint(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE)
    return json.loads(done.stdout)


def test_importing_stateroom_loads_nothing_heavy() -> None:
    assert loaded_by("import stateroom") == []


def test_neither_does_using_its_names() -> None:
    assert loaded_by("from stateroom import *\nassert Sessions and Environment and open_store and State") == []


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_module_would_be_noticed(name: str) -> None:
    assert name in loaded_by(f"import stateroom, {name}")
