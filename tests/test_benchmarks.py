"""What `make bench` does with its results: the benchmarks here take no time."""

import ast
import importlib
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import __main__ as bench, results
from benchmarks.timing import Figure


async def good() -> list[Figure]:
    """Tea against coffee.

    More is better.
    """
    return [Figure("tea against coffee", 1.5, 2, "at most", "3 / 2")]


async def slow() -> list[Figure]:
    return [Figure("snails against hares", 0.1, 1, "at least", "1 / 10")]


async def broken() -> list[Figure]:
    raise ValueError("out of tea")


async def unequipped() -> list[Figure]:
    importlib.import_module("ray_of_light.sun")
    return []


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the results are written."""
    functions: tuple[Any, ...] = (unequipped, broken, good, slow)
    module = SimpleNamespace(**{each.__name__: each for each in functions})
    monkeypatch.setitem(sys.modules, "benchmarks.fake", module)
    monkeypatch.setattr(bench, "BENCHMARKS", {each.__name__: f"fake.{each.__name__}" for each in functions})
    path = tmp_path / "RESULTS.md"
    monkeypatch.setattr(bench, "write_section", partial(results.write_section, path=path))
    return path


def test_a_benchmark_that_raises_or_lacks_a_package_does_not_hide_the_others(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main([]) == 1
    printed = capsys.readouterr().out
    assert "tea against coffee" in printed
    assert printed.index("tea against coffee") < printed.index("[4/4]")  # as soon as it is there
    summary = printed.splitlines()[-4:]
    assert [line.partition(":")[0] for line in summary] == ["1 limits met, 1 missed", "missed", "left out", "failed"]
    assert "make .venv/ready-to-measure" in summary[2]


@pytest.mark.parametrize(("name", "code"), [("good", 0), ("slow", 1), ("broken", 1), ("unequipped", 0), ("none", 2)])
def test_the_exit_code_says_whether_a_limit_was_missed(page: Path, name: str, code: int) -> None:
    assert bench.main([name]) == code


def test_the_page_has_the_newest_results_of_each_benchmark(page: Path) -> None:
    bench.main([])
    whole = page.read_text()
    bench.main(["good"])
    assert page.read_text() == whole
    assert [line for line in whole.splitlines() if line.startswith("## ")] == ["## good", "## slow"]
    assert "## good\n\nTea against coffee.\n\nMore is better.\n\n20" in whole
    assert "| tea against coffee | 1.50  | at most 2 | 3 / 2    | met |" in whole
    assert "Python 3." in whole


def test_every_benchmark_is_a_function_that_says_how_to_read_its_figures() -> None:
    for path in bench.BENCHMARKS.values():
        module, _, function = path.partition(".")
        source = ast.parse((Path(bench.__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
        functions = {node.name: node for node in source.body if isinstance(node, ast.AsyncFunctionDef)}
        assert (ast.get_docstring(functions[function]) or "").count("\n\n"), path
