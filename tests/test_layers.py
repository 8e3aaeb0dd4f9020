"""Imports point downward: each package uses only the shared modules and the packages before it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "stateroom"
ORDER = [
    *("state", "store", "session", "environment", "model", "agent", "rollout", "data", "training", "adapters"),
    *("server", "studio", "config", "cli", "gallery"),
]

SHARED = ("errors", "jsonl", "locks", "lru", "options", "pauses", "version")
"""Modules that any package may import."""


def allowed(home: str, name: str) -> bool:
    """True when a module of the package `home` may import what lies at a dotted name below `stateroom`."""
    package = name.partition(".")[0]
    if package == "adapters":  # for users of other frameworks; nothing of ours needs one
        return home == "adapters"
    if home == "gallery":  # written as a user would, on what the package shows to the world
        return package not in ("cli", "server", "studio")
    return package in (*SHARED, home, *ORDER[: ORDER.index(home)])


def imports(tree: ast.AST, package: list[str]) -> Iterator[str]:
    """The dotted names that a module imports, anywhere in it; `package` is the one that it is in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def wrong_ways(source: str, parts: tuple[str, ...]) -> list[str]:
    """The imports of a module, at `parts` below the root, that point the wrong way."""
    package = ["stateroom", *parts[:-1]]
    home = parts[0]
    found = []
    for name in imports(ast.parse(source), package):
        top, _, rest = name.partition(".")
        if top == "stateroom" and not allowed(home, rest):
            found.append(name)
    return found


@pytest.mark.parametrize("package", sorted(path.parent.name for path in ROOT.glob("*/__init__.py")))
def test_imports_point_downward(package: str) -> None:
    assert package in ORDER, f"{package} has no place in the order of packages"
    modules = [path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")]
    wrong = {str(module): wrong_ways((ROOT / module).read_text(), module.parts) for module in modules}
    assert {module: names for module, names in wrong.items() if names} == {}


@pytest.mark.parametrize("module", SHARED)
def test_shared_modules_import_nothing_of_ours_but_the_errors(module: str) -> None:
    names = imports(ast.parse((ROOT / f"{module}.py").read_text()), ["stateroom"])
    own = [name for name in names if name.startswith("stateroom")]
    assert [name for name in own if module == "errors" or not name.startswith("stateroom.errors.")] == []


@pytest.mark.parametrize(
    ("home", "source"),
    [
        ("state", "import stateroom.store"),
        ("state", "from stateroom.store import Store"),
        ("state", "from stateroom import store"),
        ("state", "from stateroom import State"),
        ("state", "import stateroom"),
        ("store", "from ..session import Session"),
        ("store", "from .. import session"),
        ("session", "def later():\n    from stateroom.environment import Environment"),
        ("session", "if TYPE_CHECKING:\n    from stateroom.agent import Agent"),
        ("rollout", "from stateroom.training import sequences"),
        ("environment", "from stateroom.adapters.langgraph import StateroomSaver"),
        ("cli", "from stateroom.gallery import counter"),
        ("gallery", "import stateroom.cli.output"),
        ("gallery", "import stateroom.server"),
        ("gallery", "from stateroom import cli"),
        ("server", "from stateroom.studio import Studio"),
    ],
)
def test_a_wrong_way_is_seen(home: str, source: str) -> None:
    assert wrong_ways(source, (home, "module.py"))
