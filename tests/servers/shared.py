"""The servers of one run of the tests: each starts when a test first asks for it, and all of the workers share it."""

import os
from contextlib import ExitStack
from multiprocessing.connection import Client, Listener
from threading import Thread

from tests.servers.postgresql import PostgreSQLServer
from tests.servers.redis import RedisServer
from tests.servers.s3 import S3Server

ADDRESS = "STATEROOM_TEST_SERVERS"
"""The variable that tells the processes of a run where to ask."""
KINDS = {"redis": RedisServer, "postgresql": PostgreSQLServer, "s3": S3Server}


class SharedServers:
    """Starts servers for this process and its children, and ends all of them in `stop`."""

    def __init__(self) -> None:
        self._listener = Listener(family="AF_UNIX")
        self._thread = Thread(target=self._serve)  # servers end with the thread that started them
        self._thread.start()
        os.environ[ADDRESS] = str(self._listener.address)

    def _serve(self) -> None:
        urls: dict[str, str] = {}
        with ExitStack() as servers, self._listener:
            while True:
                with self._listener.accept() as asking:
                    kind = asking.recv()
                    if kind is None:
                        return
                    try:
                        if kind not in urls:
                            urls[kind] = servers.enter_context(KINDS[kind]()).url
                        asking.send(urls[kind])
                    except Exception as error:  # noqa: BLE001 - the test that asked fails with it
                        asking.send(RuntimeError(f"no {kind} server: {error}"))

    def stop(self) -> None:
        """End the servers."""
        with Client(os.environ.pop(ADDRESS)) as asking:
            asking.send(None)
        self._thread.join()


def shared_url(kind: str) -> str:
    """The URL of the run's server of a kind, which starts if it does not run yet."""
    with Client(os.environ[ADDRESS]) as asking:
        asking.send(kind)
        answer = asking.recv()
    if isinstance(answer, Exception):
        raise answer
    return str(answer)
