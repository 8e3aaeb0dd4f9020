"""`make test-all`: the wheel, the sdist and the suite on each Python that Stateroom supports.

The wheel and the sdist are built once. Each Python installs them in empty environments, the wheel without extras and
with `[server]`, and runs episodes in an empty folder. Then the suite of `make test` runs on an editable install,
without its browser tests. All environments are in `.venv/all`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.box import MARKDOWN
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.more import find_python

PACKAGES = ("wheel", "wheel[server]", "sdist")
OUTCOMES = ("passed", "skipped", "failed", "error")
SUITE = ("-n", "auto", "-m", "not more and not browser")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = tuple(re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"])))
PLACE = ROOT / ".venv" / "all"
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
ENVIRON["STATEROOM_SECRET"] = "a secret for the server of these tests"


class Failure(Exception):
    """Something does not work on a Python."""


@dataclass
class Result:
    """What works on one Python."""

    version: str
    python: str | None
    """Its interpreter, if there is one."""
    packages: set[str] = field(default_factory=set)
    """Those of `PACKAGES` that install and run."""
    passed: bool = False
    """Whether the suite ran, and passed."""
    tests: dict[str, int] = field(default_factory=dict)
    """Numbers of tests by outcome."""
    seconds: float = 0
    """How long the suite took."""

    @property
    def ok(self) -> bool:
        return self.passed and self.packages == {*PACKAGES}


def build() -> dict[str, str]:
    """Build the wheel and the sdist: what pip installs for each of `PACKAGES`."""
    say("building the wheel and the sdist")
    folder = PLACE / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "--directory", folder, cwd=ROOT)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return dict(zip(PACKAGES, (str(wheel), f"{wheel}[server]", str(sdist)), strict=True))


def check(version: str, built: dict[str, str], to_test: list[str]) -> Result:
    """Try each package on one Python, then run the suite."""
    python = find_python(version)
    result = Result(version, python)
    if python is None:
        say(f"FAILED: there is no Python {version} on the PATH or in pyenv")
        return result
    for name, package in built.items():
        say(f"{version}: the {name} in an empty environment")
        try:
            try_package(python, PLACE / version / name, package)
            result.packages.add(name)
        except Failure as failure:
            say(f"FAILED: {failure}")
    say(f"{version}: the suite; to install what it needs takes some minutes the first time")
    try:
        run_suite(python, PLACE / version / "tests", to_test, result)
    except Failure as failure:
        say(f"FAILED: {failure}")
    return result


def try_package(python: str, place: Path, package: str) -> None:
    """Install a package in an empty environment, and run episodes: in the process and, with `[server]`, on a server."""
    run(python, "-m", "venv", "--clear", place)
    run(place / "bin" / "python", *PIP, package)
    command = place / "bin" / "stateroom"
    with TemporaryDirectory() as empty:
        run(command, "--version", cwd=empty, says="stateroom ")
        run(command, "run", "counter", cwd=empty, says="pass@1 = 1 ")
        if package.endswith("[server]"):
            serve = [str(command), "serve", "counter", "--port", "0"]
            with subprocess.Popen(serve, cwd=empty, env=ENVIRON, stdout=subprocess.PIPE, text=True) as server:
                try:
                    url = server.stdout.readline().rpartition(" ")[2].strip()  # type: ignore[union-attr]
                    run(command, "run", "counter", "--server", url, cwd=empty, says="pass@1 = 1 ")
                finally:
                    server.terminate()


def run_suite(python: str, place: Path, to_test: list[str], result: Result) -> None:
    """Run the suite, in an environment that is kept for the next time."""
    if not (place / "bin" / "python").exists():
        run(python, "-m", "venv", place)
    run(place / "bin" / "python", *PIP, "--upgrade", "pip>=25.1")
    run(place / "bin" / "python", *PIP, *to_test, cwd=ROOT)
    began, line = time.monotonic(), ""
    with subprocess.Popen([place / "bin" / "pytest", *SUITE], cwd=ROOT, stdout=subprocess.PIPE, text=True) as suite:
        for line in suite.stdout or ():
            say(line.rstrip("\n"))
    result.seconds = time.monotonic() - began
    result.tests = {outcome: int(number) for number, outcome in re.findall(rf"(\d+) ({'|'.join(OUTCOMES)})", line)}
    result.passed = suite.returncode == 0


def run(*command: str | Path, cwd: str | Path | None = None, says: str = "") -> None:
    """Run a command that must succeed, and say this."""
    done = subprocess.run(command, cwd=cwd, env=ENVIRON, capture_output=True, text=True, check=False)
    if done.returncode != 0 or says not in done.stdout:
        words = " ".join(map(str, command))
        raise Failure(f"{words} ended with code {done.returncode}\n{done.stdout}{done.stderr}")


def table(results: list[Result]) -> Table:
    made = Table("Python", *map(escape, PACKAGES), box=MARKDOWN)  # for a page
    for name in (*OUTCOMES, "seconds"):
        made.add_column(name, justify="right")
    for each in results:
        packages = ("works" if name in each.packages else "FAILED" if each.python else "no Python" for name in PACKAGES)
        numbers = (f"{each.tests.get(outcome, 0):,}" for outcome in OUTCOMES)
        made.add_row(each.version, *packages, *numbers, f"{each.seconds:.0f}")
    return made


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Check each Python; 1 if one of them failed or is missing."""
    parser = argparse.ArgumentParser(prog="make test-all", description=__doc__)
    parser.add_argument("--pythons", nargs="+", metavar="VERSION", default=VERSIONS, help="all by default")
    parser.add_argument("to_test", nargs="+", metavar="REQUIREMENT", help="what pip installs for the suite")
    given = parser.parse_args(arguments)
    built = build()
    results = [check(version, built, given.to_test) for version in given.pythons]
    Console(width=120).print(table(results))
    return int(not all(each.ok for each in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
