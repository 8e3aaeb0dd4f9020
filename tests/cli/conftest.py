import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stateroom.cli import main


class Outcome(NamedTuple):
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


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
