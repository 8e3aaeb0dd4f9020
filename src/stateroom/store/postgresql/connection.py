"""One connection to the server, on which one thing is asked at a time.

Questions go straight to libpq, through psycopg's wrapper of it: an unnamed statement with its parameters, and no more
of a session's state on the server, so that a pooler between may give each transaction another server connection. The
event loop watches the socket all the time, also while nothing is asked, and so sees at once when the server goes away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import DiagnosticField, ExecStatus, Format
from psycopg.pq.abc import PGresult

from stateroom.errors import StoreError, StoreUnavailable
from stateroom.store.postgresql.values import Value

PATIENCE = 5.0
"""For how many seconds a server may show no sign of life while it owes an answer."""
LONG = 3_600.0
"""For how many seconds it may, if what it does takes its time."""

Row = tuple[Any, ...]

_BINARY = [Format.BINARY] * 32
_UNAVAILABLE = ("08", "40", "53", "55", "57", "58")
"""Classes of errors that pass: lost connections, deadlocks, a full disk, locks, a server that stops, a broken disk."""
_READ_ONLY = "25006"


class Link:
    """A connection to the server."""

    patience = PATIENCE

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
        self._patience = self.patience
        self.alive = True

    @property
    def idle(self) -> bool:
        """Whether another question can be asked."""
        return self.alive and self._answer is None

    def ask(
        self, statement: bytes, values: Sequence[Value] = (), patience: float | None = None
    ) -> asyncio.Future[list[Row]]:
        """Send one statement. The answer is its rows; `StoreError` if it is refused, `StoreUnavailable` if lost."""
        return self._send(statement, values, patience or self.patience)

    def run(self, script: bytes) -> asyncio.Future[list[Row]]:
        """Send several statements that have no parameters."""
        return self._send(script, None, LONG)

    def _send(self, statement: bytes, values: Sequence[Value] | None, patience: float) -> asyncio.Future[list[Row]]:
        answer: asyncio.Future[list[Row]] = self._loop.create_future()
        self._answer, self._patience = answer, patience
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
        self._timer = self._loop.call_later(patience, self._give_up)
        return answer

    # What the event loop calls.

    def _write(self) -> None:
        try:
            if not self._server.flush():
                self._loop.remove_writer(self._socket)
        except Exception as error:  # noqa: BLE001 (without an answer whoever asked waits for ever)
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
        except Exception as error:  # noqa: BLE001 (without an answer whoever asked waits for ever)
            self._lose(error)
        else:
            self._wait_on()

    def _wait_on(self) -> None:
        """Begin to wait anew: there was a sign of life."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._loop.call_later(self._patience, self._give_up)

    def _give_up(self) -> None:
        self._lose(TimeoutError(f"no answer for {self._patience:g} s"))

    # Answers.

    def _finish(self, answer: asyncio.Future[list[Row]]) -> None:
        failed = next((result for result in self._results if result.status == ExecStatus.FATAL_ERROR), None)
        rows: list[Row] = []
        if failed is None and not answer.done():  # else whoever asked has stopped waiting
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
            self.close()  # it has become a standby; whoever connects anew finds the server that took over
            return StoreUnavailable(message)
        return StoreUnavailable(message) if code.startswith(_UNAVAILABLE) else StoreError(f"{message} ({code})")

    def _lose(self, error: Exception) -> None:
        """Do without this connection from now on."""
        answer, said = self._answer, [_primary_message(result) for result in self._results if result.error_message]
        self.close()
        if answer is not None and not answer.done():
            known = isinstance(error, psycopg.Error | TimeoutError)
            why = one_line("; ".join([*said, str(error) if known else repr(error)]))
            lost = StoreUnavailable(f"the connection to PostgreSQL was lost: {why}")
            lost.__cause__ = error
            answer.set_exception(lost)

    def close(self) -> None:
        """Let go of the connection. A transaction that is open is rolled back by the server."""
        if not self.alive:
            return
        self.alive = False
        self._answer = None
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._server.finish()


def _primary_message(result: PGresult) -> str:
    return (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message).decode(errors="replace")


def one_line(message: str) -> str:
    """A message of the driver's, which may have several lines."""
    return " ".join(message.split())
