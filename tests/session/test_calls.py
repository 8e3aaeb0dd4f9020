"""A call that goes wrong: a failed result with words for the model, and nothing has changed."""

import asyncio
import threading
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, JsonValue

from stateroom import SessionLimits, Sessions, State, ToolError, tool
from stateroom.errors import ReadOnlyState
from stateroom.session import Result, Session
from stateroom.store import Store
from tests.environments import Unjudged
from tests.messages import says
from tests.patience import PATIENCE


class Line(BaseModel):
    price: int


class Order(BaseModel):
    lines: list[Line] = []


class Shop(State):
    orders: dict[str, Order] = {"a": Order(lines=[Line(price=1)])}
    notes: list[JsonValue] = []


def explode(value: str) -> str:
    if value == "bad":
        raise LookupError("secret of the validator")
    return value


RELEASED = threading.Event()


class ShopEnvironment(Unjudged[Shop]):
    """Tools that fail, each in its own way; all but `look` change the state first."""

    @tool
    def note(self, state: Shop, what: Any) -> Any:
        """Keep a note."""
        state.notes.append(what)
        return what

    @tool
    def hide(self, state: Shop, what: Any, text: str) -> None:
        """Keep the text only."""
        state.notes.append(text)

    @tool(effect="read")
    def look(self, state: Shop) -> int:
        """How many notes there are."""
        return len(state.notes)

    @tool(effect="read")
    def meddle(self, state: Shop) -> str:
        """A read that writes."""
        state.notes.append(1)
        return "done"

    @tool
    def raises(self, state: Shop) -> None:
        """Raise."""
        state.notes.append(1)
        raise RuntimeError(f"at {__file__}: {object()}")

    @tool
    def refuses(self, state: Shop, why: str) -> None:
        """Refuse."""
        state.notes.append(1)
        raise ToolError(why)

    @tool(timeout=0.05)
    def hangs(self, state: Shop) -> None:
        """Wait for what does not come."""
        state.notes.append(1)
        RELEASED.wait(PATIENCE)
        state.notes.append(2)

    @tool
    def hangs_by_default(self, state: Shop) -> None:
        """Wait for what does not come."""
        state.notes.append(1)
        RELEASED.wait(PATIENCE)

    @tool(timeout=0.05)
    async def hangs_async(self, state: Shop) -> None:
        """Wait for what does not come."""
        state.notes.append(1)
        await asyncio.Event().wait()

    @tool
    def gives_an_object(self, state: Shop) -> object:
        """Give what is not JSON."""
        state.notes.append(1)
        return {"it": object()}

    @tool
    def gives_itself(self, state: Shop) -> object:
        """Give what has no end."""
        state.notes.append(1)
        endless: list[Any] = []
        endless.append(endless)
        return endless

    @tool
    def keeps_an_object(self, state: Shop) -> None:
        """Keep what cannot be kept."""
        state.notes.append(object())  # type: ignore[arg-type]

    @tool
    def spoils(self, state: Shop, price: Any) -> None:
        """Put a wrong price three levels down."""
        state.orders["a"].lines[0].price = price

    @tool
    def drops_a_field(self, state: Shop) -> None:
        """Put something wrong into a dict."""
        state.orders["b"] = {"lines": [{"prize": 1}]}  # type: ignore[assignment]

    @tool
    def checked(self, state: Shop, text: Annotated[str, AfterValidator(explode)], order: Order | None = None) -> None:
        """Take a text that is checked in a way of its own."""
        state.notes.append(text)


@pytest.fixture(autouse=True)
def _release():
    RELEASED.clear()
    yield
    RELEASED.set()


@pytest.fixture
async def session(store: Store) -> Session[Shop]:
    return await Sessions(ShopEnvironment(), store, SessionLimits(timeout=PATIENCE)).seed({})


async def unchanged(session: Session[Shop], store: Store) -> bool:
    again = await Sessions(ShopEnvironment(), store).open(session.id)
    return (
        (await store.head(session.id)).revision == session.revision == 1
        and [entry.kind async for entry in session.log()] == ["seed"]
        and session.state == again.state == Shop()
        and (await session.call("look")).output == 0
    )


def fit_for_a_model(result: Result) -> bool:
    assert not result.ok
    assert result.output is None
    error = result.error or ""
    return 0 < len(error) < 200 and not any(part in error for part in ("Traceback", ".py", "0x", "<", "secret", "\n"))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("raises", {}), ("refuses", {"why": "No more tea. Try coffee."}), ("refuses", {"why": ""})),
        *(("hangs", {}), ("hangs_async", {}), ("meddle", {})),
        *(("gives_an_object", {}), ("gives_itself", {}), ("keeps_an_object", {})),
        *(("spoils", {"price": "dear"}), ("spoils", {"price": None}), ("drops_a_field", {})),
        *(("note", {}), ("note", {"what": 1, "when": 2}), ("note", {"what": {"\udc00": 1}})),
        ("note", {"what": 10**5000}),
        *(("note", [1]), ("note", "what"), ("note", {1: 2}), ("hide", {"what": object(), "text": ""})),
        *(("refuses", {"why": why}) for why in (7, None, object(), "half \ud83d")),
        ("refuses", {"state": {}, "why": "mine"}),
        *(("checked", {"text": "bad"}), ("checked", {"text": "good", "order": {"lines": [{"price": "x"}]}})),
    ],
)
async def test_a_bad_call_says_why_and_changes_nothing(
    session: Session[Shop], store: Store, name: str, arguments: Any
) -> None:
    result = await session.call(name, arguments, call_id="c1")
    assert fit_for_a_model(result)
    says(ascii(result.error))
    assert await unchanged(session, store)


@pytest.mark.parametrize("name", ["no_such_tool", "verify", "__init__", "", "\ud800"])
async def test_a_tool_that_is_not_there_is_named_with_those_that_are(
    session: Session[Shop], store: Store, name: str
) -> None:
    result = await session.call(name, {}, call_id="c1")
    assert result.code == "unknown_tool"
    assert "gives_an_object, gives_itself" in (result.error or "")
    assert await unchanged(session, store)


async def test_a_failed_call_id_may_be_tried_again(session: Session[Shop]) -> None:
    assert not (await session.call("note", {}, call_id="c1")).ok
    assert (await session.call("note", {"what": 1}, call_id="c1")).ok
    assert session.state.notes == [1]


async def test_the_default_timeout_holds_for_tools_without_their_own(store: Store) -> None:
    seeded = await Sessions(ShopEnvironment(), store).seed({})
    session = await Sessions(ShopEnvironment(), store, SessionLimits(timeout=0.05)).open(seeded.id)
    assert (await session.call("hangs_by_default")).code == "timeout"
    assert await unchanged(seeded, store)


async def test_a_tool_left_behind_can_change_nothing_later(store: Store) -> None:
    late: list[BaseException | None] = []
    go, done = threading.Event(), threading.Event()

    class Late(Unjudged[Shop]):
        """Writes when its time is over."""

        @tool(timeout=0.02)
        def write_late(self, state: Shop) -> None:
            """Write late."""
            go.wait(PATIENCE)
            try:
                state.notes.append(1)
                late.append(None)
            except Exception as error:  # noqa: BLE001
                late.append(error)
            done.set()

    session = await Sessions(Late(), store).seed({})
    assert not (await session.call("write_late")).ok
    go.set()
    assert await asyncio.to_thread(done.wait, 10)
    assert isinstance(late[0], ReadOnlyState)
    assert session.state.notes == []


HARMLESS: dict[str, Any] = {
    "half a surrogate pair": "\ud83d",
    "one further down": {"a": ["\ud800"]},
    "a huge int": 10**4000,
    "a negative huge int": [-(2**70)],
    "the last int of msgpack": 2**64 - 1,
    "a long text twice": ["long " * 40, {"again": "long " * 40}],
    "an empty everything": [{}, [], "", None, False, 0, 0.0],
    "an infinite number": float("inf"),
    "a nul": "\x00",
}


@pytest.mark.parametrize("what", HARMLESS.values(), ids=HARMLESS)
async def test_odd_values_do_no_harm(session: Session[Shop], store: Store, what: Any) -> None:
    result = await session.call("note", {"what": what}, call_id="c1")
    assert (result.ok, result.output) == (True, what)
    assert (await session.call("note", {"what": 1})).ok
    again = await Sessions(ShopEnvironment(), store).open(session.id)
    assert again.state.notes == session.state.notes == [what, 1]
    assert (await again.call("note", {"what": what}, call_id="c1")).output == what
    assert [entry.input async for entry in again.log()][1] == {"what": what}


async def test_arguments_that_are_not_json_are_stored_as_json(session: Session[Shop], store: Store) -> None:
    first, second = "first " * 20, "second " * 20
    assert (await session.call("hide", {"what": ((first,), {second}), "text": second})).ok
    again = await Sessions(ShopEnvironment(), store).open(session.id)
    assert again.state.notes == session.state.notes == [second]
    assert [entry.input async for entry in again.log()][1] == {"what": [[first], [second]], "text": second}


async def test_deeply_nested_arguments_are_kept_or_refused(session: Session[Shop], store: Store) -> None:
    for depth in (50, 200, 400, 900, 5000):
        nested: list[Any] = []
        for _ in range(depth):
            nested = [nested]
        before = session.revision
        result = await session.call("note", {"what": nested})
        assert result.ok or (fit_for_a_model(result) and session.revision == before)
        again = await Sessions(ShopEnvironment(), store).open(session.id)
        assert len(again.state.notes) == len(session.state.notes)
        assert len([entry async for entry in again.log()]) == session.revision


@pytest.mark.parametrize("call_id", ["", "\ud800", "line\nbreak", "\x00"])
async def test_a_call_id_that_cannot_be_one_is_refused(session: Session[Shop], store: Store, call_id: str) -> None:
    assert (await session.call("note", {"what": 1}, call_id=call_id)).code == "invalid_arguments"
    assert await unchanged(session, store)
