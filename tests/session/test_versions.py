"""Code changes and sessions stay: each is read by migrations, and what cannot be is refused and left as it is."""

import time
from typing import Any

import pytest
from pydantic import BaseModel, create_model, field_validator

from stateroom import Environment, Episode, Sessions, State, Verdict, tool
from stateroom.errors import InvalidState, SchemaChanged, UnknownRevision
from stateroom.session import LogReader, Migrator, Session, kept_types
from stateroom.state import lines
from stateroom.store import Store
from tests.environments import Unjudged
from tests.messages import raises, says
from tests.session.conftest import Snapshots
from tests.session.stored_sessions import prune
from tests.session.versions import Cart3, Shop3, shop
from tests.watched import WatchedStore


async def buy(session: Session[Any], *prices: int) -> None:
    for price in prices:
        assert (await session.call("buy", {"price": price})).ok


@pytest.fixture
async def old(store: Store) -> Session[Any]:
    """A session of the first generation, at revision 5."""
    session = await shop(1, store).seed({"user": "ann"})
    await buy(session, 1, 2, 3)
    await session.checkpoint("three")
    return session


@pytest.mark.every_store
async def test_an_old_session_is_opened_and_goes_on(old: Session[Any], store: Store) -> None:
    session = await shop(3, store).open(old.id)
    assert session.state == Cart3(items={"item 0": 1, "item 1": 2, "item 2": 3}, total=6)
    assert session.revision == 5  # to read it changes nothing
    await buy(session, 4)
    again = await shop(3, store).open(old.id)
    assert (again.state.total, again.state.items["item 3"], again.revision) == (10, 4, 6)
    assert (await again.verify()).reward == 10


async def test_the_log_says_when_it_was_migrated_and_keeps_what_was(old: Session[Any], store: Store) -> None:
    before = await store.maintenance.export(old.id)
    session = await shop(3, store).open(old.id)
    await buy(session, 4, 5)
    after = await store.maintenance.export(old.id)
    assert after.entries[:5] == before.entries
    assert [each for each in after.snapshots if each.revision <= 5] == before.snapshots
    assert [each.revision for each in after.snapshots if each.revision > 5] == [6]
    assert [entry.facts["schema"][0] async for entry in session.log() if "schema" in entry.facts] == [1, 3]
    changes = {entry.revision: lines(found) async for entry, found in LogReader(store, old.id).read()}
    assert changes[6] == [
        "prices: [1, 2, 3] → gone",
        'items: new, {"item 0": 1, "item 1": 2, "item 2": 3, "item 3": 4}',
        "total: new, 10",
    ]
    assert changes[7] == ["items['item 4']: nothing → 5", "total: 10 → 15"]


@pytest.mark.parametrize("large", [False, True])
async def test_forks_and_rewinds_reach_over_a_migration(
    old: Session[Any], store: Store, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setattr("stateroom.session.cached_session.SMALL_STATE_BYTES", 0 if large else 2**20)
    session = await shop(3, store).open(old.id)
    await buy(session, 4, *[0] * 10)
    early, late = await session.fork(at=3), await session.fork(at=8)
    await buy(early, 10)
    await buy(late, 10)
    await session.rewind(2)
    await buy(session, 20)
    await session.rewind("three")
    await session.rewind(3)
    untouched = await session.fork()
    for reopened in (False, True):
        each = [early, late, session, untouched]
        if reopened:
            each = [await shop(3, store).open(one.id) for one in each]
        assert [(await one.state_at()).total for one in each] == [13, 20, 3, 3]
    assert (await session.state_at(17)).total == 1
    assert (await session.state_at(18)).total == 21
    assert (await session.state_at(19)).total == 6


async def test_older_code_refuses_what_newer_code_has_written(old: Session[Any], store: Store) -> None:
    older = await shop(2, store).open(old.id)
    newer = await shop(3, store).open(old.id)
    await buy(newer, 4)
    before = await store.maintenance.export(old.id)
    for work in (older.call("buy", {"price": 1}), old.call("buy", {"price": 1}), shop(2, store).open(old.id)):
        with raises(SchemaChanged):
            await work
    assert await store.maintenance.export(old.id) == before


@pytest.mark.every_store
async def test_code_of_two_generations_takes_turns_until_one_migrates(old: Session[Any], store: Store) -> None:
    newer = await shop(3, store).open(old.id)
    await buy(old, 4)  # still in the first schema
    assert (await newer.state_at()).total == 10
    await buy(old, 5)
    await buy(newer, 6)
    assert newer.state.total == 21
    with pytest.raises(SchemaChanged):
        await old.call("buy", {"price": 1})


async def test_an_old_session_that_has_ended_can_be_read_and_forked(old: Session[Any], store: Store) -> None:
    await old.verify()
    await old.close()
    session = await shop(3, store).open(old.id, include_closed=True)
    assert (session.state.total, session.verdict and session.verdict.reward) == (6, 6)
    fork = await session.fork()
    await buy(fork, 1)
    assert (await shop(3, store).open(fork.id)).state.total == 7


@pytest.mark.every_store
async def test_shared_states_have_versions_of_their_own(store: Store) -> None:
    first = await shop(1, store).seed({"user": "ann"})
    for _ in range(3):
        await first.call("order")
    session = await shop(3, store).open(first.id)
    user = await session.user()
    assert (user.bought, user.name) == (3, "unknown")
    assert (await session.call("order")).output == 4
    assert (await (await shop(3, store).seed({"user": "ann"})).call("order")).output == 5


class Line(BaseModel):
    sku: str


class NewLine(BaseModel):
    sku: str
    price: int = 5


class Basket(State):
    lines: list[Line] = []
    best: Line | None = None


def new_basket(**more: Any) -> type[State]:
    fields = {"lines": (list[NewLine], []), "best": (NewLine | None, None), "coupons": (list[str], ["new"]), **more}
    return create_model("Basket", __base__=State, **fields)


def basket(kind: type[State], store: Store) -> Sessions[Any]:
    class BasketEnvironment(Environment[kind]):  # type: ignore[valid-type]
        """Fills a basket."""

        name = "basket"

        def seed(self, task: Any) -> Any:
            return kind()

        @tool
        def put(self, state: kind, sku: str) -> int:  # type: ignore[valid-type]
            """Put something into the basket."""
            basket: Any = state
            basket.lines.append({"sku": sku})
            return len(basket.lines)

        def verify(self, state: kind, episode: Episode) -> Verdict:  # type: ignore[valid-type]
            return Verdict(1.0, details={"coupons": [getattr(each, "coupons", None) for each in episode.states()]})

    return Sessions(BasketEnvironment(), store)


@pytest.mark.every_store
async def test_a_class_that_accepts_defaults_reads_what_lacks_new_fields(store: Store) -> None:
    old = await basket(Basket, store).seed({})
    await old.call("put", {"sku": "tea"})
    await old.call("put", {"sku": "milk"})
    new = new_basket()
    with raises(SchemaChanged):
        await basket(new, store).open(old.id)
    new.accept_defaults()
    session = await basket(new, store).open(old.id)
    assert [line.price for line in session.state.lines] == [5, 5]
    assert len((await session.state_at(2)).lines) == 1
    await session.call("put", {"sku": "salt"})
    again = await basket(new, store).open(old.id)
    assert [line.sku for line in again.state.lines] == ["tea", "milk", "salt"]
    assert (await again.verify()).details == {"coupons": [["new"]] * 4}
    with pytest.raises(SchemaChanged):  # the older code cannot read what the newer has written
        await basket(Basket, store).open(old.id)


@pytest.mark.parametrize("more", [{"owner": (str, ...)}, {"best": (str | None, None)}])
async def test_defaults_stand_for_new_fields_only(store: Store, more: dict[str, Any]) -> None:
    old = await basket(Basket, store).seed({})
    new = new_basket(**more)
    new.accept_defaults()
    with raises(SchemaChanged):
        await basket(new, store).open(old.id)


def bare_shop(kind: type[State], store: Store) -> Sessions[Any]:
    """The shop with another state, and without tools."""

    class Shop(Environment[kind]):  # type: ignore[valid-type]
        """The shop."""

    return Sessions(Shop(), store)


async def test_a_schema_without_its_new_version_is_caught_after_a_migration_too(
    old: Session[Any], store: Store
) -> None:
    class Other(State, version=3):
        items: dict[str, str] = {}
        total: int = 0
        note: str = ""

    await buy(await shop(3, store).open(old.id), 4)
    with raises(SchemaChanged):
        await bare_shop(Other, store).open(old.id)


@pytest.mark.parametrize(
    ("migration", "error"),
    [
        (None, SchemaChanged),
        (lambda data: data["nothing"], SchemaChanged),
        (lambda data: {"total": "many"}, InvalidState),
    ],
)
async def test_what_cannot_be_migrated_is_left_as_it_is(
    old: Session[Any], store: Store, migration: Any, error: type[Exception]
) -> None:
    class Broken(State, version=2):
        total: int = 0

    if migration:
        Broken.migration(1)(migration)
    before = await store.maintenance.export(old.id)
    with raises(error):
        await bare_shop(Broken, store).open(old.id)
    assert await store.maintenance.export(old.id) == before
    await buy(old, 4)


async def test_a_stricter_check_acts_when_the_state_changes_next(old: Session[Any], store: Store) -> None:
    class Cart(State):
        prices: list[int] = []
        note: str = ""

        @field_validator("prices")
        @classmethod
        def few(cls, prices: list[int]) -> list[int]:
            if len(prices) > 2:
                raise ValueError("too many")
            return prices

    class StrictShop(Unjudged[Cart]):
        """The shop."""

        name = "shop"

        @tool
        def buy(self, state: Cart, price: int) -> None:
            """Buy something."""
            state.prices.append(price)

        @tool
        def write(self, state: Cart) -> None:
            """Note something."""
            state.note = "many"

    session = await Sessions(StrictShop(), store).open(old.id)
    assert len(session.state.prices) == 3
    assert (await session.call("buy", {"price": 1})).code == "tool_failed"
    assert (await session.call("write")).ok


async def test_a_seed_says_its_schema_once(store: Store) -> None:
    session = await Sessions(Shop3(), store).seed({"user": "ann"})
    await buy(session, *range(30))
    assert [entry.revision async for entry in session.log() if "schema" in entry.facts] == [1]


async def test_a_rewind_over_a_migration_leaves_the_path_as_it_was(
    old: Session[Any], store: Store, snapshots_after: Snapshots
) -> None:
    class Looking(Shop3):
        name = "shop"

        def verify(self, episode: Episode) -> Verdict:  # type: ignore[override]
            return Verdict(1.0, details={"totals": [state.total for state in episode.states()]})

    session = await Sessions(Looking(), store).open(old.id)
    await buy(session, 4)
    snapshots_after(1)
    await session.rewind(3)  # which would be worth a snapshot, in a schema that no entry tells of
    await buy(session, 7)
    assert session.state.total == 10
    assert (await session.verify()).details == {"totals": [0, 1, 3, 10]}


async def test_a_fork_that_was_migrated_and_pruned_says_what_has_gone(
    old: Session[Any], store: Store, snapshots_after: Snapshots
) -> None:
    snapshots_after(1)
    fork = await (await shop(3, store).open(old.id)).fork(at=2)
    await buy(fork, *range(30))
    assert await prune(store, keep=8)
    for gone in (fork.state_at(3), fork.rewind(3), fork.fork(at=3)):
        with raises(UnknownRevision):
            await gone
    assert [entry.revision async for entry, _ in LogReader(store, fork.id).read()][:3] == [1, 2, 3]


async def test_a_validator_that_breaks_on_migrated_data_is_an_invalid_state(old: Session[Any], store: Store) -> None:
    class Cart(State, version=2):
        prices: list[int] = []
        note: str = ""

        @field_validator("prices")
        @classmethod
        def lookup(cls, prices: list[int]) -> Any:
            return dict[int, str]()[len(prices)]

    Cart.migration(1)(lambda data: data)

    with raises(InvalidState):
        await bare_shop(Cart, store).open(old.id)
    [found] = [each async for _, each in Migrator(store, {"shop": Cart}, time.time).plan()]
    assert (found.outcome, "KeyError" in found.why) == ("failed", True)


class Post(State, version=2):
    sent: int = 0
    note: str = ""


Post.migration(1)(lambda data: {**data, "note": ""})


class OldPost(State):
    sent: int = 0


class PostOffice(Unjudged[OldPost]):
    """Sends mail."""

    name = "post"

    def __init__(self, meanwhile: Any = None) -> None:
        self.meanwhile = meanwhile

    @tool(effect="external")
    async def send(self, state: OldPost) -> str:
        """Send a mail."""
        await self.meanwhile()
        state.sent += 1
        return "sent"


class NewPostOffice(Unjudged[Post]):
    """Sends mail."""

    name = "post"

    @tool
    def write(self, state: Post) -> None:
        """Write a note."""
        state.note = "new"


@pytest.mark.every_store
async def test_what_an_external_call_came_to_is_noted_though_newer_code_was_quicker(store: Store) -> None:
    async def migrated() -> None:
        assert [each.outcome async for _, each in Migrator(store, {"post": Post}, time.time).carry_out()] == ["in use"]
        newer = await Sessions(NewPostOffice(), store).open(session.id)
        assert (await newer.call("write")).ok

    session = await Sessions(PostOffice(migrated), store).seed({})
    result = await session.call("send", call_id="c1")
    says(result.error or "")
    newer = await Sessions(NewPostOffice(), store).open(session.id)
    assert [entry.kind async for entry in newer.log()] == ["seed", "started", "call", "failed"]
    await newer.fork()  # nothing is pending any more


async def test_a_session_that_is_judged_before_it_is_leased_is_left_alone(store: Store) -> None:
    session = await shop(1, store).seed({"user": "ann"})
    watched = WatchedStore(store)

    async def judge(operation: str, *_: object) -> None:
        if operation == "lease":
            await session.verify()

    watched.before = judge
    migrator = Migrator(watched, kept_types(Shop3()), time.time)
    assert [migrated.outcome async for _, migrated in migrator.carry_out()] == ["ended"]
    assert (await shop(1, store).open(session.id)).verdict is not None
