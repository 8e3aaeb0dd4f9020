"""Talking with a process: with bash, and with a Python that runs blocks."""

import os
import re
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.pages.steps import PageError
from tests.patience import PATIENCE

PYTHON = """
import json, os, sys, traceback, types, warnings

def run(path, source):
    sys.modules["__main__"].__file__ = path
    try:
        exec(compile(source, path, "exec"), vars(sys.modules["__main__"]))
    except BaseException as error:
        traceback.print_exception(error.with_traceback(error.__traceback__.tb_next))
        return 1
    return 0

told = os.fdopen(os.dup(0))
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
sys.path[0] = os.getcwd()
warnings.simplefilter("error")
# langsmith's, on 3.14
warnings.filterwarnings("ignore", "'asyncio.iscoroutinefunction' is deprecated", DeprecationWarning)
sys.modules["__main__"] = types.ModuleType("__main__")
while line := told.readline():
    mark, path, source = json.loads(line)
    code = run(path, source)
    print(mark, code)
"""
"""Runs the blocks that it is told, one after the other in one module, and says how each has ended."""


class Talk:
    """A process that is told things to do, prints what it will, and then its mark and how that has ended."""

    def __init__(self, command: list[str], folder: Path, variables: dict[str, str]) -> None:
        self.mark = f"done-{uuid4().hex}"
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(command, cwd=folder, env=variables, start_new_session=True, **pipes)

    def say(self, words: str, patience: float = PATIENCE) -> tuple[str, int]:
        """What was printed, and the code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{words}\n".encode())
        self._process.stdin.flush()
        printed, deadline = b"", time.monotonic() + patience
        while not (ended := re.search(rf"{self.mark} (\d+)\n".encode(), printed)):
            if not select.select([self._process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise PageError(f"still busy after {patience:g} seconds, having printed:\n{printed.decode()}")
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                raise PageError(f"ended the shell, or Python, itself, having printed:\n{printed.decode()}")
            printed += more
        return printed[: ended.start()].decode(), int(ended[1])

    def end(self) -> None:
        """Ends it, and all that it has started."""
        # Its pipes are closed, whoever else may hold them.
        with suppress(ProcessLookupError, BrokenPipeError), self._process:
            os.killpg(self._process.pid, signal.SIGKILL)
