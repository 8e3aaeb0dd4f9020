"""One who follows a page."""

import json
import os
import re
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.pages.steps import Code, Command, File, PageError, Step, check_that_files_are_used, is_set_up, steps_of
from tests.pages.talk import PYTHON, Talk
from tests.patience import PATIENCE
from tests.processes import QUICK_PYTEST
from tests.servers.ports import free_port

PORT = re.compile(r"\b800\d\b")

WIDE = "1000"
"""Columns of a terminal that breaks no line: pages break them where they like."""

PROGRESS = re.compile(r"━━━|^.+: \d+(/\d+)?, \d+:\d\d:\d\d$")
"""A progress bar, or a line of progress: no page shows one."""


def run_page(page: str, folder: Path, name: str = "page", *, commands: Path, files: Iterable[Path] = ()) -> None:
    """Does what a page says, in a new folder with copies of `files`, with `commands` before those of the system.

    Raises:
        PageError: Something fails, or prints something else than the page shows.
    """
    steps = steps_of(_with_free_ports(page))
    check_that_files_are_used(steps)
    with Reader(folder, name, commands) as reader:
        reader.copy(files)
        for step in steps:
            try:
                reader.take(step)
            except PageError as error:
                raise PageError(f"line {step.line}: {error}") from None
        reader.check_what_goes_on()


class Reader:
    """One who follows a page: with a folder, a home, a shell, and Python."""

    def __init__(self, folder: Path, name: str, commands: Path) -> None:
        self._commands = commands
        self._folder, self._home = folder / "page", folder / "home"
        self._folder.mkdir()
        self._home.mkdir()
        (self._home / "strict").mkdir()
        (self._home / "strict" / ".curlrc").write_text("fail-with-body\n", encoding="utf-8")
        self._module = self._folder / f"{name}.py"
        self._source: list[str] = []
        self._titles: set[Path] = set()
        self._going_on: dict[int, tuple[Command, Path]] = {}

    def __enter__(self) -> Self:
        variables = {**reader_variables(self._commands), "HOME": str(self._home)}
        self._shell = Talk(["bash", "--noprofile", "--norc"], self._folder, variables)
        self._python = Talk([str(self._commands / "python"), "-c", PYTHON], self._folder, variables)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(PageError, BrokenPipeError):
            self._in_shell("{ kill $(jobs -p); wait; } 2>/dev/null")
        self._shell.end()
        self._python.end()

    def copy(self, files: Iterable[Path]) -> None:
        """Put files and folders beside the page."""
        for path in files:
            if path.is_dir():
                shutil.copytree(path, self._folder / path.name)
            else:
                shutil.copy(path, self._folder)

    def take(self, step: Step) -> None:
        match step:
            case File():
                self._write(step)
            case Code():
                self._run(step)
            case Command() if is_set_up(step):
                pass
            case Command() if step.goes_on:
                self._start(step)
            case Command():
                self._command(step)

    def _in_shell(self, words: str, patience: float = PATIENCE) -> tuple[str, int]:
        return self._shell.say(f"{words}\nprintf '%s %d\\n' {self._shell.mark} $?", patience)

    def _write(self, file: File) -> None:
        path = self._folder / file.name
        self._titles.add(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")

    def _run(self, code: Code) -> None:
        self._source += [""] * (code.line - 1 - len(self._source)) + code.text.splitlines()
        if self._module not in self._titles:
            self._module.write_text("\n".join(self._source) + "\n", encoding="utf-8")
        source = "\n" * (code.line - 1) + code.text
        printed, failed = self._python.say(json.dumps([self._python.mark, str(self._module), source]))
        if failed:
            raise PageError(printed)

    def _command(self, command: Command) -> None:
        printed, code = self._in_shell(_strictly(command))
        if code != command.exit:
            raise PageError(f"{command.text}\nended with code {code}, and printed:\n{printed}")
        if command.shown and not shows(command.shown, printed):
            raise PageError(f"{command.text}\nprinted:\n{printed}\nand not, as the page shows:\n{command.shown}")
        if command.text.startswith("kill "):
            self._forget_killed()

    def _forget_killed(self) -> None:
        """Wait until what was killed listens no more: it is no child of the shell, and ends a moment after its job."""
        for pid in [pid for pid in self._going_on if self._in_shell(f"kill -0 {pid} 2>/dev/null")[1]]:
            command, _ = self._going_on.pop(pid)
            deadline = time.monotonic() + PATIENCE
            while any(map(_listens, _ports(command))):
                if time.monotonic() > deadline:
                    raise PageError(f"{command.text}\nwas killed, and still listens")
                time.sleep(0.02)

    def _start(self, command: Command) -> None:
        """Starts what goes on, and waits until it has said what the page shows, and listens where the page says."""
        log = self._home / f"{command.line}.log"
        pid, _ = self._in_shell(f"eval {shlex.quote(command.text)} >{log} 2>&1 </dev/null; echo $!")
        self._going_on[int(pid)] = command, log
        deadline = time.monotonic() + PATIENCE
        while not (_said(command, log) and all(map(_listens, _ports(command)))):
            self.check_what_goes_on()
            if time.monotonic() > deadline:
                raise PageError(f"{command.text}\nis not ready, and printed:\n{log.read_text(encoding='utf-8')}")
            time.sleep(0.02)

    def check_what_goes_on(self) -> None:
        """What was started is still there, unless the page has ended it, or it has ended well."""
        for pid, (command, log) in self._going_on.items():
            _, code = self._in_shell(f"kill -0 {pid} 2>/dev/null || wait {pid} 2>/dev/null")
            if code not in (0, *ENDED_BY_THE_PAGE):
                raise PageError(
                    f"{command.text}\nended with code {code}, and printed:\n{log.read_text(encoding='utf-8')}"
                )


ENDED_BY_THE_PAGE = (127, 137, 143)
"""Codes of what was waited for before, was killed, or was told to end."""


def reader_variables(*folders: Path) -> dict[str, str]:
    """A reader's environment: the installed commands after those of some folders, nothing of the tests'."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("STATEROOM_", "PYTEST_"))}
    for name in ("LINES", "XDG_DATA_HOME"):
        others.pop(name, None)
    path = os.pathsep.join([*map(str, folders), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**others, **QUICK_PYTEST, "PATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": WIDE}


def _strictly(command: Command) -> str:
    """What bash is told. Where no output is shown, all that can fail must not: every part of a pipe, and HTTP."""
    strictly = "set +o pipefail; unset CURL_HOME" if command.shown else "set -o pipefail; export CURL_HOME=$HOME/strict"
    done = f"{strictly}; eval {shlex.quote(command.text)} 2>&1 </dev/null"
    if killed := re.fullmatch(r"kill .*?(%\d+)", command.text):  # as a person does, waits until it is gone
        done += f" && {{ wait {killed[1]}; true; }} 2>/dev/null"
    return done


def _said(command: Command, log: Path) -> bool:
    if not command.shown:
        return ">" in command.text or bool(log.stat().st_size)
    return shows(command.shown, log.read_text(encoding="utf-8"))


def _ports(command: Command) -> list[int]:
    return [int(port) for port in re.findall(r"--port[ =](\d+)", command.text)]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _with_free_ports(page: str) -> str:
    """The page with a free port for each that it names."""
    free = {port: str(free_port()) for port in sorted(set(PORT.findall(page)))}
    return PORT.sub(lambda port: free[port[0]], page)


def shows(shown: str, printed: str) -> bool:
    """Whether the words of each shown line are printed in order in one line, and these lines in order too."""
    lines = [line for line in printed.splitlines() if not PROGRESS.search(line)]
    for pattern in filter(None, map(_pattern, shown.splitlines())):
        found = ((place, match) for place, line in enumerate(lines) if (match := re.match(pattern, line)))
        place, match = next(found, (0, None))
        if match is None:
            return False
        lines = [match.string[match.end() :], *lines[place + 1 :]]
    return True


def _pattern(line: str) -> str:
    """Matches up to the last word of a line; empty if it is only a rule, or only for the reader."""
    words = (".*?".join(map(re.escape, word.split("…"))) for word in line.split() if word.strip("─…"))
    return "".join(rf"(?>.*?(?<!\S){word}(?!\S))" for word in words)
