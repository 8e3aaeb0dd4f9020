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
from tests.messages import says
from tests.processes import QUICK_PYTEST

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "own-environment.md"
MOST = 30
"""Lines of code that an author should need."""

BESIDE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(source: str) -> int:
    """How many lines of a module are neither empty, nor comments, nor docstrings."""
    said: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            said.update(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
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


def test_it_makes_a_folder_and_says_what_to_do_next(stateroom: Command, tmp_path: Path) -> None:
    done = stateroom("init", "my-shop")
    assert (done.code, done.err) == (0, "")
    files = {path.name for path in (tmp_path / "my-shop").iterdir()}
    assert files == {"my_shop.py", "my_shop_policies.py", "tasks.jsonl", "test_my_shop.py", "README.md"}
    assert all(name in done.out for name in files)
    says(done.out)


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


@pytest.mark.parametrize("verifier", ["return float(state.items", READS], ids=["as it is", "reads the response"])
def test_its_tests_pass_at_once(shop: Path, verifier: str) -> None:
    code = shop / "my_shop.py"
    code.write_text(code.read_text().replace("return float(state.items", verifier))
    done = run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", cwd=shop)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_its_tests_can_fail(shop: Path) -> None:
    path = shop / "my_shop.py"
    path.write_text(path.read_text().replace("state.items[item] -= count", "pass"))
    done = run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", cwd=shop)
    assert done.returncode == 1
    assert "3 failed, 1 passed" in done.stdout


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
    done = run(
        ruff,
        "check",
        "--isolated",
        "--no-cache",
        "--select=E,F,W,I,UP,B,SIM,PT,RUF,D2,D3",
        "--ignore=RUF012,D203,D213,D212",
        ".",
        cwd=shop,
    )
    assert done.returncode == 0, done.stdout


def test_its_code_is_well_typed(shop: Path) -> None:
    mypy = Path(sys.executable).with_name("mypy")
    done = run(mypy, "--strict", *shop.glob("*.py"), cwd=ROOT)  # whose cache knows all that it imports
    assert done.returncode == 0, done.stdout


def test_it_is_short(shop: Path) -> None:
    assert lines_of_code((shop / "my_shop.py").read_text()) <= MOST


def test_the_guide_needs_few_lines_of_the_authors(shop: Path) -> None:
    files = files_of(GUIDE.read_text(encoding="utf-8"))
    assert files
    assert sum(map(lines_of_code, files.values())) <= MOST
