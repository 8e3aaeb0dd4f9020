"""`import stateroom` is light: a part is loaded when it is first used."""

import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import stateroom
from tests.patience import PATIENCE

HEAVY = ["typer", "rich", "sqlite3", "docstring_parser", "starlette", "openai", "yaml"]
HEAVY += ["pandas", "matplotlib", "uvicorn"]
AUTHOR = ["asyncio", "tarfile", "stateroom.model", "stateroom.agent", "stateroom.store", "stateroom.session.session"]
LAZY = [
    "stateroom",
    *(f"stateroom.{path.parent.name}" for path in Path(stateroom.__file__).parent.glob("*/__init__.pyi")),
]


def loaded_by(statement: str, heavy: list[str] = HEAVY) -> list[str]:
    program = f"import json, sys\n{statement}\nprint(json.dumps([name for name in {heavy} if name in sys.modules]))"
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=unmeasured, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return json.loads(done.stdout)


def test_using_the_names_of_stateroom_loads_nothing_heavy() -> None:
    statements = "import builtins\nfrom stateroom import *\nassert Sessions and Environment and open_store and State"
    statements += "\nassert run and serve and open is builtins.open"
    assert loaded_by(statements) <= ["sqlite3"]  # which `run` reads the files of runs with


def test_an_author_loads_neither_models_nor_agents_nor_stores() -> None:
    assert loaded_by("from stateroom import Environment, State, tool", HEAVY + AUTHOR) == []


def test_only_the_engine_of_that_name_loads_ray(tmp_path: Path) -> None:
    arguments = ["stateroom", "run", "weather", "--engine", "processes:1", "--output", f"{tmp_path}/a.jsonl"]
    statement = f"import contextlib, io\nfrom stateroom.cli import main\nsys.argv = {arguments}\n"
    statement += "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n    main()"
    assert loaded_by(statement, ["ray", "stateroom.rollout.engines.ray"]) == []
    assert (tmp_path / "a.jsonl").exists()


@pytest.mark.parametrize("package", LAZY)
def test_every_name_of_a_package_can_be_loaded(package: str) -> None:
    module = import_module(package)
    names = [name for name in module.__all__ if name != "Trainer" or find_spec("torch")]
    assert [name for name in names if not hasattr(module, name)] == []
    assert not hasattr(module, "nonsense")


def test_a_heavy_module_would_be_noticed() -> None:
    assert loaded_by(f"import stateroom, {', '.join(HEAVY)}") == HEAVY
