"""Values that nobody has checked: what a tool writes is checked at the call, and what is stored when it is read."""

from typing import Any

import pytest

from stateroom import Sessions
from stateroom.errors import InvalidState
from stateroom.session import Session
from stateroom.store import Store
from tests.antipatterns.bill import SPOILT, Bill, BillEnvironment, Spoil, spoilt
from tests.messages import raises, says


@pytest.fixture
async def session(store: Store) -> Session[Bill]:
    return await Sessions[Bill](BillEnvironment(), store).seed({})


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("write", {"field": "discount", "value": "half"}, ["discount: ", "'half'"]),
        ("write", {"field": "discount", "value": 1.5}, ["discount: ", "1.5"]),
        ("write", {"field": "discount", "value": None}, ["discount: ", "None"]),
        ("write", {"field": "lines", "value": {"tea": {}}}, ["lines.tea.price: "]),
        ("write", {"field": "lines", "value": 7}, ["lines: ", "7"]),
        ("write", {"field": "discuont", "value": 0.1}, ["ValueError"]),  # the log names it
        ("reprice", {"price": -5}, ["lines.tea.price: ", "-5"]),
        ("reprice", {"price": "x" * 999}, ["lines.tea.price: ", "'xxxxxxxxxx", "xxx...xxx"]),
    ],
)
async def test_a_wrong_value_is_refused_at_the_call_that_writes_it(
    session: Session[Bill], name: str, given: dict[str, Any], told: list[str]
) -> None:
    result = await session.call(name, given)
    assert (result.ok, result.code) == (False, "tool_failed")
    assert result.error is not None
    assert [part for part in told if part not in result.error] == []
    assert len(result.error) < 200
    assert (session.state.model_dump(), session.revision) == (Bill().model_dump(), 1)


async def test_a_rule_of_the_whole_is_checked_too_and_tells_nothing_of_the_rest(session: Session[Bill]) -> None:
    result = await session.call("pay")
    says(f"{result.error}")
    assert not session.state.paid


@pytest.mark.parametrize("spoil", [spoil for spoil, _ in SPOILT.values()], ids=SPOILT)
async def test_a_stored_value_that_cannot_be_is_an_error_when_it_is_read(
    session: Session[Bill], store: Store, spoil: Spoil
) -> None:
    sessions = Sessions[Bill](BillEnvironment(), store)
    bad = await spoilt(store, session.id, spoil)
    before = await store.maintenance.export(bad)
    with raises(InvalidState) as caught:
        await sessions.open(bad)
    assert "rosebud" not in str(caught.value)
    assert await store.maintenance.export(bad) == before  # nothing was charged or mended
