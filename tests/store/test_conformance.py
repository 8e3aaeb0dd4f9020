"""The built-in stores keep every promise of the contract, and answer as a model in plain dicts does."""

from pathlib import Path
from uuid import uuid4

import pytest
from redis.asyncio.connection import _AsyncRESP2Parser  # type: ignore[attr-defined]

from stateroom.store.conformance import StoreConformance
from stateroom.store.conformance.appends import AppendPromises
from stateroom.store.conformance.stateful import check_against_model
from stateroom.store.conformance.suite import ConcurrencyPromises
from stateroom.store.redis import connection
from tests.examples import share
from tests.servers.redis import RedisCluster, RedisServer
from tests.store.conftest import Fresh
from tests.store.tiers import tiered

LONG = pytest.mark.more("time")


class OfAKind:
    """Stores at URLs that nobody used before."""

    kind = ""

    @pytest.fixture
    def url(self, fresh: Fresh) -> str:
        return fresh(self.kind)


class TestMemory(OfAKind, StoreConformance):
    kind = "memory"
    shared = False
    durable = False


class TestSQLite(OfAKind, StoreConformance):
    kind = "sqlite"


class TestFolder(OfAKind, StoreConformance):
    kind = "file"


class TestPostgreSQL(OfAKind, StoreConformance):
    kind = "postgresql"


class TestRedis(OfAKind, StoreConformance):
    kind = "redis"


@LONG
class TestS3(OfAKind, AppendPromises, ConcurrencyPromises):
    """What a bucket has a part in; all else is the same code as on a folder."""

    kind = "s3"
    increments = 10


class TestSessionsThatMove(StoreConformance):
    """Whatever is in the warm tier moves down with each sweep, and nobody sees a difference."""

    increments = 20

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return tiered(f"sqlite:///{tmp_path}/warm.db", f"sqlite:///{tmp_path}/cold.db", cool=0)


class TestCopies(StoreConformance):
    """A commit is durable in the cold tier, and the warm one has copies."""

    increments = 20

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return tiered(f"sqlite:///{tmp_path}/warm.db", f"sqlite:///{tmp_path}/cold.db", durable="cold")


class TestRedisOverASocketWithThePythonParser(StoreConformance):
    """Without the help of hiredis in reading the answers."""

    @pytest.fixture
    def url(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setitem(connection.CONNECTION, "parser_class", _AsyncRESP2Parser)
        return f"{server.socket_url}?prefix={uuid4().hex}:"


class TestRedisCluster(StoreConformance):
    @pytest.fixture
    def url(self, cluster: RedisCluster) -> str:
        return f"{cluster.url}?prefix={uuid4().hex}:"


@pytest.mark.parametrize(
    ("kind", "part"),
    [("memory", 1), ("sqlite", 0.4), ("redis", 0.4), ("postgresql", 0.4), ("file", 0.4),
     pytest.param("s3", 0.1, marks=LONG)],
)  # fmt: skip
def test_whatever_is_asked_a_store_answers_as_a_model_does(kind: str, part: float, fresh: Fresh) -> None:
    check_against_model(lambda: fresh(kind), examples=share(part))


@pytest.mark.parametrize("options", [{"cool": 0}, {"durable": "cold"}, {"durable": "cold", "cool": 1}])
def test_so_do_two_tiers(options: dict[str, object]) -> None:
    check_against_model(lambda: tiered("memory://", "memory://?max_sessions=1000", **options), examples=share(0.4))
