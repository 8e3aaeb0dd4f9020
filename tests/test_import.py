"""`import stateroom` is light: a part is loaded when it is first used."""

import ast
import json
import subprocess
import sys
from importlib import import_module

import pytest

from tests.patience import PATIENCE

HEAVY = ["typer", "rich", "sqlite3", "docstring_parser"]
AUTHOR = ["asyncio", "tarfile", "stateroom.model", "stateroom.agent", "stateroom.store", "stateroom.session.session"]
LAZY = ["stateroom", "stateroom.environment", "stateroom.session", "stateroom.state.comparison"]


def loaded_by(statement: str, heavy: list[str] = HEAVY) -> list[str]:
    program = f"import json, sys\n{statement}\nprint(json.dumps([name for name in {heavy} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE)
    return json.loads(done.stdout)


def test_importing_stateroom_loads_nothing_heavy() -> None:
    assert loaded_by("import stateroom") == []


def test_neither_does_using_its_names() -> None:
    assert loaded_by("from stateroom import *\nassert Sessions and Environment and open_store and State") == []


def test_an_author_loads_neither_models_nor_agents_nor_stores() -> None:
    assert loaded_by("from stateroom import Environment, State, tool", HEAVY + AUTHOR) == []


@pytest.mark.parametrize("package", LAZY)
def test_a_lazy_name_is_the_one_that_type_checkers_see(package: str) -> None:
    module = import_module(package)
    assert module.__file__ is not None
    with open(module.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    [checked] = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom) and node.module]
    names = [(node.module, alias.name) for node in imports for alias in node.names]
    assert [name for home, name in names if getattr(module, name) is not getattr(import_module(home), name)] == []
    assert {name for name in module.__all__ if not hasattr(module, name)} == set()
    assert not hasattr(module, "nonsense")


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_module_would_be_noticed(name: str) -> None:
    assert name in loaded_by(f"import stateroom, {name}")
