"""The texts that people read, in one file: tests assert types, codes and fields, and `messages.txt` has the wording.

`with raises(NotFound) as error:` is `pytest.raises`, and holds the error's text to what is recorded for the test;
`says(text)` does that with any text. After a change of wording, `pytest --write-messages` records it, and the change of
`messages.txt` is reviewed as prose. Not for properties: a test records the same texts each time that it runs.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

E = TypeVar("E", bound=BaseException)

FILE = Path(__file__).with_name("messages.txt")
FIRST, OTHER = "  - ", "    "
"""What the first line of a text begins with, and the others."""

CHANGING = (
    (re.compile(r"(?:/private)?/(?:tmp|dev/shm|var/folders)/[^\s'\"`:;,()\[\]]*"), "/tmp/…"),
    (re.compile(r"(?:(?<=_)|(?<![\w.]))[0-9a-f]{12,}(?![\w])"), "…id…"),
    (re.compile(r"(127\.0\.0\.1'?, |(?:127\.0\.0\.1|localhost|\[::1\]):|\bport |127_0_0_1_)\d+"), r"\1PORT"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x…"),
    (re.compile(r"\.py:\d+"), ".py:LINE"),
    (re.compile(r"\d+(?:\.\d+)? m?s\b"), "… s"),
)
"""What is another text in each run, and what stands for it."""

OF_PYTHON = (
    (re.compile(r"(month must be in 1\.\.12), not \d+"), r"\1"),
    (re.compile(r"(?:open: )?embedded null (?:byte|character in path)"), "embedded null byte"),
    (re.compile(r"\bcompression\.zstd\b"), "backports.zstd"),
    (re.compile(r"local object <class '[\w.]+\.(test_[\w.<>]+)'>"), r"local object '\1'"),
)
"""What newer Pythons say in other words, and the words of 3.11."""


def _read() -> dict[str, set[str]]:
    texts: dict[str, set[str]] = {}
    for block in re.findall(r"^tests/.*?(?=^tests/|\Z)", FILE.read_text(), flags=re.MULTILINE | re.DOTALL):
        test, *of_test = block.rstrip().split(f"\n{FIRST}")
        texts[test] = {text.replace(f"\n{OTHER}", "\n") for text in of_test}
    return texts


class Messages:
    """The recorded texts of each test, and those of this process's tests."""

    def __init__(self) -> None:
        self.recorded = _read()
        self.seen: dict[str, set[str]] = {}
        self.writes = False

    def check(self, text: str) -> None:
        for pattern, stand_in in (*CHANGING, *OF_PYTHON):
            text = pattern.sub(stand_in, text)
        text = "\n".join(line.rstrip() for line in text.rstrip().splitlines())
        test = os.environ["PYTEST_CURRENT_TEST"].partition(" (")[0].partition("[")[0]
        self.seen.setdefault(test, set()).add(text)
        known = self.recorded.get(test, set())
        if not self.writes and text not in known:
            recorded = "\n".join(sorted(known)) or "nothing; pytest --write-messages does it"
            pytest.fail(f"not a recorded text:\n{text}\nrecorded is:\n{recorded}")

    def without_test(self) -> set[str]:
        """The names under which texts are recorded that are not, or no longer, names of tests."""
        modules = {name.partition("::")[0] for name in self.recorded}
        tests = {
            f"{module}::{node.name}"
            for module in modules
            if Path(module).exists()
            for node in ast.walk(ast.parse(Path(module).read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        return self.recorded.keys() - tests

    def write(self) -> None:
        """Write the texts that were seen in place of those before, test by test; those of no test go."""
        texts_of = {**self.recorded, **self.seen}
        for name in self.without_test():
            del texts_of[name]
        with FILE.open("w") as file:
            for name, texts in sorted(texts_of.items()):
                file.write(f"{name}\n")
                file.writelines(f"{FIRST}{text.replace(chr(10), chr(10) + OTHER)}\n" for text in sorted(texts))


MESSAGES = Messages()


def says(text: str) -> None:
    """Assert that a text is the one that is recorded for this test."""
    MESSAGES.check(text)


@contextmanager
def raises(kind: type[E] | tuple[type[E], ...]) -> Iterator[pytest.ExceptionInfo[E]]:
    """Assert that an error of this type is raised, with the text that is recorded for this test."""
    with pytest.raises(kind) as error:
        yield error
    says(f"{type(error.value).__name__}: {error.value}")


class Recorder:
    """The plugin for `--write-messages`; the controller of several processes writes what all have seen."""

    def pytest_configure(self, config: pytest.Config) -> None:
        MESSAGES.writes = bool(config.getoption("--write-messages"))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for test, texts in node.workeroutput.get("messages", {}).items():
            MESSAGES.seen.setdefault(test, set()).update(texts)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["messages"] = {test: [*texts] for test, texts in MESSAGES.seen.items()}
        elif MESSAGES.writes:
            MESSAGES.write()
