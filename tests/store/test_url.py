"""Which class a store URL names, and what is said when it names none."""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from stateroom.errors import StoreError, StoreUnavailable, UnknownStore
from stateroom.store import MemoryStore, Store, open_store, parse_url, store_class, without_secrets
from stateroom.store.compression import CompressedStore
from stateroom.store.encryption import EncryptedStore
from stateroom.store.url import opened
from tests.messages import raises, says
from tests.patience import PATIENCE
from tests.store.conftest import Register

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"

SQLiteStore = store_class("sqlite:///rooms.db")


class HarbourStore(MemoryStore):
    """A store of another package."""

    opened: ClassVar[list[str]] = []

    @classmethod
    async def open(cls, url: str) -> Self:
        cls.opened.append(url)
        return cls(3)


class NotAStore:
    pass


a_store = HarbourStore()


def number_in(url: str) -> int:
    return parse_url(url, options={"size"}).whole_number("size", 7)


@pytest.fixture
def harbour(register: Register) -> None:
    """`harbour://` stands for the store of another package."""
    register("harbour", f"{__name__}:HarbourStore")
    HarbourStore.opened.clear()


URLS = ["", "rooms.db", "/rooms.db", "sqlite:rooms.db", "://rooms.db", "memory:/", "mongodb://localhost"]


@pytest.mark.usefixtures("harbour")
@pytest.mark.parametrize(
    "use",
    [
        *(partial(store_class, url) for url in URLS),
        *(partial(parse_url, url, options={"one", "two"}) for url in ("x://?three=3", "x://?three", "x://[::1/a")),
        *(partial(number_in, f"x://?size={text}") for text in ("0", "-1", "1.5", "many", "")),
    ],
)
def test_what_of_a_url_is_not_known_or_cannot_be_read_is_refused(use: Callable[[], object]) -> None:
    with raises(UnknownStore):
        use()


@pytest.mark.usefixtures("harbour")
async def test_another_package_can_serve_a_scheme() -> None:
    async with open_store("harbour://north?berth=3") as store:
        assert isinstance(store, HarbourStore)
        assert store.max_sessions == 3
        assert store.opened == ["harbour://north?berth=3"]
        assert await store.heads() == []


def test_another_package_cannot_take_over_a_built_in_scheme(register: Register) -> None:
    register("memory", f"{__name__}:HarbourStore")
    assert store_class("memory://") is MemoryStore


@pytest.mark.parametrize("target", ["NotAStore", "a_store", "HARBOUR_NAME_TYPO"])
def test_what_is_registered_must_be_a_store_class(register: Register, target: str) -> None:
    register("harbour", f"{__name__}:{target}")
    with pytest.raises(UnknownStore, match="harbour"):
        store_class("harbour://")


def test_a_package_that_is_missing_is_named(register: Register) -> None:
    register("harbour", "harbour_driver_that_is_not_there:HarbourStore")
    with raises(UnknownStore) as refused:
        store_class("harbour://")
    assert "pip install" not in str(refused.value)  # which one, only that package's authors know
    assert isinstance(refused.value.__cause__, ImportError)


WITHOUT_PACKAGES = """
import asyncio, sys
from stateroom.errors import UnknownStore
from stateroom.store import open_store

async def main():
    for url, package in zip(sys.argv[1::2], sys.argv[2::2]):
        sys.modules[package] = None  # as if it were not installed
        try:
            async with open_store(url):
                print("opened", url)
        except UnknownStore as error:
            print(error)

asyncio.run(main())
"""

PACKAGES = {
    **dict.fromkeys(("redis://localhost", "rediss://localhost", "unix:///socket"), "redis"),
    **dict.fromkeys(("postgresql://localhost/rooms", "postgres://localhost/rooms"), "psycopg"),
    **dict.fromkeys(("s3://bucket", "gs://bucket", "az://container", "file:///folder"), "obstore"),
    "memory://?keys=env:KEYS": "cryptography",
    "memory://?compress=zstd": ZSTD,
}


def test_a_missing_extra_is_named_with_the_command_that_installs_it() -> None:
    command = [sys.executable, "-c", WITHOUT_PACKAGES, *chain.from_iterable(PACKAGES.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    lines = done.stdout.splitlines()
    assert len(lines) == len(PACKAGES)
    for line in lines:
        says(line)


async def test_a_store_is_closed_when_its_block_fails() -> None:
    kept: Store | None = None

    async def fail() -> None:
        nonlocal kept
        async with open_store("memory://") as store:
            kept = store
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert kept is not None
    with raises(StoreUnavailable):
        await kept.heads()


def test_the_parts_of_a_url() -> None:
    parts = parse_url("x://user@host:1/a%20b#c?one=1&two=", options={"one", "two"})
    assert parts.host == "user@host:1"
    assert parts.path == "/a b#c"
    assert parts.options == {"one": "1", "two": ""}
    assert (number_in("x://"), number_in("x://?size=12")) == (7, 12)


REFUSED = [
    *("memory://?max_sessions=0", "memory://?max_sessions=few", "memory://?size=3"),
    *(
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://rooms.db",
        "sqlite://h/a.db",
        "sqlite:///a.db?mode=ro",
    ),
    *("redis://host:port/0", "redis://host:1/name", "redis://one,two/0", "redis://localhost?ssl_ca_certs=ca.pem"),
    *("unix://", "unix://host/path", "unix:///path?db=x", "redis+sentinel://host:1", "redis+sentinel:///service"),
    *("redis+cluster://", "redis+cluster://host:1/3"),
    *("s3://", "s3:///prefix", "gs://", "az://", "file://", "file:///", "file://host/folder", "file:///tmp/a?region=x"),
    *("s3://rooms?account=a", "gs://rooms?region=x", "az://rooms?region=x"),
    "postgresql://me:hunter%zz2@host/db",
    *(f"postgresql://me:hunter2@host/db?{option}" for option in ("schem=a", "schema=a.b", "schema=", "pool=0")),
    "postgresql://me:hunter2@host/db?schema=" + "a" * 64,
    *("tiered://", "tiered://?warm=memory://", "tiered://?warm=memory://&cold=redis"),
    *("tiered://?warm=memory://&cold=memory://", "tiered://host?warm=memory://&cold=sqlite:///a.db"),
    "tiered://?warm=memory://&cold=sqlite:///a.db&durable=both",
    "tiered://?warm=memory://&cold=sqlite:///a.db&cool=soon",
    *("tiered://?warm=redis://h?db=1&prefix=a&cold=memory://", "tiered://?warm=nonsense://&cold=memory://"),
]


@pytest.mark.parametrize("url", REFUSED)
async def test_a_url_that_its_store_cannot_understand_is_refused_without_the_password(url: str) -> None:
    with raises(UnknownStore) as refused:
        await opened(url)
    assert "hunter" not in str(refused.value)


# Options of every URL.


@pytest.mark.usefixtures("harbour")
async def test_a_store_does_not_see_the_options_of_every_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "k1:" + "A" * 43 + "=")
    options = "compress=zstd&a=1%262&ke%79s=env:KEYS&b=memory://?large=1&timeout=2&large=70000"
    async with open_store(f"harbour://north?{options}") as store:
        assert isinstance(store, CompressedStore)
        assert isinstance(store.store, EncryptedStore)
        assert isinstance(store.store.store, HarbourStore)
        assert store.store.store.opened == ["harbour://north?a=1%262&b=memory://?large=1"]
        assert store.large == store.store.store.large == 70_000
        assert not store.shared
    async with open_store("harbour://south?large=65536") as store:
        assert HarbourStore.opened[1:] == ["harbour://south"]
        assert store.large == 65_536


async def test_whoever_opens_a_store_without_a_block_closes_it() -> None:
    store = await opened("memory://?large=100000")
    assert type(store) is MemoryStore
    assert store.large == 100_000
    assert MemoryStore().large == 65_536
    await store.close()


@pytest.mark.parametrize(
    "option",
    ["compress=gzip", "compress", "large=65535", "large=1e6", "timeout=-1", "timeout=inf", "timeout=", "timeout=soon"],
)
async def test_an_option_of_every_url_that_cannot_be_used_is_refused(tmp_path: Path, option: str) -> None:
    url = f"sqlite:///{tmp_path / 'rooms.db'}?{option}"
    with raises(UnknownStore):
        await opened(url)
    assert not (tmp_path / "rooms.db").exists()


# What is shown of a URL.


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:hush@host:6379/0", "redis://:***@host:6379/0"),
        ("rediss://me:hush@[::1]:6379/0?prefix=a", "rediss://me:***@[::1]:6379/0?prefix=a"),
        ("redis://me:hu@sh@host/0", "redis://me:***@host/0"),
        ("redis://me:hu/sh@host/0", "redis://me:***@host/0"),
        ("redis://me:hu?sh@host/0?prefix=a", "redis://me:***"),
        ("redis://me:1234@host/0", "redis://me:***@host/0"),
        (
            "postgresql://me:hush@one:5432,two:5433/rooms?schema=a",
            "postgresql://me:***@one:5432,two:5433/rooms?schema=a",
        ),
        ("unix:///a.sock?db=1&password=hush", "unix:///a.sock?db=1&password=***"),
        (
            "s3://b/p?secret_access_key=hush&region=x&session_token=hush",
            "s3://b/p?secret_access_key=***&region=x&session_token=***",
        ),
        ("s3://b?endpoint=https%3A%2F%2Fme%3Ahush%40host", "s3://b?endpoint=https://me:***@host"),
        ("memory://?keys=k1:hush", "memory://?keys=***"),
        ("memory://?pass%77ord=hush", "memory://?pass%77ord=***"),
        (
            "tiered://?warm=redis://:hush@host/0&cold=postgresql%3A%2F%2Fme%3Ahush%40host%2Frooms%3Fschema%3Da",
            "tiered://?warm=redis://:***@host/0&cold=postgresql://me:***@host/rooms?schema=a",
        ),
    ],
)
def test_no_secret_is_shown(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
    assert without_secrets(shown) == shown


@pytest.mark.parametrize(
    "url",
    [
        "",
        "rooms.db",
        "memory://?max_sessions=3",
        "sqlite:////home/me@work/a:b@c.db?keys=file:/etc/keys&compress=zstd",
        "redis://host:6379/0?prefix=a@b",
        "redis://host:6379",
        "redis+sentinel://one:26379,two:26379/main",
        "postgresql://me@host/rooms",
        "file://./folder:with@things",
        "s3://bucket/a@b?endpoint=http://127.0.0.1:9000&keys=env:KEYS",
        "tiered://?warm=redis%3A%2F%2Fhost%3A1%2F0&cold=sqlite:///a%26b.db",
        "x://[::1/a",
    ],
)
def test_a_url_without_secrets_is_shown_as_it_is(url: str) -> None:
    assert without_secrets(url) == url


@pytest.mark.parametrize(
    "use",
    [
        lambda: parse_url("x://me:hush@host?three=3"),
        lambda: parse_url("x://me:hush@[host"),
        lambda: parse_url("x://me:hush@\u2100"),
        lambda: parse_url("x://me:hu?sh@host"),
        lambda: number_in("x://me:hush@host?size=no"),
        lambda: store_class("me:hush@host"),
        lambda: store_class("redis:/:hush@host"),
    ],
)
def test_no_password_is_in_a_message(use: Any) -> None:
    with pytest.raises(UnknownStore) as refused:
        use()
    assert not re.search("hu|sh", str(refused.value))


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:hush@bucket/prefix",
        "gs://KEY:hush@bucket",
        "az://KEY:hush@container",
        "postgresql://user:pass@hush@127.0.0.1:1/db?timeout=0",
        "postgresql://user:pass/hush@127.0.0.1:1/db?timeout=0",
        "redis://user:pass@hush@127.0.0.1:1/0?timeout=0",
        "redis://user:pass/hush@127.0.0.1:1/0?timeout=0",
        "sqlite:///rooms.db?keys=hush",
    ],
)
async def test_no_secret_is_in_the_error_of_a_store_that_cannot_be_opened(url: str) -> None:
    with pytest.raises(StoreError) as raised:
        await opened(url)
    assert "hush" not in str(raised.value)
    assert "hush" not in str(raised.value.__cause__)
