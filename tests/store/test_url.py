"""Which class a store URL names, and what is said when it names none."""

from pathlib import Path

import pytest

from stateroom.errors import UnknownStore
from stateroom.store import open_store
from stateroom.store.memory import MemoryStore
from stateroom.store.sqlite import SQLiteStore
from stateroom.store.url import BUILT_IN, parse_url, store_class

HARBOUR = """
from stateroom.store.memory import MemoryStore

class HarbourStore(MemoryStore):
    opened = []

    @classmethod
    async def open(cls, url):
        cls.opened.append(url)
        return cls(3)

class NotAStore:
    pass

a_store = HarbourStore()
"""


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a package that registers stores, each a scheme and the object it names."""

    def install(package: str, **schemes: str) -> None:
        (tmp_path / f"{package}.py").write_text(HARBOUR)
        information = tmp_path / f"{package}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        points = "".join(f"{scheme} = {target}\n" for scheme, target in schemes.items())
        (information / "entry_points.txt").write_text(f"[stateroom.stores]\n{points}")
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_the_built_in_schemes_are_served() -> None:
    assert store_class("memory://") is MemoryStore
    assert store_class("sqlite:///rooms.db") is SQLiteStore


@pytest.mark.parametrize("url", ["", "rooms.db", "/rooms.db", "sqlite:rooms.db", "://rooms.db", "memory:/"])
def test_a_url_without_a_scheme_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(UnknownStore, match=r"is not a store URL; write for example sqlite:///rooms\.db"):
        store_class(url)


def test_an_unknown_scheme_is_refused_with_those_that_there_are(register) -> None:
    register("harbour_a", harbour="harbour_a:HarbourStore")
    with pytest.raises(UnknownStore, match="no store serves mongodb://; there are: harbour, memory, sqlite"):
        store_class("mongodb://localhost")


async def test_another_package_can_serve_a_scheme(register) -> None:
    register("harbour_b", harbour="harbour_b:HarbourStore")
    async with open_store("harbour://north?berth=3") as store:
        assert type(store).__name__ == "HarbourStore"
        assert store.max_sessions == 3
        assert type(store).opened == ["harbour://north?berth=3"]
        assert await store.heads() == []


def test_another_package_cannot_take_over_a_built_in_scheme(register) -> None:
    register("harbour_c", memory="harbour_c:HarbourStore")
    assert store_class("memory://") is MemoryStore


@pytest.mark.parametrize("target", ["NotAStore", "a_store", "HARBOUR_NAME_TYPO"])
def test_what_is_registered_must_be_a_store_class(register, target: str) -> None:
    package = f"harbour_{target.lower()}"
    register(package, harbour=f"{package}:{target}")
    with pytest.raises(UnknownStore, match="what is registered for harbour://"):
        store_class("harbour://")


def test_a_package_that_is_missing_is_named(register) -> None:
    register("harbour_d", harbour="harbour_driver_that_is_not_there:HarbourStore")
    with pytest.raises(UnknownStore, match=r"harbour:// needs a package .*harbour_driver_that_is_not_there") as refused:
        store_class("harbour://")
    assert "pip install" not in str(refused.value)  # which one, only that package's authors know
    assert isinstance(refused.value.__cause__, ImportError)


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, "harbour", "harbour_driver_that_is_not_there:HarbourStore")
    with pytest.raises(UnknownStore, match=r"pip install 'stateroom\[harbour\]'"):
        store_class("harbour://")


async def test_a_store_is_closed_when_its_block_fails() -> None:
    kept = None

    async def fail() -> None:
        nonlocal kept
        async with open_store("memory://") as store:
            kept = store
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    with pytest.raises(Exception, match="closed"):
        await kept.heads()


def test_the_parts_of_a_url() -> None:
    parts = parse_url("x://user@host:1/a%20b#c?one=1&two=", options={"one", "two"})
    assert parts.host == "user@host:1"
    assert parts.path == "/a b#c"
    assert parts.options == {"one": "1", "two": ""}


def test_an_unknown_option_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UnknownStore, match="no option 'three'; it has one, two"):
        parse_url("x://?three=3", options={"one", "two"})
    with pytest.raises(UnknownStore, match="no option 'three'; it has none"):
        parse_url("x://?three")


def test_a_url_that_cannot_be_split_is_refused() -> None:
    with pytest.raises(UnknownStore, match="is not a store URL"):
        parse_url("x://[::1/a")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", ""])
def test_a_number_in_a_url_is_whole_and_positive(text: str) -> None:
    parts = parse_url(f"x://?size={text}", options={"size"})
    with pytest.raises(UnknownStore, match="size must be a whole number above 0"):
        parts.whole_number("size", 1)


def test_a_number_that_is_not_given_is_the_default() -> None:
    assert parse_url("x://").whole_number("size", 7) == 7
    assert parse_url("x://?size=12", options={"size"}).whole_number("size", 7) == 12
