"""Two servers on two ports, with one store and one secret between them: a session is either's."""

import asyncio
import random
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest

EPISODES, STEPS = 12, 10


@pytest.fixture(params=["redis", "postgresql"])
def shared(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> str:
    return fresh_url(request.param)


@pytest.mark.more("time")
async def test_every_episode_is_right_whichever_server_each_request_comes_to(
    launch: Any, connect: Any, shared: str
) -> None:
    servers = [launch("counter", "--store", shared, STATEROOM_SECRET="s" * 40) for _ in range(2)]
    random.seed(1)

    async def play(number: int) -> None:
        clients = [await connect(servers[number % 2].url)]
        assert (await clients[0].post("/seed_session", {"initial_count": 0, "expected_count": STEPS}))[0] == 200
        clients.append(await connect(servers[1 - number % 2].url, like=clients[0]))
        turns = cycle(random.sample(clients, 2))
        for step in range(STEPS):
            assert (await next(turns).post("/increment_counter", {"count": 1}))[0] == 200
            assert (await next(turns).post("/get_counter_value", {})) == (200, {"count": step + 1})
            if step % 3 == 0:
                next(turns)  # so that reads and writes change sides
        reply = {"output": [], "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
        status, verdict = await next(turns).post(
            "/verify",
            {
                "responses_create_params": {"input": []},
                "response": {"id": "r", "created_at": 0, "model": "m", "object": "response", **reply},
                "initial_count": 0,
                "expected_count": STEPS,
            },
        )
        assert (status, verdict["reward"]) == (200, 1.0)

    await asyncio.gather(*map(play, range(EPISODES)))
