"""Our adapters with releases of trainers that do not fit into our own environment.

`make test-more` installs verl, and the oldest TRL that we support, in one of their own; its Python runs these tests.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.more import TRAINERS

pytestmark = pytest.mark.more("verl")

HERE = Path(__file__).parent


def run_with_trainers(tests: Path) -> None:
    """Run a file of tests; warnings of packages that are old by now are no errors."""
    command: list[Any] = [TRAINERS / "bin" / "python", "-m", "pytest", "-q", "-W", "default", tests]
    done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]


def test_the_agent_loop_works_among_verl_s_own_classes() -> None:
    run_with_trainers(HERE / "verl_program.py")


def test_the_trl_adapter_works_with_its_oldest_release_too() -> None:
    run_with_trainers(HERE / "test_trl.py")
