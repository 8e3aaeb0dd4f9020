"""What a Redis URL means, and the link to its server."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from stateroom.errors import UnknownStore
from stateroom.store.redis.connection import ANSWER_SECONDS, CONNECT_SECONDS, ClusterLink, RedisLink, ServerLink
from stateroom.store.url import StoreURL, parse_url, without_secrets

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
        raise UnknownStore(f"{without_secrets(parts.url)} names no socket: {FORMS}")
    database = _database(parts, parts.options.get("db", ""))
    connection = UnixDomainSocketConnection(path=parts.path, db=database, **CONNECTION, **settings)
    return ServerLink(f"Redis at {parts.path}", connection)


def _sentinel(parts: StoreURL, hosts: str, secure: bool, settings: dict[str, Any]) -> RedisLink:
    service, _, database = parts.path.strip("/").partition("/")
    addresses = _addresses(parts, hosts, 26379)
    if not service:
        raise UnknownStore(f"{without_secrets(parts.url)} names no service: {FORMS}")
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
        raise UnknownStore(f"{without_secrets(parts.url)}: a cluster has no other database than 0; {FORMS}")
    client = RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in addresses],
        retry=Retry(NoBackoff(), 0),  # a command that may have been carried out is not sent again
        ssl=secure,
        **{**CONNECTION, "socket_timeout": ANSWER_SECONDS},
        **settings,
    )
    return ClusterLink(f"Redis cluster at {_shown(addresses)}", client)


_LINKS = {"": _server, "unix": _socket, "sentinel": _sentinel, "cluster": _cluster}


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


def _addresses(parts: StoreURL, hosts: str, port: int, only: int | None = None) -> list[tuple[str, int]]:
    found = [_HOST.fullmatch(each) for each in hosts.split(",")]
    if not all(found) or (only and len(found) > only):
        raise UnknownStore(f"{without_secrets(parts.url)} has no address that can be understood: {FORMS}")
    return [(each["host"].strip("[]"), int(each["port"] or port)) for each in found if each]


def _database(parts: StoreURL, text: str) -> int:
    if text and not text.isdecimal():
        raise UnknownStore(f"{without_secrets(parts.url)}: a database is a number, not {text!r}; {FORMS}")
    return int(text or 0)


def _shown(addresses: list[tuple[str, int]]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in addresses)
