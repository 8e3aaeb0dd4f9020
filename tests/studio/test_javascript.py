"""The page's JavaScript: its format, its types and its own tests, with Node."""

import subprocess
from pathlib import Path

import pytest

from tests.more import NODE

JS = Path(__file__).parent / "js"
STATIC = Path(__file__).parents[2] / "src" / "stateroom" / "studio" / "static"
TOOLS = NODE / "node_modules" / ".bin"

pytestmark = pytest.mark.node


def check(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=JS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_biome_finds_nothing() -> None:
    check(TOOLS / "biome", "check", "--error-on-warnings", STATIC, JS)


def test_the_types_hold() -> None:
    check(TOOLS / "tsc", "--project", JS)


def test_the_modules_keep_their_promises() -> None:
    check("node", "--test", *sorted(JS.glob("*.test.js")))
