"""Redis keeps every promise of the contract: over TCP and over a socket, with either parser, and as a cluster."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from redis.asyncio.connection import _AsyncRESP2Parser

from stateroom.store.conformance import StoreConformance
from stateroom.store.redis import address
from tests.servers.redis import RedisCluster, RedisServer


@pytest.fixture(scope="module")
def socket_url() -> Iterator[str]:
    with RedisServer() as server:
        yield server.socket_url


@pytest.fixture(scope="module")
def cluster_url() -> Iterator[str]:
    with RedisCluster() as cluster:
        yield cluster.url


def fresh(url: str) -> str:
    """The same server, with a prefix that nobody used before."""
    return f"{url}?prefix={uuid4().hex}:"


class TestRedisStore(StoreConformance):
    @pytest.fixture
    def url(self, redis_url: str) -> str:
        return fresh(redis_url)


class TestOverASocketWithThePythonParser(StoreConformance):
    """Without the help of hiredis in reading the answers."""

    @pytest.fixture
    def url(self, socket_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setitem(address.CONNECTION, "parser_class", _AsyncRESP2Parser)
        return fresh(socket_url)


class TestCluster(StoreConformance):
    @pytest.fixture
    def url(self, cluster_url: str) -> str:
        return fresh(cluster_url)
