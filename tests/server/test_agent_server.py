"""The agent server: whole episodes at `/run`, and turns in a session at `/v1/responses`, by a real client."""

import asyncio
import os
import signal
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stateroom import Environment
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment, WeatherEnvironment
from stateroom.model import open_model
from stateroom.rollout import RunFiles, generate_tasks, run
from stateroom.server import Key
from stateroom.training import sequences
from tests.environments import PurseEnvironment
from tests.patience import PATIENCE
from tests.plans import make_run
from tests.rows import OWN, rows, without
from tests.server.agent_models import Waits
from tests.server.conftest import until
from tests.servers.vllm import VLLM, by_policy, serving

ROW: dict[str, Any] = {
    "responses_create_params": {"input": "add 4, then add 2"},
    "initial_count": 3,
    "expected_count": 9,
    "_ng_task_index": 0,
    "_ng_rollout_index": 0,
}
AGENTS = Path(__file__).with_name("agent_models.py")
WAITS, FAILS = "tests.server.agent_models:Waits", "tests.server.thread_models:Fails"


@pytest.fixture
def waits() -> type[Waits]:
    """The policy that waits, for one test."""
    Waits.reset()
    return Waits


@pytest.fixture
async def agent(serve: Any) -> Any:
    """A server of the counter whose agent is the reference policy."""
    return await serve(agent="reference")


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what differs from run to run."""
    return without(row, *OWN)


async def ran(served: Any, row: dict[str, Any], path: str = "/run", **headers: str) -> dict[str, Any]:
    """The reply to a request that succeeds, by a client of its own."""
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{served.url}{path}", json=row, headers=headers) as reply,
    ):
        told = await reply.json()
        assert reply.status == 200, told
        assert "set-cookie" not in reply.headers  # nobody else acts in the session
        return told


@pytest.mark.parametrize("policy", ["reference", "noisy"])
@pytest.mark.parametrize("kind", [CounterEnvironment, ExtractionEnvironment, WeatherEnvironment])
async def test_the_reply_is_the_row_of_a_run(
    serve: Any, tmp_path: Path, kind: type[Environment[Any, Any]], policy: str
) -> None:
    files, source = RunFiles(tmp_path / "run.jsonl"), open_model(policy, kind.policies)
    await run(make_run(kind(), source, generate_tasks(kind, 4, seed=1), files, repeats=2))
    served = await serve(kind(), agent=policy)
    replies = [await ran(served, without(row, *OWN)) for row in rows(files.inputs)]
    assert [comparable(reply) for reply in replies] == [comparable(row) for row in rows(files.rollouts)]


async def test_tokens_come_with_whole_prompts(serve: Any) -> None:
    async with serving(VLLM(by_policy("counter:reference"))) as models:
        served = await serve(agent=f"chat:m@{models}", record_tokens="exact")
        reply = await ran(served, ROW)
    seen: list[int] = []
    for item in reply["response"]["output"]:
        if "generation_token_ids" in item:  # as NeMo RL walks them
            assert item["prompt_token_ids"][: len(seen)] == seen
            assert "prompt_is_delta" not in item
            seen = item["prompt_token_ids"] + item["generation_token_ids"]
    assert [step.answer for step in sequences(reply)[0].steps] == [0, 1, 2, 3]


async def test_gym_s_own_fields_stay_in_the_row_and_set_the_model_s_parameters(agent: Any) -> None:
    named = {"agent_ref": {"type": "responses_api_agents", "name": "counter_agent"}, "task_source": {"a": 1}}
    reply = await ran(agent, {**ROW, **named})
    assert {name: reply[name] for name in named} == named
    assert (reply["reward"], reply["_ng_task_index"], reply["_ng_rollout_index"]) == (1.0, 0, 0)


async def test_rows_without_indices_have_random_seeds(agent: Any) -> None:
    row = {name: value for name, value in ROW.items() if not name.startswith("_ng")}
    first, second = await ran(agent, row), await ran(agent, row)
    assert first["response"]["id"] != second["response"]["id"]
    assert not [name for name in first if name.startswith("_ng")]


async def test_an_episode_that_fails_is_told_as_gym_s_collection_expects_it(serve: Any) -> None:
    served = await serve(agent=FAILS)
    reply = await ran(served, ROW, **{"Idempotency-Key": "one"})
    assert (reply["_ng_failure_class"], reply["_ng_failure_terminal"]) == ("model", True)
    assert "reward" not in reply
    again = await ran(served, ROW, **{"Idempotency-Key": "one"})
    assert again["_stateroom_session"] == reply["_stateroom_session"]
    assert (again["_ng_failure_class"], again["_ng_failure_terminal"]) == ("model", True)


async def test_episodes_are_closed_and_leave_no_live_session(agent: Any) -> None:
    await ran(agent, ROW)
    await ran(agent, ROW, **{"Idempotency-Key": "one"})
    assert agent.services.count.live == 0
    status, told = await agent.get("/admin/sessions?status=closed")
    assert (status, len(told["sessions"])) == (200, 2)


async def test_an_episode_that_waits_for_a_person_goes_on_when_it_is_sent_again(serve: Any) -> None:
    served = await serve(PurseEnvironment(), agent="tests.server.thread_models:Adds")
    row, key = {"responses_create_params": {"input": "5"}}, {"Idempotency-Key": "one"}
    status, told = await served.post("/run", row, headers=key)
    assert (status, told["error"]["code"]) == (409, "conflict")
    [session] = (await served.get("/admin/sessions"))[1]["sessions"]
    assert session["id"] in told["error"]["message"]
    assert (await served.post(f"/admin/sessions/{session['id']}/answer", {"input": "yes"}))[0] == 200
    assert (await ran(served, row, **key))["reward"] == 5.0


@pytest.mark.parametrize("how", ["header", "path", "row", "attempt"])
async def test_a_request_that_is_sent_again_gets_the_same_episode(serve: Any, store_url: str, how: str) -> None:
    served = await serve(store=store_url, agent="noisy")

    async def send(episode: str) -> dict[str, Any]:
        match how:
            case "header":
                return await ran(served, ROW, **{"Idempotency-Key": episode})
            case "path":
                return await ran(served, ROW, f"/ng-rollout/{episode}/run")
            case "row":
                return await ran(served, {**ROW, "_ng_rollout_id": episode})
        return await ran(served, {**ROW, "_ng_rollout_id": "a", "_ng_attempt_index": int(episode[-1])})

    first, again, other = await send("a.1"), await send("a.1"), await send("a.2")
    assert again["_stateroom_session"] == first["_stateroom_session"] != other["_stateroom_session"]
    assert comparable(again) == comparable(first)


async def test_an_id_belongs_to_one_task(agent: Any) -> None:
    await ran(agent, ROW, **{"Idempotency-Key": "one"})
    other = {**ROW, "expected_count": 10}
    assert await agent.refused("/run", other, headers={"Idempotency-Key": "one"}) == (409, "conflict")


async def test_two_requests_with_one_id_are_one_episode(serve: Any, store_url: str, waits: type[Waits]) -> None:
    served = await serve(store=store_url, agent=WAITS)
    requests = [asyncio.create_task(ran(served, ROW, **{"Idempotency-Key": "one"})) for _ in range(3)]
    await waits.arrived.acquire()
    waits.gate.set()
    replies = await asyncio.gather(*requests)
    assert waits.asked == {0: 1, 1: 1, 2: 1, 3: 1}
    assert [comparable(reply) for reply in replies] == [comparable(replies[0])] * 3
    assert replies[0]["reward"] == 1.0


async def test_a_stateless_episode_with_an_id_asks_its_model_once(serve: Any) -> None:
    class Asked(WeatherEnvironment):
        name = "asked"

    served = await serve(Asked(), agent="reference")
    row = generate_tasks(WeatherEnvironment, 1, seed=1)[0]
    first, again = [await ran(served, row, **{"Idempotency-Key": "one"}) for _ in range(2)]
    assert comparable(again) == comparable(first)
    assert again["_stateroom_times"]["model"] == first["_stateroom_times"]["model"]  # recorded


async def test_an_agent_stops_when_its_client_disconnects_and_goes_on_with_the_next(
    serve: Any, store_url: str, waits: type[Waits]
) -> None:
    served = await serve(store=store_url, agent=WAITS)
    left = asyncio.create_task(ran(served, ROW, **{"Idempotency-Key": "one"}))
    await waits.arrived.acquire()
    left.cancel()
    await asyncio.wait_for(waits.cancelled.wait(), PATIENCE)
    await until(lambda: served.app.in_flight == 0)
    waits.gate.set()
    reply = await ran(served, ROW, **{"Idempotency-Key": "one"})
    assert reply["reward"] == 1.0
    assert waits.asked == {0: 1, 1: 2, 2: 1, 3: 1}  # what was committed stays


async def test_an_episode_without_an_id_ends_with_its_client(serve: Any, waits: type[Waits]) -> None:
    served = await serve(agent=WAITS)
    left = asyncio.create_task(ran(served, ROW))
    await waits.arrived.acquire()
    left.cancel()
    await until(lambda: served.app.in_flight == 0)
    assert served.services.count.live == 0


async def test_agents_leave_room_for_other_requests(serve: Any, waits: type[Waits]) -> None:
    served = await serve(agent=WAITS, max_calls=4)
    running = [asyncio.create_task(ran(served, ROW)) for _ in range(3)]
    for _ in running:
        await waits.arrived.acquire()
    assert await served.refused("/run", ROW) == (503, "busy")
    assert (await served.post("/seed_session", ROW))[0] == 200
    waits.gate.set()
    assert [reply["reward"] for reply in await asyncio.gather(*running)] == [1.0] * 3


async def test_a_session_does_not_expire_while_its_agent_works(serve: Any, waits: type[Waits]) -> None:
    served = await serve(agent=WAITS, ttl=0.4)
    running = asyncio.create_task(ran(served, ROW))
    await waits.arrived.acquire()
    began = time.time()
    await until(lambda: time.time() > began + 1)  # the server sweeps meanwhile
    waits.gate.set()
    assert (await running)["reward"] == 1.0


async def test_a_turn_acts_in_the_client_s_session(agent: Any) -> None:
    await agent.post("/seed_session", ROW)
    async with agent.client.post(f"{agent.url}/v1/responses", json=ROW["responses_create_params"]) as reply:
        response = await reply.json()
        assert (reply.status, "set-cookie" in reply.headers) == (200, True), response
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["function_call", "function_call_output"] * 3 + ["message"]
    assert len({item["id"] for item in response["output"]}) == len(kinds)
    assert (response["object"], response["status"], response["model"]) == ("response", "completed", "reference")
    assert (await agent.post("/get_counter_value"))[1] == {"count": 9}
    assert (await agent.post("/verify", {**ROW, "response": response}))[1]["reward"] == 1.0


async def test_each_turn_makes_its_own_calls_and_one_that_is_sent_again_makes_none(
    serve: Any, store_url: str, waits: type[Waits]
) -> None:
    served = await serve(store=store_url, agent=WAITS)
    waits.gate.set()
    await served.post("/seed_session", ROW)
    for _ in range(2):
        assert (await served.post("/v1/responses", {"input": "add 4"}))[0] == 200
    assert (await served.post("/get_counter_value"))[1] == {"count": 11}
    key, asked = {"headers": {"Idempotency-Key": "one"}}, waits.asked.copy()
    first, again = [await served.post("/v1/responses", {"input": "add 4"}, **key) for _ in range(2)]
    assert first[0] == 200
    assert again == first
    assert waits.asked - asked == {0: 1, 1: 1, 2: 1}  # by the first
    assert (await served.post("/get_counter_value"))[1] == {"count": 15}
    assert await served.refused("/v1/responses", {"input": "add 5"}, **key) == (409, "conflict")


async def test_a_turn_without_a_session_needs_an_environment_without_a_state(serve: Any) -> None:
    served = await serve(CounterEnvironment(), WeatherEnvironment(), agent="reference")
    assert await served.refused("/counter/v1/responses", {"input": "add 4"}) == (401, "unauthorized")
    row = generate_tasks(WeatherEnvironment, 1, seed=1)[0]
    status, response = await served.post("/weather/v1/responses", row["responses_create_params"])
    assert (status, response["output"][-1]["type"]) == (200, "message")


@pytest.mark.parametrize(
    "body", [{}, {"input": [1]}, {"input": "add 4", "tools": [1]}, {"input": "add 4", "stream": True}]
)
async def test_a_turn_refuses_what_it_cannot_read(agent: Any, body: dict[str, Any]) -> None:
    await agent.post("/seed_session", ROW)
    assert await agent.refused("/v1/responses", body) == (422, "invalid_arguments")


async def test_a_turn_tells_that_its_model_failed(serve: Any) -> None:
    served = await serve(agent=FAILS)
    await served.post("/seed_session", ROW)
    for _ in range(2):
        failed = await served.refused("/v1/responses", {"input": "add 4"}, headers={"Idempotency-Key": "one"})
        assert failed == (502, "model_failed")


async def test_a_session_s_client_cannot_run_an_episode(agent: Any) -> None:
    """A model's calls have its session's cookie, and it may make up a tool named run."""
    await agent.post("/seed_session", ROW)
    assert await agent.refused("/run", ROW) == (409, "conflict")


async def test_episodes_need_an_api_key_and_count_as_sessions(serve: Any) -> None:
    key = Key("ann", sha256(b"ann's key").hexdigest(), sessions=1)
    served = await serve(agent="reference", keys=(key,))
    assert await served.refused("/run", ROW) == (401, "unauthorized")
    hers = {"authorization": "Bearer ann's key", "Idempotency-Key": "one"}
    for _ in range(2):  # again, it is no new session
        assert (await ran(served, ROW, **hers))["reward"] == 1.0
    assert await served.refused("/run", ROW, headers={"authorization": "Bearer ann's key"}) == (429, "rate_limited")


@pytest.mark.parametrize(
    ("agent", "row"),
    [
        ("reference", {}),
        ("reference", {**ROW, "responses_create_params": 1}),
        ("reference", {**ROW, "responses_create_params": {"input": 1}}),
        ("gold", ROW),
    ],
    ids=["no task", "no parameters", "no input", "none of the model's"],
)
async def test_a_row_that_is_no_task_for_the_agent_is_refused(serve: Any, agent: str, row: dict[str, Any]) -> None:
    served = await serve(agent=agent)
    assert await served.refused("/run", row) == (422, "invalid_task")
    assert served.services.count.live == 0


async def test_there_is_no_agent_unless_one_is_named(served: Any) -> None:
    assert await served.refused("/run", ROW) == (404, "unknown_tool")
    assert "/run" not in (await served.get("/openapi.json"))[1]["paths"]


async def test_several_environments_have_an_agent_each(serve: Any) -> None:
    served = await serve(CounterEnvironment(), WeatherEnvironment(), agent="reference")
    assert (await ran(served, ROW, "/counter/run"))["reward"] == 1.0
    weather = generate_tasks(WeatherEnvironment, 1, seed=1)[0]
    assert (await ran(served, weather, "/weather/run"))["reward"] == 1.0
    paths = (await served.get("/openapi.json"))[1]["paths"]
    assert {"/counter/run", "/counter/v1/responses", "/weather/run", "/weather/v1/responses"} <= {*paths}


@pytest.mark.more("time")
async def test_no_reward_changes_when_a_worker_is_killed(launch: Any, tmp_path: Path) -> None:
    """Sixteen episodes on two workers; one is killed when all are under way, and the clients send again."""
    options = ("--store", "sqlite:///rooms.db", "--agent", f"{AGENTS}:WaitsForFile", "--workers", "2")
    command = await asyncio.to_thread(launch, "counter", *options, STATEROOM_TEST_FOLDER=str(tmp_path))

    async def send(number: int) -> dict[str, Any]:
        row = {**ROW, "initial_count": number, "expected_count": number + 6, "_ng_rollout_index": number}
        headers = {"Idempotency-Key": f"episode-{number}", "connection": "close"}
        while True:
            try:
                return await ran(command, row, **headers)
            except aiohttp.ClientError:  # its worker is gone
                await asyncio.sleep(0.05)

    running = [asyncio.create_task(send(number)) for number in range(16)]
    await until(lambda: len({*tmp_path.glob("worker-*")}) >= 16)
    [(killed, _)] = Counter(name.split("-")[1] for name in os.listdir(tmp_path) if "worker-" in name).most_common(1)
    os.kill(int(killed), signal.SIGKILL)
    (tmp_path / "go").touch()
    done = await asyncio.wait_for(asyncio.gather(*running), 2 * PATIENCE)
    assert [row["reward"] for row in done] == [1.0] * 16
    assert [row["tool_calls"] for row in done] == [3] * 16
    assert len({row["_stateroom_session"] for row in done}) == 16
