"""An S3 server of one's own, moto's: it keeps everything in its memory, and is gone with whoever started it."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.servers.ports import free_port
from tests.servers.process import ServerProcess

BUCKET = "rooms"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "captain", "AWS_SECRET_ACCESS_KEY": "open-sesame", "AWS_REGION": "us-east-1"}
"""What a client needs in its environment; the server takes any."""
ROOT = Path(__file__).parents[2]


class S3Server(ServerProcess):
    """A server with one bucket. What is in it is lost when the server ends, so `restart` begins with nothing.

    One that is `careless` takes no heed of the conditions of a write, as some servers do.
    """

    def __init__(self, *, careless: bool = False) -> None:
        self.port = free_port()
        self.careless = careless
        self.start()

    def start(self) -> None:
        options = ["careless"] if self.careless else []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.s3_program", str(self.port), *options],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        request = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        self.wait_until_ready(lambda: urllib.request.urlopen(request, timeout=5).close(), OSError)

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
