"""`RESULTS.md`: the newest results of each benchmark, with the machine, the date and the commit of their run."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("RESULTS.md")
HEADER = """# Results of the benchmarks

`make bench` writes this page; `make bench NAME` writes one section. A section says what is measured and how to read it,
then when, from which commit and on which machine.

- **Ratios** compare two things that take turns in the same run, so a busy machine slows both. `measured` shows both
  medians.
- **Limits** are checked: `make bench` fails when one is missed. Some figures are close to their limit, so a busy
  machine can miss it. A table without limits is for comparison.
- **One machine** runs everything: clients, servers and databases share its cores, and no network lies between them.
"""


def write_section(name: str, about: str, table: Table, order: Iterable[str], path: Path = RESULTS) -> None:
    """Replace the section of a benchmark: what it is `about`, and its table.

    The other sections stay, in the order of the benchmarks that there are.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    sections = {section.partition("\n")[0]: section.rstrip() for section in re.split(r"^## ", text, flags=re.M)[1:]}
    sections[name] = "\n\n".join([name, about, _circumstances(), markdown(table)])
    kept = [f"## {sections[each]}\n" for each in order if each in sections]
    path.write_text("\n".join([HEADER, *kept]), encoding="utf-8")


def markdown(table: Table) -> str:
    """A table as Markdown, whatever its box on the screen is."""
    shown, table.box, table.pad_edge = table.box, MARKDOWN, True
    console = Console(file=StringIO(), width=1000)
    console.print(table)
    table.box = shown
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines() if line.strip())


def _circumstances() -> str:
    machine = f"{len(os.sched_getaffinity(0))} cores of {_processor()}, Python {platform.python_version()}"
    return f"{datetime.now(UTC):%Y-%m-%d}, {_commit()}, {machine}."


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    commit = git("rev-parse", "--short", "HEAD") or "unknown"
    changed = git("status", "--porcelain", "--", ".", f":!{RESULTS.relative_to(ROOT)}")
    return f"commit {commit}{' with changes' if changed else ''}"


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        found = re.search(r"^model name\s*: (.+)$", file.read(), re.M)
    return found[1] if found else platform.machine()
