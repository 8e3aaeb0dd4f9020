"""`stateroom init`: what it makes works at once, and is good to learn from."""

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Refuses
from tests.processes import QUICK_PYTEST

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial" / "environment.md"
MOST = 30
"""Lines of code that an author should need."""

BESIDE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(source: str) -> int:
    """How many lines of a module are neither empty, nor comments, nor docstrings."""
    said: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match getattr(node, "body", None):
            case [ast.Expr(ast.Constant()) as docstring, *_]:
                said.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    used = {line for token in tokens if token.type not in BESIDE for line in range(token.start[0], token.end[0] + 1)}
    return len(used - said)


def files_of(page: str) -> dict[str, str]:
    """The Python files that a page writes, as they are in the end."""
    return dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL))


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **QUICK_PYTEST}
    return subprocess.run([*map(str, command)], cwd=cwd, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture
def shop(stateroom: Command, tmp_path: Path) -> Path:
    assert stateroom("init", "my-shop").code == 0
    return tmp_path / "my-shop"


@pytest.mark.parametrize(
    ("name", "environment"),
    [("my_shop", "MyShopEnvironment"), ("desk2", "Desk2Environment"), ("a-b_c", "ABCEnvironment")],
)
def test_a_name_becomes_a_module_and_a_class(stateroom: Command, tmp_path: Path, name: str, environment: str) -> None:
    assert stateroom("init", name, "--output", "environments/mine").code == 0
    module = name.replace("-", "_")
    source = (tmp_path / "environments" / "mine" / name / f"{module}.py").read_text()
    assert f"class {environment}(" in source
    assert f"from {module}_policies import" in source
    assert "$" not in source


@pytest.mark.parametrize(
    "name",
    ["2shop", "my shop", "MyShop", "../shop", "_shop", "größe", "class", "match", "calendar", "stateroom", "s" * 41],
)
def test_a_name_that_cannot_be_is_refused(refuses: Refuses, tmp_path: Path, name: str) -> None:
    refuses("init", name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_as_it_is(refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "my-shop").mkdir()
    refuses("init", "my-shop")
    assert list((tmp_path / "my-shop").iterdir()) == []


READS = 'assert episode.response["output"][-1]["role"] == "assistant"\n        return float(state.items'


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("return float(state.items", READS, "4 passed"),
        ("state.items[item] -= count", "pass", "3 failed, 1 passed"),
    ],
    ids=["reads the response", "does nothing"],
)
def test_its_tests_pass_for_another_verifier_and_can_fail(shop: Path, old: str, new: str, told: str) -> None:
    code = shop / "my_shop.py"
    code.write_text(code.read_text().replace(old, new))
    done = run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", cwd=shop)
    assert done.returncode == int("failed" in told), done.stdout
    assert told in done.stdout


def test_check_and_run_take_it_by_its_path(stateroom: Command, shop: Path) -> None:
    checked = stateroom("check", "my-shop/my_shop.py:MyShopEnvironment", "--json")
    assert checked.code == 0
    assert '"result": "warning"' not in checked.out
    done = stateroom("run", "my-shop/my_shop.py:MyShopEnvironment", "--json")
    assert done.code == 0
    assert '"mean/reward": 1.0' in done.out


def test_its_code_is_well_formed(shop: Path) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    for length in (88, 120):
        done = run(ruff, "format", "--isolated", "--check", "--no-cache", f"--line-length={length}", ".", cwd=shop)
        assert done.returncode == 0, done.stdout
    rules = ("--select=E,F,W,I,UP,B,SIM,PT,RUF,D2,D3", "--ignore=RUF012,D203,D213,D212")
    done = run(ruff, "check", "--isolated", "--no-cache", *rules, ".", cwd=shop)
    assert done.returncode == 0, done.stdout


def test_its_code_is_well_typed(shop: Path) -> None:
    mypy = Path(sys.executable).with_name("mypy")
    done = run(mypy, "--strict", *shop.glob("*.py"), cwd=ROOT)  # whose cache knows all that it imports
    assert done.returncode == 0, done.stdout


def test_it_is_short(shop: Path) -> None:
    assert lines_of_code((shop / "my_shop.py").read_text()) <= MOST


def test_the_guide_needs_few_lines_of_the_authors(shop: Path) -> None:
    files = files_of(TUTORIAL.read_text(encoding="utf-8"))
    assert files
    assert sum(map(lines_of_code, files.values())) <= MOST
