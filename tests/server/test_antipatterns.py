"""The mistakes that servers of environments make, over the wire: none is possible, or each is answered in words."""

import asyncio
from typing import Any

import pytest

from stateroom import Environment, State, tool
from stateroom.gallery import CounterEnvironment
from tests.antipatterns.bill import SPOILT, BillEnvironment, Spoil, spoilt
from tests.antipatterns.walking import changes, memory, modules, unjustified
from tests.environments import TallyEnvironment

ROW = {"initial_count": 3, "expected_count": 9}


class Tab(State):
    coffees: int = 0


class CafeEnvironment(Environment[Tab]):
    """Serves coffee, and is careless."""

    @tool
    async def order(self, state: Tab) -> int:
        """Order a coffee, and dawdle between the look and the change."""
        before = state.coffees
        await asyncio.sleep(0)
        state.coffees = before + 1
        return state.coffees

    def verify(self, state: Tab) -> float:
        return float(state.coffees)


async def test_a_count_on_the_server_itself_is_told_of_in_its_log(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    served = await serve(TallyEnvironment())
    await served.post("/seed_session")
    assert await served.post("/add") == (200, 1)
    assert "TallyEnvironment.runs was set while the environment is in use" in caplog.text


async def test_requests_at_once_lose_nothing_whichever_server_they_come_to(
    serve: Any, connect: Any, shared_url: str
) -> None:
    one, other = await serve(CafeEnvironment(), store=shared_url), await serve(CafeEnvironment(), store=shared_url)
    await one.post("/seed_session")
    same = await connect(other.url, like=one)
    replies = await asyncio.gather(*(client.post("/order") for client in (one, same) for _ in range(8)))
    assert sorted(count for _, count in replies) == list(range(1, 17))


@pytest.mark.parametrize(("spoil", "why"), [SPOILT["of another type"], SPOILT["missing within"]])
async def test_a_stored_value_that_cannot_be_is_told_of_and_charges_nothing(serve: Any, spoil: Spoil, why: str) -> None:
    served = await serve(BillEnvironment())
    await served.post("/seed_session")
    [head] = await served.services.store.heads()
    bad = await spoilt(served.services.store, head.id, spoil)
    token = served.services.environments["bill"].signer.sign(bad).decode()
    before = await served.services.store.maintenance.export(bad)
    served.client.cookie_jar.clear()
    requests: dict[str, Any] = {"/charge": {}, "/verify": {"response": {}}}
    for path, sent in requests.items():
        status, body = await served.post(path, sent, headers={"Cookie": f"stateroom_bill={token}"})
        assert (status, body["error"]["code"]) == (500, "environment_error")
        with pytest.raises(AssertionError, match=f"the stored state of session 'spoilt' is not valid: {why}"):
            raise AssertionError(body["error"]["message"])
    assert await served.services.store.maintenance.export(bad) == before


async def test_servers_and_environments_in_one_process_are_strangers(serve: Any) -> None:
    every = modules()
    before = memory(every)
    first = await serve(CounterEnvironment(), CafeEnvironment())
    second = await serve(CafeEnvironment())
    for served, prefix in ((first, "/cafe"), (second, "")):
        await served.post(f"{prefix}/seed_session")
        assert await served.post(f"{prefix}/order") == (200, 1)
    first.client.cookie_jar.clear()
    await first.post("/counter/seed_session", ROW)
    assert await first.post("/counter/get_counter_value") == (200, {"count": 3})
    assert (len(await first.services.store.heads()), len(await second.services.store.heads())) == (2, 1)
    assert unjustified(changes(before, memory(every))) == []
