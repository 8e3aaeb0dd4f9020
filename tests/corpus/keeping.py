"""How the content of a store becomes one file, just as it lies there, and the content of a fresh store again."""

from __future__ import annotations

import gzip
import io
import sqlite3
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec
import psycopg
import redis

from tests.servers.postgresql import find_binary


class Kind(NamedTuple):
    """A kind of store: its file, and the ways there and back. A store is named by its URL, and closed meanwhile."""

    suffix: str
    pack: Callable[[str], bytes]
    unpack: Callable[[bytes, str], None]


def pack(kind: str, url: str, folder: Path) -> None:
    """Keep what is in a store."""
    how = KINDS[kind]
    (folder / f"{kind}.{how.suffix}.gz").write_bytes(gzip.compress(how.pack(url), mtime=0))


def unpack(kind: str, folder: Path, url: str) -> None:
    """Put what was kept into a store that nobody has used."""
    how = KINDS[kind]
    how.unpack(gzip.decompress((folder / f"{kind}.{how.suffix}.gz").read_bytes()), url)


def kinds_in(folder: Path) -> list[str]:
    """The kinds of stores of which something is kept."""
    return sorted(path.name.partition(".")[0] for path in folder.glob("*.gz"))


def _path(url: str) -> Path:
    return Path(url.partition("://")[2].partition("?")[0])


def _option(url: str, name: str) -> str:
    return parse_qs(url.partition("?")[2])[name][0]


# SQLite: the file.


def _pack_sqlite(url: str) -> bytes:
    with closing(sqlite3.connect(_path(url))) as connection:
        connection.execute("VACUUM")
    return _path(url).read_bytes()


def _unpack_sqlite(content: bytes, url: str) -> None:
    _path(url).write_bytes(content)


# Files: the folder.


def _pack_folder(url: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(_path(url), arcname=".", filter=_nobodys)
    return packed.getvalue()


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _unpack_folder(content: bytes, url: str) -> None:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(_path(url), filter="data")


# Redis: each key by what it holds, which every server understands.


def _pack_redis(url: str) -> bytes:
    prefix = _option(url, "prefix").encode()
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        keys = sorted(client.scan_iter(prefix + b"*", count=1000))
        return msgspec.msgpack.encode([[key.removeprefix(prefix), *_held(client, key)] for key in keys])


def _held(client: Any, key: bytes) -> tuple[str, list[Any]]:
    assert client.pttl(key) == -1, "a key that ends by itself is not kept"
    match client.type(key):
        case b"hash":
            return "HSET", [part for field in sorted(client.hgetall(key).items()) for part in field]
        case b"zset":
            members = client.zrange(key, 0, -1, withscores=True)
            return "ZADD", [part for member, score in members for part in (repr(score), member)]
        case b"string":
            return "SET", [client.get(key)]
        case b"set":
            return "SADD", sorted(client.smembers(key))
        case other:
            raise NotImplementedError(f"a key of type {other!r}")


def _unpack_redis(content: bytes, url: str) -> None:
    prefix = _option(url, "prefix").encode()
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        for key, command, parts in msgspec.msgpack.decode(content):
            client.execute_command(command, prefix + key, *parts)


# PostgreSQL: the schema, as a script.

_SCHEMA = b"schema_of_the_corpus"


def _pack_postgresql(url: str) -> bytes:
    address, schema = url.partition("?")[0], _option(url, "schema")
    command: list[Any] = [
        find_binary("pg_dump"),
        f"--dbname={address}",
        f"--schema={schema}",
        "--inserts",
        "--no-owner",
    ]
    script = subprocess.run(command, check=True, capture_output=True).stdout
    # What only psql, or only the newest servers, understand.
    lines = [line for line in script.splitlines() if not line.startswith((b"\\", b"SET transaction_timeout", b"--"))]
    return b"\n".join(lines).replace(schema.encode(), _SCHEMA)


def _unpack_postgresql(content: bytes, url: str) -> None:
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        connection.execute(content.replace(_SCHEMA, _option(url, "schema").encode()))


KINDS = {
    "sqlite": Kind("db", _pack_sqlite, _unpack_sqlite),
    "sqlite-guarded": Kind("db", _pack_sqlite, _unpack_sqlite),
    "file": Kind("tar", _pack_folder, _unpack_folder),
    "redis": Kind("msgpack", _pack_redis, _unpack_redis),
    "postgresql": Kind("sql", _pack_postgresql, _unpack_postgresql),
}
