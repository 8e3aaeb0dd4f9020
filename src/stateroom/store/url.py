"""Store URLs: parsing them, finding their store class, and hiding their secrets.

Every URL may have these options, whatever the store:

| option | |
|---|---|
| `compress=zstd` | bodies are compressed |
| `keys=env:NAME`, `keys=file:PATH` | bodies are encrypted; see `stateroom.store.encryption` |
| `timeout=SECONDS` | how long operations over a network are retried: 10 by default, 0 to try once |
| `large=BYTES` | values of at least this size are stored outside the log: 65536 by default and at least |
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Set
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, unquote_plus, urlsplit

from stateroom.errors import UnknownStore
from stateroom.store.contract import Store
from stateroom.store.retry import RETRY_SECONDS, RetryStore

GROUP = "stateroom.stores"
"""The entry-point group in which other packages register a scheme: its name, and a subclass of `Store`."""

BUILT_IN = {
    "memory": "stateroom.store.memory:MemoryStore",
    "sqlite": "stateroom.store.sqlite:SQLiteStore",
    **dict.fromkeys(("redis", "rediss", "unix"), "stateroom.store.redis:RedisStore"),
    **dict.fromkeys(("redis+sentinel", "rediss+sentinel"), "stateroom.store.redis:RedisStore"),
    **dict.fromkeys(("redis+cluster", "rediss+cluster"), "stateroom.store.redis:RedisStore"),
    **dict.fromkeys(("postgresql", "postgres"), "stateroom.store.postgresql:PostgreSQLStore"),
    **dict.fromkeys(("s3", "gs", "az", "file"), "stateroom.store.objects:ObjectStore"),
    "tiered": "stateroom.store.tiered:TieredStore",
}

EXTRAS = {
    "stateroom.store.redis": "redis",
    "stateroom.store.postgresql": "postgresql",
    "stateroom.store.objects": "objects",
    "stateroom.store.compression": "compression",
    "stateroom.store.encryption": "encryption",
}
"""The extra that installs what a module needs."""

COMMON = {"compress", "keys", "timeout", "large"}
"""Options that every URL may have."""

_PASSWORD = re.compile(r"(://[^/@:\[]*:)(?!\d+(?:[/,]|$)).*?(?=@[^@]*$|$)", re.DOTALL)
"""The text between a user's name and the last @ that is not a port. Without an @, the password has a ? in it."""

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]+)?")

_SECRET = re.compile(r"pass|pwd|secret|token|key|credential|sig", re.IGNORECASE)
"""Names of options that may hold a secret."""

_SECRET_NAME = re.compile(r"pass|pwd|secret|token|key|credential|auth", re.IGNORECASE)
"""Names of other values that may be a secret."""

HIDDEN = "***"
"""The placeholder for a secret."""


class StoreURL(NamedTuple):
    """The parts of a store's URL."""

    url: str
    host: str
    path: str
    options: dict[str, str]

    def whole_number(self, option: str, default: int, least: int = 1) -> int:
        """The option as a whole number, at least `least`."""
        text = self.options.get(option, str(default))
        if not text.isdecimal() or int(text) < least:
            raise self.wrong(option, f"a whole number above {least - 1}")
        return int(text)

    def seconds(self, option: str, default: float) -> float:
        """The option as a number of seconds."""
        text = self.options.get(option, str(default))
        if not _SECONDS.fullmatch(text):
            raise self.wrong(option, "a number of seconds")
        return float(text)

    def wrong(self, option: str, expected: str) -> UnknownStore:
        """The error for an option with a bad value."""
        given = self.options[option]
        return UnknownStore(f"{without_secrets(self.url)}: {option} must be {expected}, not {given!r}")


def parse_url(url: str, options: Set[str] = frozenset()) -> StoreURL:
    """Split a URL. Raises `UnknownStore` for options that the store does not have."""
    try:
        parts = urlsplit(url, allow_fragments=False)  # a # is an ordinary character of a path
    except ValueError:  # its text may contain the password
        raise UnknownStore(f"{without_secrets(url)!r} is not a store URL: its host is invalid") from None
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in given:
        if "@" in name:
            raise UnknownStore(f"{without_secrets(url)}: write ? as %3F in a password")
        if name not in options:
            known = f"choose from {', '.join(sorted(options))}" if options else "this store has no options"
            raise UnknownStore(f"{without_secrets(url)}: unknown option {name!r}; {known}")
    return StoreURL(url, parts.netloc, unquote(parts.path), given)


def without_secrets(url: str) -> str:
    """The URL with passwords and secret options hidden, also in a URL within an option."""
    if "://" not in url:
        return "***" if "@" in url else url
    address, mark, query = url.partition("?")
    shown = _PASSWORD.sub(r"\1***", address)
    if shown != address and "@" not in address:
        return shown
    return f"{shown}{mark}{'&'.join(map(_option_without_secret, query.split('&')))}"


def _option_without_secret(option: str) -> str:
    name, equals, value = option.partition("=")
    if _SECRET.search(_name(option)) and not value.startswith(("env:", "file:")):
        return f"{name}{equals}***"
    plain = unquote(value)
    shown = without_secrets(plain) if "://" in plain else plain
    return option if shown == plain else f"{name}={quote(shown, safe=':/?@*=')}"


def _name(option: str) -> str:
    return unquote_plus(option.partition("=")[0])


def hide_secrets(value: Any, name: str = "") -> Any:
    """JSON data with passwords in URLs and values under secret-looking keys hidden."""
    if isinstance(value, dict):
        return {key: hide_secrets(each, f"{name} {key}") for key, each in value.items()}
    if isinstance(value, list):
        return [hide_secrets(each, name) for each in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if _SECRET_NAME.search(name) else without_secrets(value) if "://" in value else value


@asynccontextmanager
async def open_store(url: str) -> AsyncIterator[Store]:
    """Open the store at a URL for as long as the block runs.

    `memory://` and `sqlite:///path/to/file.db` need no other package; other packages can register more schemes.
    """
    store = await opened(url)
    try:
        yield store
    finally:
        await store.close()


async def opened(url: str) -> Store:
    """Open the store at a URL, with the wrappers for its common options; the caller closes it."""
    plain, common = _without_common_options(url)
    large = common.whole_number("large", Store.large, least=Store.large)
    wrappers = list(_wrappers(common))  # before anything is open that would have to be closed
    store = await store_class(plain).open(plain)
    if "large" in common.options:
        store.large = large
    for wrap in wrappers:
        store = wrap(store)
    return store


def _without_common_options(url: str) -> tuple[str, StoreURL]:
    """A URL as its store sees it, and the common options."""
    given = dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))
    return without_options(url, COMMON), StoreURL(url, "", "", {name: given[name] for name in COMMON & given.keys()})


def without_options(url: str, names: Set[str]) -> str:
    """A URL without some options; the others stay as they are written."""
    address, _, query = url.partition("?")
    options = "&".join(option for option in query.split("&") if _name(option) not in names)
    return f"{address}?{options}" if options else address


def _wrappers(common: StoreURL) -> Iterator[Callable[[Store], Store]]:
    """The wrappers of a store, from the inside out: a body is compressed, then encrypted, then written with retries."""
    timeout = common.seconds("timeout", RETRY_SECONDS)
    if timeout:
        yield lambda store: RetryStore(store, timeout) if store.remote else store
    if "keys" in common.options:
        encrypted = _load("stateroom.store.encryption", "encryption")
        keys = encrypted.read_keys(common.options["keys"])
        yield lambda store: encrypted.EncryptedStore(store, keys)
    if "compress" in common.options:
        if common.options["compress"] != "zstd":
            raise common.wrong("compress", "zstd")
        yield _load("stateroom.store.compression", "compression").CompressedStore


def store_class(url: str) -> type[Store]:
    """The store class for a URL's scheme."""
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme:
        raise UnknownStore(
            f"{without_secrets(url)!r} is not a store URL; write for example sqlite:///rooms.db or memory://"
        )
    try:
        kind = _find(scheme)
    except AttributeError as error:
        raise UnknownStore(f"the store for {scheme}:// cannot be loaded: {error}") from error
    if kind is None:
        schemes = sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})
        raise UnknownStore(f"unknown store {scheme}://; choose from {', '.join(schemes)}")
    if not (isinstance(kind, type) and issubclass(kind, Store)):
        raise UnknownStore(f"the store for {scheme}:// must be a subclass of stateroom.store.Store, not {kind!r}")
    return kind


def _find(scheme: str) -> Any:
    what = f"the store for {scheme}://"
    if scheme in BUILT_IN:
        module, _, name = BUILT_IN[scheme].partition(":")
        return getattr(_load(module, what), name)
    for point in entry_points(group=GROUP, name=scheme):
        try:
            return point.load()
        except ImportError as error:
            raise UnknownStore(f"{what} needs a package that is not installed ({error})") from error
    return None


def _load(module: str, what: str) -> Any:
    """Import one of our modules, which may need an extra."""
    try:
        return import_module(module)
    except ImportError as error:
        extra = f"; try: pip install 'stateroom[{EXTRAS[module]}]'" if module in EXTRAS else ""
        raise UnknownStore(f"{what} needs a package that is not installed ({error}){extra}") from error
