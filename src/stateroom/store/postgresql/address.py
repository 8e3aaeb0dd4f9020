"""The address of a database: its URL, as libpq understands it, and how it is reached."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from stateroom.errors import StoreUnavailable, UnknownStore
from stateroom.store.postgresql.connection import PATIENCE, Link, one_line
from stateroom.store.url import parse_url, without_secrets

SCHEMA = "stateroom"
POOL = 8
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_UNESCAPED = re.compile(r"://.*[@/].*@")
"""A password with an @ or a / in it that is not written %40 or %2F."""

DEFAULTS: dict[str, Any] = {
    "connect_timeout": int(PATIENCE),
    "tcp_user_timeout": int(PATIENCE * 1000),  # a host that is gone says nothing
    "keepalives_idle": int(PATIENCE),
    "keepalives_interval": 1,
    "keepalives_count": 5,
    "fallback_application_name": "stateroom",
}


class Address(NamedTuple):
    """Where a store lies."""

    parameters: dict[str, Any]
    schema: str
    pool: int

    @property
    def place(self) -> str:
        """In words, without the password."""
        given = self.parameters
        host = given.get("host") or given.get("hostaddr") or "the local server"
        return f"{host}{':' + given['port'] if 'port' in given else ''}/{given.get('dbname', '')}"

    async def connect(self) -> Link:
        """Open a connection."""
        try:
            # Neither transactions nor prepared statements that the driver begins by itself.
            connection = await psycopg.AsyncConnection.connect(
                **self.parameters, autocommit=True, prepare_threshold=None
            )
        except (psycopg.Error, OSError, UnicodeError) as error:
            raise StoreUnavailable(f"cannot reach PostgreSQL at {self.place}: {one_line(str(error))}") from None
        return Link(connection)


def parse_address(url: str) -> Address:
    """The address that a URL names; `UnknownStore` if it names none."""
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    parts = parse_url(url, options={"schema", "pool", *known})
    schema = parts.options.get("schema", SCHEMA)
    if not _NAME.fullmatch(schema):
        raise parts.wrong("schema", "a name of at most 63 letters, digits and underscores")
    try:
        if _UNESCAPED.search(url.partition("?")[0]):
            raise psycopg.ProgrammingError("a part of the password would be taken for the host, and be shown")
        given = conninfo_to_dict(_without_own_options(url))
    except psycopg.Error:  # its message may have a part of the password
        raise UnknownStore(
            f"{without_secrets(url)} is not the URL of a PostgreSQL database; write "
            "postgresql://user:password@host:5432/database, with @ : / ? % in a password as %40 %3A %2F %3F %25"
        ) from None
    defaults = dict(DEFAULTS)
    if "," in str(given.get("host", "")):
        defaults["target_session_attrs"] = "read-write"  # of several servers, the one that is not a standby
    return Address({**defaults, **given}, schema, parts.whole_number("pool", POOL))


def _without_own_options(url: str) -> str:
    address, _, query = url.partition("?")
    options = [
        option for option in query.split("&") if unquote_plus(option.partition("=")[0]) not in ("schema", "pool")
    ]
    return f"{address}?{'&'.join(options)}" if any(options) else address
