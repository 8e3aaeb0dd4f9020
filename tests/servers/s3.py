"""An S3 server of one's own, moto's: it keeps everything in its memory, and is gone with whoever started it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Self
from urllib.error import URLError

from tests.patience import PATIENCE
from tests.servers.ports import free_port

BUCKET = "rooms"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "captain", "AWS_SECRET_ACCESS_KEY": "open-sesame", "AWS_REGION": "us-east-1"}
"""What a client needs in its environment; the server takes any."""
PROGRAM = Path(__file__).with_name("s3_program.py")


class S3Server:
    """A server with one bucket. What is in it is lost when the server ends, so `restart` begins with nothing.

    One that is `careless` takes no heed of the conditions of a write, as some servers do.
    """

    def __init__(self, *, careless: bool = False) -> None:
        self.port = free_port()
        self.careless = careless
        self._start()

    def _start(self) -> None:
        options = ["careless"] if self.careless else []
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self.port), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                request = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
                urllib.request.urlopen(request, timeout=5).close()
                return
            except (URLError, OSError) as error:
                if self.process.poll() is not None or time.monotonic() > give_up:
                    self.kill()
                    raise RuntimeError(f"the S3 server does not start: {error}") from error
                time.sleep(0.02)

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The URL of a store in its bucket, for a client that has `CREDENTIALS` in its environment."""
        return f"s3://{BUCKET}?endpoint={self.endpoint}"

    def pause(self) -> None:
        """Let it stand still: connections are taken, and nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        """End it."""
        self.kill()

    def restart(self) -> None:
        """Start it again at the same port, with an empty bucket."""
        self.kill()
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
