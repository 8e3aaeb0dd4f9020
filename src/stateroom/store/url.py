"""Store URLs: what they mean, and which class serves them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from stateroom.errors import UnknownStore
from stateroom.store.contract import Store

GROUP = "stateroom.stores"
"""The entry-point group in which other packages register a scheme: its name, and a subclass of `Store`."""

BUILT_IN = {"memory": "stateroom.store.memory:MemoryStore", "sqlite": "stateroom.store.sqlite:SQLiteStore"}


class StoreURL(NamedTuple):
    """The parts of a store's URL."""

    url: str
    host: str
    path: str
    options: dict[str, str]

    def whole_number(self, option: str, default: int) -> int:
        """The option as a positive whole number."""
        text = self.options.get(option, str(default))
        if not text.isdecimal() or int(text) < 1:
            raise UnknownStore(f"{self.url}: {option} must be a whole number above 0, not {text!r}")
        return int(text)


def parse_url(url: str, options: Set[str] = frozenset()) -> StoreURL:
    """Split a URL, and refuse options that the store does not have."""
    try:
        parts = urlsplit(url, allow_fragments=False)  # a # is an ordinary character of a path
    except ValueError as error:
        raise UnknownStore(f"{url!r} is not a store URL: {error}") from error
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in given:
        if name not in options:
            known = f"it has {', '.join(sorted(options))}" if options else "it has none"
            raise UnknownStore(f"{url}: this store has no option {name!r}; {known}")
    return StoreURL(url, parts.netloc, unquote(parts.path), given)


@asynccontextmanager
async def open_store(url: str) -> AsyncIterator[Store]:
    """Open the store that a URL names, for as long as the block runs.

    `memory://` and `sqlite:///path/to/file.db` are built in; other packages can register more.
    """
    store = await store_class(url).open(url)
    try:
        yield store
    finally:
        await store.close()


def store_class(url: str) -> type[Store]:
    """The class that serves a URL's scheme."""
    scheme, separator, _ = url.partition("://")
    if not separator or not scheme:
        raise UnknownStore(f"{url!r} is not a store URL; write for example sqlite:///rooms.db or memory://")
    try:
        found = _find(scheme)
    except ImportError as error:
        extra = f"; try: pip install 'stateroom[{scheme}]'" if scheme in BUILT_IN else ""
        raise UnknownStore(
            f"the store for {scheme}:// needs a package that is not installed ({error}){extra}"
        ) from error
    except AttributeError as error:
        raise UnknownStore(f"what is registered for {scheme}:// cannot be found: {error}") from error
    if found is None:
        schemes = sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})
        raise UnknownStore(f"no store serves {scheme}://; there are: {', '.join(schemes)}")
    if not (isinstance(found, type) and issubclass(found, Store)):
        raise UnknownStore(f"what is registered for {scheme}:// is not a subclass of stateroom.store.Store: {found!r}")
    return found


def _find(scheme: str) -> Any:
    if scheme in BUILT_IN:
        module, _, name = BUILT_IN[scheme].partition(":")
        return cast(Any, getattr(import_module(module), name))
    return next((point.load() for point in entry_points(group=GROUP, name=scheme)), None)
