"""`stateroom model serve` as a process."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.patience import PATIENCE

SERVE = [str(Path(sys.executable).with_name("stateroom")), "model", "serve"]


class Served(NamedTuple):
    """A model that is served."""

    name: str
    url: str
    process: subprocess.Popen[str]

    def stop(self, how: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """End it; how it ended, and what it said on standard error."""
        self.process.send_signal(how)
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


@contextmanager
def serving(spec: str, folder: Path, *options: str) -> Iterator[Served]:
    """Serves a model in another process."""
    command = [*SERVE, spec, "--port", "0", *options]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        name, _, url = line.rpartition(": ")
        assert url.startswith("http://"), line
        yield Served(name, url, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
