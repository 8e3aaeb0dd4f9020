import asyncio
import json
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from stateroom.cli import main
from stateroom.store import Store, open_store
from tests.messages import says

T = TypeVar("T")

STORE = "sqlite:///rooms.db"
"""The store of most tests, in their folder."""


def in_store(work: Callable[[Store], Awaitable[T]], url: str = STORE) -> T:
    """What some work on a store gives, after which the store is closed."""

    async def run() -> T:
        async with open_store(url) as store:
            return await work(store)

    return asyncio.run(run())


class Outcome(NamedTuple):
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed with `--json`."""
        return json.loads(self.out)


Command = Callable[..., Outcome]
Refuses = Callable[..., None]


@pytest.fixture
def stateroom(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Command]:
    """Run the command in process, in an empty folder, as on a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: Any) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["stateroom", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return Outcome(code or 0, *capsys.readouterr())

    handlers, level = logging.root.handlers, logging.root.level
    yield run
    logging.root.handlers = handlers
    logging.root.setLevel(level)


@pytest.fixture
def refuses(stateroom: Command) -> Refuses:
    """A command that is wrong ends with code 2, prints nothing, and says why in a few lines, which are recorded."""

    def refuse(*arguments: Any) -> None:
        done = stateroom(*arguments)
        assert (done.code, done.out) == (2, "")
        assert "Traceback" not in done.err
        assert len(done.err.splitlines()) <= 8
        says(" ".join(re.sub(r"[│╭╰╮╯─]", " ", done.err).split()))

    return refuse
