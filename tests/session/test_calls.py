"""A call that goes wrong: a failed result with words for the model, and nothing has changed."""

import asyncio
import heapq
import sys
import threading
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, JsonValue

from stateroom import Environment, SessionLimits, Sessions, State, ToolError, tool
from stateroom.session import Result, Session
from stateroom.store import Store
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


class ShopEnvironment(Environment[Shop]):
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
    async def raises_async(self, state: Shop) -> None:
        """Raise."""
        state.notes.append(1)
        raise KeyError(object())

    @tool
    def refuses(self, state: Shop, why: str) -> None:
        """Refuse."""
        state.notes.append(1)
        raise ToolError(why)

    @tool
    def leaves(self, state: Shop) -> None:
        """Leave."""
        state.notes.append(1)
        sys.exit(3)

    @tool
    async def leaves_async(self, state: Shop) -> None:
        """Leave."""
        state.notes.append(1)
        sys.exit(3)

    @tool
    async def cancels(self, state: Shop) -> None:
        """Await what was cancelled."""
        state.notes.append(1)
        waiting = asyncio.get_running_loop().create_future()
        waiting.cancel()
        await waiting

    @tool
    def stops(self, state: Shop) -> None:
        """Run out."""
        state.notes.append(1)
        next(iter(()))

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
        state.notes.append(object())

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

    def verify(self) -> float:
        return 0.0


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
    ("name", "arguments", "words"),
    [
        ("raises", {}, "raises failed: unexpected RuntimeError"),
        ("raises_async", {}, "raises_async failed: unexpected KeyError"),
        ("refuses", {"why": "No more tea. Try coffee."}, "No more tea. Try coffee."),
        ("refuses", {"why": ""}, "refuses failed"),
        ("leaves", {}, "leaves failed: unexpected SystemExit"),
        ("leaves_async", {}, "leaves_async failed: unexpected SystemExit"),
        ("cancels", {}, "cancels failed: unexpected CancelledError"),
        ("stops", {}, "stops failed"),
        ("hangs", {}, "hangs did not finish within 0.05 s"),
        ("hangs_async", {}, "hangs_async did not finish within 0.05 s"),
        ("meddle", {}, "meddle is declared as a read, so it cannot change state"),
        ("gives_an_object", {}, "what it returned cannot be written as JSON"),
        ("gives_itself", {}, "gives_itself failed"),
        ("keeps_an_object", {}, "keeps_an_object failed: notes[0]"),
        ("spoils", {"price": "dear"}, "orders.a.lines[0].price"),
        ("spoils", {"price": None}, "orders.a.lines[0].price"),
        ("drops_a_field", {}, "orders.b.lines[0].price"),
        ("note", {}, "the parameter 'what' is missing"),
        ("note", {"what": 1, "when": 2}, "there is no parameter 'when'"),
        ("refuses", {"why": 7}, "why: Input should be a valid string"),
        ("refuses", {"why": None}, "why: Input should be a valid string"),
        ("refuses", {"why": object()}, "must be JSON"),
        ("checked", {"text": "bad"}, "unexpected LookupError"),
        ("checked", {"text": "good", "order": {"lines": [{"price": "x"}]}}, "order.lines.0.price"),
        ("refuses", {"why": "half \ud83d"}, "half \ud83d"),
        ("note", {"what": {"\udc00": 1}}, "must be JSON"),
        ("hide", {"what": object(), "text": ""}, "must be JSON"),
        ("refuses", {"state": {}, "why": "mine"}, "there is no parameter 'state'"),
        ("note", [1], "must be an object"),
        ("note", "what", "must be an object"),
        ("note", {1: 2}, "note"),
        ("no_such_tool", {}, "there is no tool named 'no_such_tool'; there are: "),
        ("verify", {}, "there is no tool named 'verify'"),
        ("__init__", {}, "there is no tool named"),
        ("", {}, "there is no tool named ''"),
        ("\ud800", {}, "there is no tool named"),
    ],
)
async def test_a_bad_call_says_why_and_changes_nothing(
    session: Session[Shop], store: Store, name: str, arguments: Any, words: str
) -> None:
    result = await session.call(name, arguments, call_id="c1")
    assert words in (result.error or "")
    if name not in ("no_such_tool", "verify", "__init__", "", "\ud800"):  # these list the tools
        assert fit_for_a_model(result)
    assert await unchanged(session, store)


async def test_a_failed_call_id_may_be_tried_again(session: Session[Shop]) -> None:
    assert not (await session.call("note", {}, call_id="c1")).ok
    assert (await session.call("note", {"what": 1}, call_id="c1")).ok
    assert session.state.notes == [1]


async def test_the_default_timeout_holds_for_tools_without_their_own(store: Store) -> None:
    seeded = await Sessions(ShopEnvironment(), store).seed({})
    session = await Sessions(ShopEnvironment(), store, SessionLimits(timeout=0.05)).open(seeded.id)
    assert (await session.call("hangs_by_default")).error == "hangs_by_default did not finish within 0.05 s"
    assert await unchanged(seeded, store)


async def test_other_sessions_go_on_while_a_tool_blocks(session: Session[Shop], store: Store) -> None:
    blocked = asyncio.create_task(session.call("hangs_by_default"))
    await asyncio.sleep(0)
    other = await Sessions(ShopEnvironment(), store).seed({})
    for number in range(20):
        assert (await other.call("note", {"what": number})).ok
    assert not blocked.done()
    RELEASED.set()
    assert (await blocked).ok
    assert session.state.notes == [1]


async def test_a_tool_left_behind_can_change_nothing_later(store: Store) -> None:
    late: list[BaseException | None] = []
    go, done = threading.Event(), threading.Event()

    class Late(Environment[Shop]):
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

        def verify(self) -> float:
            return 0.0

    session = await Sessions(Late(), store).seed({})
    assert not (await session.call("write_late")).ok
    go.set()
    assert await asyncio.to_thread(done.wait, 10)
    assert "this call has ended" in str(late[0])
    assert session.state.notes == []


async def test_a_caller_who_is_cancelled_stays_cancelled(session: Session[Shop], store: Store) -> None:
    task = asyncio.create_task(session.call("hangs_by_default"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await unchanged(session, store)
    assert (await session.call("note", {"what": 1})).ok


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


async def test_an_int_too_long_to_write_is_refused(session: Session[Shop], store: Store) -> None:
    result = await session.call("note", {"what": 10**5000})
    assert fit_for_a_model(result)
    assert await unchanged(session, store)


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


@pytest.mark.parametrize("call_id", ["\ud800", "line\nbreak", "\x00"])
async def test_a_call_id_that_cannot_be_one_is_refused(session: Session[Shop], store: Store, call_id: str) -> None:
    assert "call id" in ((await session.call("note", {"what": 1}, call_id=call_id)).error or "")
    assert await unchanged(session, store)


class Grid(State):
    rows: list[list[int]] = [[1], [2], [3]]


class GridEnvironment(Environment[Grid]):
    """Rows of numbers."""

    @tool
    def tamper(self, state: Grid) -> None:
        """Change a row in a way that cannot be seen."""
        heapq.heappop(state.rows).append(99)

    @tool(effect="read")
    def look(self, state: Grid) -> list[list[int]]:
        """All rows."""
        return state.rows

    def verify(self, state: Grid) -> float:
        return 0.0


async def test_a_tool_that_tampers_with_committed_state_fails_and_the_state_is_as_before(store: Store) -> None:
    session = await Sessions(GridEnvironment(), store).seed({})
    result = await session.call("tamper")
    assert "past its own methods" in (result.error or "")
    assert session.state.rows == [[1], [2], [3]]
    assert (await session.call("look")).output == [[1], [2], [3]]
