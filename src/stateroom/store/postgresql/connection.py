"""Connections to a PostgreSQL server: the address in a URL, single connections, and their pool.

A connection answers one question at a time. Questions go straight to libpq, through psycopg's wrapper of it: an unnamed
statement with its parameters, and no other session state on the server, so that a pooler may give each transaction
another server connection. The event loop always watches the socket, and so notices at once when the server goes away.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, NamedTuple

import psycopg
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo, DiagnosticField, ExecStatus, Format
from psycopg.pq.abc import PGresult

from stateroom.errors import StateroomError, StoreError, StoreUnavailable, UnknownStore
from stateroom.store.postgresql.binary import Value
from stateroom.store.url import parse_url, without_options, without_secrets

ANSWER_SECONDS = 5.0
"""Seconds for which a server may show no sign of life while it owes an answer."""
LONG_ANSWER_SECONDS = 3_600.0
"""The same for statements that may take long."""

SCHEMA = "stateroom"
MAX_CONNECTIONS = 8
DEFAULTS: dict[str, Any] = {
    "connect_timeout": int(ANSWER_SECONDS),
    "tcp_user_timeout": int(ANSWER_SECONDS * 1000),  # a host that is gone says nothing
    "keepalives_idle": int(ANSWER_SECONDS),
    "keepalives_interval": 1,
    "keepalives_count": 5,
    "fallback_application_name": "stateroom",
}

Row = tuple[Any, ...]

_BINARY = [Format.BINARY] * 32
_UNAVAILABLE = ("08", "40", "53", "55", "57", "58")
"""Classes of errors that pass: lost connections, deadlocks, a full disk, locks, a server that stops, a broken disk."""
_READ_ONLY = "25006"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_UNESCAPED = re.compile(r"://.*[@/].*@")
"""A password with an @ or a / in it that is not written %40 or %2F."""


class PostgresLink:
    """A connection to the server."""

    timeout = ANSWER_SECONDS

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._server = connection.pgconn
        self._server.nonblocking = 1
        self._socket = self._server.socket
        self._rows = Transformer(connection)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)
        self._results: list[PGresult] = []
        self._answer: asyncio.Future[list[Row]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timeout = self.timeout
        self.alive = True

    @property
    def idle(self) -> bool:
        """Whether it can take another question."""
        return self.alive and self._answer is None

    def run(self, script: bytes) -> asyncio.Future[list[Row]]:
        """Send several statements without parameters."""
        return self.ask(script, None, LONG_ANSWER_SECONDS)

    def ask(
        self, statement: bytes, values: Sequence[Value] | None = (), timeout: float | None = None
    ) -> asyncio.Future[list[Row]]:
        """Send one statement. The answer is its rows; `StoreError` if it is refused, `StoreUnavailable` if lost."""
        timeout = timeout or self.timeout
        answer: asyncio.Future[list[Row]] = self._loop.create_future()
        self._answer, self._timeout = answer, timeout
        try:
            if values is None:
                self._server.send_query(statement)
            else:
                self._server.send_query_params(statement, values, None, _BINARY[: len(values)], Format.BINARY)
            unsent = self._server.flush()
        except psycopg.Error as error:
            self._lose(error)
            return answer
        if unsent:
            self._loop.add_writer(self._socket, self._write)
        self._timer = self._loop.call_later(timeout, self._give_up)
        return answer

    # What the event loop calls.

    def _write(self) -> None:
        try:
            if not self._server.flush():
                self._loop.remove_writer(self._socket)
        except Exception as error:  # noqa: BLE001 (without an answer the caller waits forever)
            self._lose(error)
        else:
            self._wait_on()

    def _read(self) -> None:
        server = self._server
        try:
            server.consume_input()
            while not server.is_busy():
                result = server.get_result()
                if result is None:
                    if self._answer is not None:
                        self._finish(self._answer)
                    return
                self._results.append(result)
        except Exception as error:  # noqa: BLE001 (without an answer the caller waits forever)
            self._lose(error)
        else:
            self._wait_on()

    def _wait_on(self) -> None:
        """Restart the timeout: there was a sign of life."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._loop.call_later(self._timeout, self._give_up)

    def _give_up(self) -> None:
        self._lose(TimeoutError(f"no answer for {self._timeout:g} s"))

    # Answers.

    def _finish(self, answer: asyncio.Future[list[Row]]) -> None:
        failed = next((result for result in self._results if result.status == ExecStatus.FATAL_ERROR), None)
        rows: list[Row] = []
        if failed is None and not answer.done():  # else the caller has stopped waiting
            self._rows.set_pgresult(self._results[-1])
            rows = self._rows.load_rows(0, self._results[-1].ntuples, tuple)
        self._results, self._answer = [], None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if answer.done():
            return
        if failed is None:
            answer.set_result(rows)
        else:
            answer.set_exception(self._error(failed))

    def _error(self, result: PGresult) -> StoreError:
        code = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
        message = f"PostgreSQL: {_primary_message(result)}"
        if code == _READ_ONLY:
            self.close()  # it has become a standby; a new connection finds the server that took over
            return StoreUnavailable(message)
        return StoreUnavailable(message) if code.startswith(_UNAVAILABLE) else StoreError(f"{message} ({code})")

    def _lose(self, error: Exception) -> None:
        """Give this connection up."""
        answer, messages = self._answer, [_primary_message(result) for result in self._results if result.error_message]
        self.close()
        if answer is not None and not answer.done():
            known = isinstance(error, psycopg.Error | TimeoutError)
            why = one_line("; ".join([*messages, str(error) if known else repr(error)]))
            lost = StoreUnavailable(f"the connection to PostgreSQL was lost: {why}")
            lost.__cause__ = error
            answer.set_exception(lost)

    def close(self) -> None:
        """Close the connection. The server rolls back an open transaction."""
        if not self.alive:
            return
        self.alive = False
        self._answer = None
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._server.finish()


class DatabaseAddress(NamedTuple):
    """Where the tables of a store are."""

    parameters: dict[str, Any]
    schema: str
    pool: int

    @property
    def place(self) -> str:
        """The address for a message, without the password."""
        given = self.parameters
        host = given.get("host") or given.get("hostaddr") or "the local server"
        return f"{host}{':' + given['port'] if 'port' in given else ''}/{given.get('dbname', '')}"

    async def connect(self) -> PostgresLink:
        """Open a connection."""
        try:
            # The driver starts no transactions and prepares no statements by itself.
            connection = await psycopg.AsyncConnection.connect(
                **self.parameters, autocommit=True, prepare_threshold=None
            )
        except (psycopg.Error, OSError, UnicodeError) as error:
            raise StoreUnavailable(f"cannot reach PostgreSQL at {self.place}: {one_line(str(error))}") from None
        return PostgresLink(connection)


def parse_address(url: str) -> DatabaseAddress:
    """The address in a URL; `UnknownStore` if there is none."""
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    parts = parse_url(url, options={"schema", "pool", *known})
    schema = parts.options.get("schema", SCHEMA)
    if not _NAME.fullmatch(schema):
        raise parts.wrong("schema", "a name of at most 63 letters, digits and underscores")
    try:
        if _UNESCAPED.search(url.partition("?")[0]):
            raise psycopg.ProgrammingError("unescaped characters in the password")
        given = conninfo_to_dict(without_options(url, {"schema", "pool"}))
    except psycopg.Error:  # its message may have a part of the password
        raise UnknownStore(
            f"{without_secrets(url)} is not a valid PostgreSQL URL; write "
            "postgresql://user:password@host:5432/database, and escape @ : / ? % in the password as %40 %3A %2F %3F %25"
        ) from None
    defaults = dict(DEFAULTS)
    if "," in str(given.get("host", "")):
        defaults["target_session_attrs"] = "read-write"  # of several servers, the one that is not a standby
    return DatabaseAddress({**defaults, **given}, schema, parts.whole_number("pool", MAX_CONNECTIONS))


class Pool:
    """At most `size` connections, opened when they are needed; further callers wait for a free one."""

    def __init__(self, address: DatabaseAddress) -> None:
        self._address = address
        self._turns = asyncio.Semaphore(address.pool)
        self._closing = asyncio.Lock()
        self._idle: list[PostgresLink] = []
        self._loop = asyncio.get_running_loop()
        self._failure: StoreUnavailable | None = None
        self._failed = 0.0

    @asynccontextmanager
    async def link(self) -> AsyncIterator[PostgresLink]:
        """A connection for as long as the block runs."""
        asked = self._loop.time()
        async with self._turns:
            link = self._find() or await self._open(asked)
            try:
                yield link
            finally:
                self._give_back(link)

    def _find(self) -> PostgresLink | None:
        while self._idle:
            link = self._idle.pop()
            if link.alive:
                return link
        return None

    async def _open(self, asked: float) -> PostgresLink:
        if self._failure is not None and self._failed >= asked:
            raise StoreUnavailable(str(self._failure))  # tried since: callers need not wait one after another
        try:
            return await self._address.connect()
        except StoreUnavailable as error:
            self._failure, self._failed = error, self._loop.time()
            raise

    def _give_back(self, link: PostgresLink) -> None:
        if link.idle:
            self._idle.append(link)
        else:
            link.close()  # broken, or its caller stopped waiting for the answer

    async def close(self) -> None:
        """Wait for all callers that have, or wait for, a connection; then close all of them."""
        async with self._closing, AsyncExitStack() as turns:
            for _ in range(self._address.pool):
                await turns.enter_async_context(self._turns)
            while self._idle:
                self._idle.pop().close()


@asynccontextmanager
async def transaction(link: PostgresLink, how: bytes = b"BEGIN") -> AsyncIterator[None]:
    """One transaction of several statements. A failed one has ended, with its locks, before the error is raised.

    One that is cancelled, or cannot be rolled back, ends when the server notices that its connection is closed.
    """
    try:
        await link.ask(how)
        yield
        await link.ask(b"COMMIT")
    except BaseException as error:
        if isinstance(error, StateroomError) and link.idle:
            with suppress(StoreError):  # then the connection is closed
                await link.ask(b"ROLLBACK")
        else:
            link.close()
        raise


def _primary_message(result: PGresult) -> str:
    return (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message).decode(errors="replace")


def one_line(message: str) -> str:
    """A message of the driver, which may have several lines."""
    return " ".join(message.split())
