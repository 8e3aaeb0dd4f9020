"""Processes of their own that use a store; see `worker`."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import PATIENCE

WORKER = Path(__file__).with_name("worker.py")


@contextmanager
def workers(*commands: tuple[str, str, str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that begin at the same moment."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def finish(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Wait for the processes to succeed; what they said."""
    said = []
    for process in processes:
        output, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        said.append(output)
    return said
