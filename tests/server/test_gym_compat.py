"""What clients may do that are used to NeMo Gym's servers: `--extra-arguments ignore` and `--gym-compat`."""

import json
from typing import Any

import pytest

from stateroom import Environment, State, tool
from stateroom.gallery import CounterEnvironment, WeatherEnvironment
from tests.plain_counter import PlainCounterEnvironment

ROW = {"initial_count": 3, "expected_count": 9}

SAID: Any = {"response": {"output": []}}

EXTRA = {"count": 2, "reason": "why not", "state": {"value": 99}}


@pytest.mark.parametrize("option", [{"extra_arguments": "ignore"}, {"gym_compat": True}])
async def test_extra_arguments_are_dropped(serve: Any, option: dict[str, Any]) -> None:
    served = await serve(**option)
    _, seeded = await served.post("/seed_session", ROW)
    assert await served.post("/increment_counter", EXTRA) == (200, {"success": True})
    call = {"type": "function_call", "call_id": "c", "name": "increment_counter", "arguments": json.dumps(EXTRA)}
    assert (await served.post("/step", {"response": {"output": [call]}}))[0] == 200
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    params = {"name": "increment_counter", "arguments": EXTRA}
    headers = {**seeded["mcp"]["headers"], "Accept": "application/json, text/event-stream"}
    async with served.client.post(f"{served.url}/mcp", json={**rpc, "params": params}, headers=headers) as reply:
        assert reply.status == 200
    assert await served.post("/get_counter_value", {"verbose": True}) == (200, {"count": 9})
    session = await served.services.environments["counter"].sessions.open(seeded["session_id"])
    assert [entry.input async for entry in session.log(kinds={"call"})] == [{"count": 2}] * 3
    assert (await served.post("/increment_counter", {"reason": "none"}))[0] == 422
    assert await served.post("/increment_counter", {"count": "4"}) == (200, {"success": True})


async def test_a_call_without_a_seed_gets_a_session_with_a_default_state(serve: Any) -> None:
    served = await serve(PlainCounterEnvironment(), gym_compat=True)
    assert await served.post("/increment_counter", {"count": 2}) == (200, {"success": True})
    assert await served.post("/get_counter_value") == (200, {"count": 2})
    body = {**SAID, "initial_count": 0, "expected_count": 2}
    assert await served.post("/verify", body) == (200, {**SAID, "reward": 1.0})
    assert await served.services.store.count(served.services.now()) == 1


class Named(State):
    name: str


class NamedEnvironment(Environment[Named]):
    """Its state has no default."""

    def seed(self, task: Any) -> Named:
        return Named(name=task.name)

    @tool
    def rename(self, state: Named, name: str) -> str:
        """Change the name."""
        state.name = name
        return name

    def verify(self, state: Named) -> float:
        return 1.0


async def test_a_state_without_a_default_needs_a_seed(serve: Any) -> None:
    served = await serve(NamedEnvironment(), gym_compat=True)
    status, refused = await served.post("/rename", {"name": "x"})
    assert (status, "no default for name" in refused["error"]["message"]) == (401, True)
    assert await served.services.store.heads() == []
    assert (await served.post("/seed_session", {"name": "a"}))[0] == 200
    assert await served.post("/rename", {"name": "x"}) == (200, "x")


async def test_verify_without_a_session_gives_nothing(serve: Any) -> None:
    served = await serve(gym_compat=True)
    assert await served.post("/verify", {**ROW, **SAID}) == (200, {**SAID, "reward": 0.0})
    assert (await served.post("/verify", ROW))[0] == 422
    assert await served.services.store.heads() == []
    strict = await serve()
    assert (await strict.post("/verify", {**ROW, **SAID}))[0] == 401


async def test_a_second_seed_with_the_same_cookie_replaces_the_session(serve: Any) -> None:
    served = await serve(gym_compat=True)
    for count in (3, 20):
        assert (await served.post("/seed_session", {**ROW, "initial_count": count}))[0] == 200
        assert await served.post("/get_counter_value") == (200, {"count": count})
    assert await served.services.store.count(served.services.now()) == 1


async def test_a_token_that_is_not_valid_is_refused_all_the_same(serve: Any) -> None:
    served = await serve(CounterEnvironment(), WeatherEnvironment(), gym_compat=True)
    forged = {"Cookie": "stateroom_counter=forged.0.0"}
    assert (await served.post("/counter/get_counter_value", headers=forged))[0] == 401
    await served.post("/weather/seed_session", {})
    assert (await served.post("/counter/get_counter_value"))[0] == 401
