"""The connection to a server: what a URL means, commands out and answers in.

All calls share one connection. The commands of one iteration of the event loop go out in one write, a pipeline, and the
answers come back in the same order; so commits of many sessions share a round trip, and a single one is one command.

Nothing is sent twice: when a connection is lost, it is not known which commands were carried out, and every caller gets
an error.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from hiredis import pack_command
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TimeoutError,
)

from stateroom.errors import BadData, StateroomError, StoreUnavailable, UnknownStore
from stateroom.store.concurrency import answer, first_batch
from stateroom.store.redis.scripts import Script
from stateroom.store.url import StoreURL, parse_url, without_secrets

CONNECT_SECONDS = 5.0
"""Seconds in which a connection must be made."""
ANSWER_SECONDS = 5
"""Seconds that the oldest command may wait for its answer; then the connection counts as lost."""
SCAN_COUNT = 1_000
"""About the number of keys in one step of a scan."""

PREFIX = "stateroom:"
FORMS = (
    "write redis://host:6379/0, unix:///path/to.sock?db=0, redis+sentinel://host:26379,host:26379/service/0 "
    "or redis+cluster://host:6379,host:6379 (and rediss for TLS)"
)
TLS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
"""Options with paths of certificates, as redis-py names them."""
SENTINEL_SECONDS = 1.0
"""Seconds that one Sentinel has to answer before the next is asked."""
CONNECTION: dict[str, Any] = {"protocol": 2, "socket_timeout": None, "socket_connect_timeout": CONNECT_SECONDS}
"""Settings of each connection. Its link checks for late answers."""

_HOST = re.compile(r"(?P<host>\[[^\[\]]+\]|[^\[\]:,@]+)(:(?P<port>[0-9]{1,5}))?")

LOST = (ConnectionError, TimeoutError, ClusterDownError, ReadOnlyError, RedisClusterException, OSError)
"""Errors after which a cluster may have changed."""

Word = str | bytes


class RedisLink(ABC):
    """The link to a server, or to those of a cluster; connected when it is needed, and again after a loss."""

    def __init__(self, place: str) -> None:
        self.place = place
        """The server, for messages; without secrets."""

    @abstractmethod
    def send(self, command: tuple[Word, ...]) -> asyncio.Future[Any]:
        """Send a command with all others of this iteration of the event loop; its answer, or a `RedisError`."""

    @abstractmethod
    def keys(self, pattern: str) -> AsyncIterator[bytes]:
        """All keys that match; a key that comes or goes meanwhile may be missing, and one may come twice."""

    @abstractmethod
    async def close(self) -> None:
        """Wait for pending answers, and close the connection."""

    async def ask(self, *command: Word) -> Any:
        """Send a command; its answer, or `StoreUnavailable`."""
        try:
            return await self.send(command)
        except RedisError as error:
            raise self._refused(error, command[1]) from error

    async def run(self, script: Script, keys: Sequence[Word], *args: Word) -> Any:
        """Run a script by its digest, or by its text if the server does not know it yet."""
        rest = (str(len(keys)), *keys, *args)
        try:
            try:
                return await self.send(("EVALSHA", script.digest, *rest))
            except NoScriptError:
                return await self.send(("EVAL", script.text, *rest))
        except RedisError as error:
            raise self._refused(error, keys[0]) from error

    def _refused(self, error: RedisError, key: Word) -> StateroomError:
        if isinstance(error, ResponseError) and _DAMAGED.search(str(error)):
            return BadData(f"{self.place}: the value of {key!r} is damaged: {error}")
        return self.failure(error)

    def failure(self, error: Exception) -> StoreUnavailable:
        """The error, with a hint for the operator."""
        failure = StoreUnavailable(f"{self.place} {_explain(error)}")
        failure.__cause__ = error
        return failure


class ServerLink(RedisLink):
    """The link to one server, over one connection."""

    def __init__(self, place: str, connection: AbstractConnection) -> None:
        super().__init__(place)
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._asked: list[bytes] = []
        """Commands to send."""
        self._waiting: deque[asyncio.Future[Any]] = deque()
        """Futures of the answers, in order."""
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def send(self, command: tuple[Word, ...]) -> asyncio.Future[Any]:
        packed = pack_command(command)  # type: ignore[arg-type]  # its stubs know only commands of one word
        caller: asyncio.Future[Any] = self._loop.create_future()
        self._asked.append(packed)
        self._waiting.append(caller)
        self._work.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        return caller

    async def keys(self, pattern: str) -> AsyncIterator[bytes]:
        cursor = b"0"
        while True:
            cursor, keys = await self.ask("SCAN", cursor, "MATCH", pattern, "COUNT", str(SCAN_COUNT))
            for key in keys:
                yield key
            if cursor == b"0":
                return

    async def close(self) -> None:
        while under_way := [caller for caller in self._waiting if not caller.done()]:
            await asyncio.wait(under_way)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # A task that lasts as long as the connection.

    async def _run(self) -> None:
        """Connect, and exchange commands and answers until the connection is lost; then fail all pending callers."""
        failure: Exception = ConnectionError("closed")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connection.connect()  # type: ignore[no-untyped-call]
            await self._exchange()
        except Exception as error:  # noqa: BLE001 (all callers get the error)
            failure = error
        finally:
            try:
                with suppress(Exception):
                    await self._connection.disconnect(nowait=True)
            finally:
                self._task = None
                self._asked.clear()
                while self._waiting:
                    answer(self._waiting.popleft(), error=self.failure(failure))

    async def _exchange(self) -> None:
        tasks = [self._loop.create_task(way) for way in (self._write(), self._read(), self._watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            batch, self._asked = self._asked, []
            share = first_batch(len(batch)) if len(batch) == len(self._waiting) else len(batch)
            await self._send(batch[:share])
            if share < len(batch):
                await asyncio.sleep(0)
                await self._send(batch[share:])

    async def _send(self, batch: list[bytes]) -> None:
        await self._connection.send_packed_command(b"".join(batch), check_health=False)

    async def _read(self) -> None:
        read, waiting = self._connection.read_response, self._waiting
        while True:
            try:
                reply = await read()
            except ResponseError as error:
                refusal = _unwrapped(error)
                if isinstance(refusal, ReadOnlyError):  # a replica: the next connection may find the primary
                    raise refusal from error
                answer(waiting.popleft(), error=refusal)
            else:
                answer(waiting.popleft(), reply)

    async def _watch(self) -> None:
        """Give up a connection that has stopped answering. Checked once a second, so that no command pays for it."""
        oldest, seconds = None, 0
        while True:
            await asyncio.sleep(1)
            now_oldest = self._waiting[0] if self._waiting else None
            seconds = seconds + 1 if now_oldest is oldest is not None else 0
            oldest = now_oldest
            if seconds >= ANSWER_SECONDS:
                raise TimeoutError(f"no answer for {ANSWER_SECONDS} seconds")


class SentinelLink(ServerLink):
    """A connection to the primary of a service, as the Sentinels name it when the connection is made."""

    def __init__(self, place: str, sentinel: Sentinel, pool: Any) -> None:
        super().__init__(place, pool.make_connection())
        self._sentinel = sentinel
        self._pool = pool
        """Kept, because its connections ask it for the address."""

    async def close(self) -> None:
        await super().close()
        for client in self._sentinel.sentinels:
            await client.aclose()


class ClusterLink(RedisLink):
    """The link to the servers of a cluster. The client knows which of them has which keys."""

    def __init__(self, place: str, client: RedisCluster) -> None:
        super().__init__(place)
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._asked: list[tuple[tuple[Word, ...], asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    def send(self, command: tuple[Word, ...]) -> asyncio.Future[Any]:
        name, *words = command
        packed = (name, *(word.encode() if isinstance(word, str) else word for word in words))
        caller: asyncio.Future[Any] = self._loop.create_future()
        self._asked.append((packed, caller))
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        return caller

    async def keys(self, pattern: str) -> AsyncIterator[bytes]:
        try:
            async for key in self._client.scan_iter(pattern, count=SCAN_COUNT):
                yield key
        except (RedisError, OSError) as error:
            raise self.failure(error) from error

    async def close(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])
        await self._client.aclose()

    async def _run(self) -> None:
        """Send the commands that have gathered, and those that gather meanwhile."""
        batch: list[tuple[tuple[Word, ...], asyncio.Future[Any]]] = []
        failure: Exception = ConnectionError("closed")
        try:
            while self._asked:
                batch, self._asked = self._asked, []
                replies = await self._execute([command for command, _ in batch])
                for (_, caller), reply in zip(batch, replies, strict=True):
                    if isinstance(reply, Exception):
                        answer(caller, error=reply if isinstance(reply, ResponseError) else self.failure(reply))
                    else:
                        answer(caller, reply)
        except Exception as error:  # noqa: BLE001 (all callers get the error)
            failure = error
        finally:
            self._task = None
            left, self._asked = batch + self._asked, []
            for _, caller in left:
                answer(caller, error=self.failure(failure))

    async def _execute(self, commands: list[tuple[Word, ...]]) -> list[Any]:
        """Send commands, each to its server; the answers and errors."""
        pipeline = self._client.pipeline()
        for command in commands:
            pipeline.execute_command(*command)
        try:
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
        except Exception as error:  # noqa: BLE001 (without an answer the caller waits forever)
            replies = [error if isinstance(error, LOST) else ConnectionError(str(error))] * len(commands)
        replies = [_unwrapped(reply) if isinstance(reply, ResponseError) else reply for reply in replies]
        if any(isinstance(reply, LOST) for reply in replies):
            await self._client.aclose()  # so that it asks again which servers there are
        return replies


_DAMAGED = re.compile(r"WRONGTYPE|attempt to |hash value is not ")
"""Messages of a server about a value that is not what was written."""

_WITHIN = re.compile(r"@user_script: ?\d+: -(OOM|READONLY) ")
"""Messages of a server before Redis 7 about an error within a script."""


def _unwrapped(error: ResponseError) -> ResponseError:
    """The error itself, also if it happened within a script."""
    match = _WITHIN.search(str(error))
    if match is None:
        return error
    return {"OOM": OutOfMemoryError, "READONLY": ReadOnlyError}[match[1]](str(error))


def _explain(error: Exception) -> str:
    words = str(error).rstrip(".") or "timed out"
    match error:
        case AuthenticationError() | NoPermissionError():
            return f"rejected the login: check the user and the password in the URL ({words})"
        case OutOfMemoryError():
            return "is out of memory and wrote nothing: sweep the store, or raise maxmemory"
        case ReadOnlyError():
            return "is a read-only replica; after a failover, retry"
        case BusyLoadingError():
            return "is still loading its data"
        case ClusterDownError():
            return f"belongs to a cluster that is down: {words}"
        case MovedError():
            return "is part of a cluster: write redis+cluster:// in the URL"
        case TimeoutError() | OSError():
            return f"does not answer: {words}; check that it is running at this address"
        case ConnectionError() | RedisClusterException():
            return f"cannot be reached: {words}; check that it is running at this address"
        case RedisError():
            return f"refused a command: {words}"
    return f"failed with an unexpected {error!r}"


# URLs.


def parse_address(url: str) -> tuple[RedisLink, str]:
    """The link to the server in a URL, not connected yet, and the prefix of all keys."""
    scheme, _, _ = url.partition("://")
    secure = scheme.startswith("rediss")
    kind = "unix" if scheme == "unix" else scheme.partition("+")[2]
    options = {"prefix", *(TLS if secure else ()), *(("db",) if kind == "unix" else ())}
    parts = parse_url(url, options)
    user, _, hosts = parts.host.rpartition("@")
    settings: dict[str, Any] = {name: parts.options[name] for name in TLS & parts.options.keys()}
    name, _, password = user.partition(":")
    settings |= {key: unquote(text) for key, text in (("username", name), ("password", password)) if text}
    link = _LINKS[kind](parts, hosts, secure, settings)
    return link, parts.options.get("prefix", PREFIX)


def _server(parts: StoreURL, hosts: str, secure: bool, settings: dict[str, Any]) -> RedisLink:
    ((host, port),) = _addresses(parts, hosts or "localhost", 6379, only=1)
    database = _database(parts, parts.path.strip("/"))
    connect = SSLConnection if secure else Connection
    connection = connect(host=host, port=port, db=database, **CONNECTION, **settings)
    return ServerLink(f"Redis at {host}:{port}", connection)


def _socket(parts: StoreURL, hosts: str, secure: bool, settings: dict[str, Any]) -> RedisLink:
    if hosts or not parts.path.strip("/"):
        raise UnknownStore(f"{without_secrets(parts.url)} lacks the path of a socket: {FORMS}")
    database = _database(parts, parts.options.get("db", ""))
    connection = UnixDomainSocketConnection(path=parts.path, db=database, **CONNECTION, **settings)
    return ServerLink(f"Redis at {parts.path}", connection)


def _sentinel(parts: StoreURL, hosts: str, secure: bool, settings: dict[str, Any]) -> RedisLink:
    service, _, database = parts.path.strip("/").partition("/")
    addresses = _addresses(parts, hosts, 26379)
    if not service:
        raise UnknownStore(f"{without_secrets(parts.url)} lacks the name of a service: {FORMS}")
    timeouts = {"socket_timeout": SENTINEL_SECONDS, "socket_connect_timeout": SENTINEL_SECONDS}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        addresses, sentinel_kwargs={**timeouts, "retry": Retry(NoBackoff(), 0)}
    )
    pool = sentinel.master_for(
        service, db=_database(parts, database), ssl=secure, **CONNECTION, **settings
    ).connection_pool
    return SentinelLink(f"Redis service {service} at {_shown(addresses)}", sentinel, pool)


def _cluster(parts: StoreURL, hosts: str, secure: bool, settings: dict[str, Any]) -> RedisLink:
    addresses = _addresses(parts, hosts, 6379)
    if parts.path.strip("/") not in ("", "0"):
        raise UnknownStore(f"{without_secrets(parts.url)}: a cluster has only database 0; {FORMS}")
    client = RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in addresses],
        retry=Retry(NoBackoff(), 0),  # a command that may have been carried out is not sent again
        ssl=secure,
        **{**CONNECTION, "socket_timeout": ANSWER_SECONDS},
        **settings,
    )
    return ClusterLink(f"Redis cluster at {_shown(addresses)}", client)


_LINKS = {"": _server, "unix": _socket, "sentinel": _sentinel, "cluster": _cluster}


def _addresses(parts: StoreURL, hosts: str, port: int, only: int | None = None) -> list[tuple[str, int]]:
    matches = [_HOST.fullmatch(each) for each in hosts.split(",")]
    if not all(matches) or (only and len(matches) > only):
        raise UnknownStore(f"{without_secrets(parts.url)} has an invalid address: {FORMS}")
    return [(each["host"].strip("[]"), int(each["port"] or port)) for each in matches if each]


def _database(parts: StoreURL, text: str) -> int:
    if text and not text.isdecimal():
        raise UnknownStore(f"{without_secrets(parts.url)}: the database must be a number, not {text!r}; {FORMS}")
    return int(text or 0)


def _shown(addresses: list[tuple[str, int]]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in addresses)
