"""The resources-server protocol, over a real connection."""

import asyncio
from typing import Any

import aiohttp
import pytest
from yarl import URL

from stateroom import Environment, Episode, Verdict, tool
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment, WeatherEnvironment
from tests.plain_counter import PlainCounterEnvironment

ROW = {"responses_create_params": {"input": "add 4, then add 2"}, "initial_count": 3, "expected_count": 9}

SAID: Any = {"response": {"output": []}}


@pytest.mark.parametrize("prefix", ["", "/ng-rollout/3-1.a_b"])
async def test_an_episode(stored: Any, prefix: str) -> None:
    assert await stored.get(f"{prefix}/") == (200, {"status": "ok"})
    status, seeded = await stored.post(f"{prefix}/seed_session", ROW)
    assert (status, seeded.keys()) == (200, {"session_id", "seed_key", "mcp"})
    assert await stored.post(f"{prefix}/increment_counter", {"count": 4}) == (200, {"success": True})
    assert await stored.post(f"{prefix}/increment_counter", {"count": 2}) == (200, {"success": True})
    assert await stored.post(f"{prefix}/get_counter_value") == (200, {"count": 9})
    assert (await stored.good(f"{prefix}/verify", {**ROW, "response": {"output": []}}))["reward"] == 1.0
    assert await stored.get(f"{prefix}/reverify_mode") == (200, "unsupported")
    status, metrics = await stored.post(
        f"{prefix}/aggregate_metrics", {"verify_responses": [{"_ng_task_index": 0, "reward": 1.0}]}
    )
    assert (status, metrics["key_metrics"]["mean/reward"]) == (200, 1.0)
    body = {"resources_session_id": seeded["session_id"], "episode_id": {"rollout_id": "a", "attempt": 0}}
    for _ in range(2):  # once, or twice
        assert await stored.post(f"{prefix}/close_session", body) == (
            200,
            {"resources_session_id": seeded["session_id"]},
        )


async def test_what_only_looks_like_a_rollout_is_no_prefix(served: Any) -> None:
    for prefix in ("/ng-rollout/", "/ng-rollout/-a", "/ng-rollout/a b", "/ng-rollout/a/ng-rollout/b"):
        assert await served.refused(f"{prefix}/seed_session", ROW) == (404, "unknown_tool")


async def test_no_number_of_a_row_comes_back_as_a_metric(serve: Any) -> None:
    served = await serve(PlainCounterEnvironment())
    more = {
        "agent_ref": {"type": "responses_api_agents", "name": "simple"},
        "_ng_task_index": 7,
        "odd": [None, 1e300, -(2**70), "\ud83d", {"": {}}],
        "reward": 5,
    }
    sent = {**ROW, **more, "response": {"output": [{"type": "message", "extra": [1]}], "usage": {"tokens": 3}}}
    await served.post("/seed_session", {**ROW, **more})
    verdict = await served.good("/verify", sent)
    same = {name: sent[name] for name in ("responses_create_params", "response")}
    assert verdict == {**same, "reward": 0.0}


async def test_who_has_the_row_need_not_get_it_back(serve: Any) -> None:
    served = await serve(PlainCounterEnvironment())
    await served.post("/seed_session", ROW)
    async with served.client.post(
        f"{served.url}/verify", json={**ROW, "response": {"output": []}}, headers={"Prefer": "return=minimal"}
    ) as reply:
        assert (await reply.json(), reply.headers["Preference-Applied"]) == ({"reward": 0.0}, "return=minimal")


async def test_details_metrics_and_parts_of_a_verdict_are_told(serve: Any) -> None:
    class ReportingEnvironment(Environment):
        def verify(self, episode: Episode) -> Verdict:
            return Verdict(0.5, {"style": 0.5}, {"length": 3}, "middling", {"parsed": [1]})

    served = await serve(ReportingEnvironment())
    assert await served.post("/verify", {**SAID, "a": 1}) == (
        200,
        {
            **SAID,
            "reward": 0.5,
            "style": 0.5,
            "reward_components": {"style": 0.5},
            "length": 3.0,
            "reason": "middling",
            "parsed": [1],
        },
    )


async def test_metrics_are_aggregated_by_task(served: Any) -> None:
    rows = [
        {"_ng_task_index": task, "_ng_rollout_index": index, "reward": reward, "turns": 2, "expected_count": 7}
        for task, index, reward in [(0, 0, 1.0), (0, 1, 0.0), (1, 0, 1.0), (1, 1, 1.0)]
    ]
    metrics = await served.good("/aggregate_metrics", {"verify_responses": rows})
    errors = {"stderr/reward": 0.25, "stderr/pass@1": 0.25, "stderr/pass@2": 0.0}
    assert metrics["key_metrics"] == pytest.approx(
        {"mean/reward": 0.75, "mean/turns": 2.0, "pass@1": 0.75, "pass@2": 1.0, **errors}
    )
    assert [group["mean/reward"] for group in metrics["group_level_metrics"]] == [0.5, 1.0]
    assert metrics["agent_metrics"]["mean/turns"] == 2.0
    assert "mean/expected_count" not in metrics["agent_metrics"]  # which the task gave
    assert metrics["agent_metrics"]["mean_across_repeats/mean/reward"] == 0.75


async def test_aggregating_much_lets_others_go_on(served: Any) -> None:
    rows = [{"_ng_task_index": index, "reward": 1.0} for index in range(20_000)]
    aggregating = asyncio.create_task(served.post("/aggregate_metrics", {"verify_responses": rows}))
    answered = 0
    while not aggregating.done():
        async with aiohttp.ClientSession() as other, other.get(f"{served.url}/health") as reply:
            answered += reply.status == 200 and not aggregating.done()
    assert (await aggregating)[0] == 200
    assert answered > 3


async def test_many_environments_share_a_server_and_not_their_sessions(
    serve: Any, connect: Any, store_url: str
) -> None:
    served = await serve(CounterEnvironment(), ExtractionEnvironment(), WeatherEnvironment(), store=store_url)
    words = {"expected_synonym_values": [543], "expected_synonyms": ["large"]}
    mines = {"minefield_label": "big", "minefield_label_value": 306}
    for path in ("/", "/counter/", "/extraction/", "/weather/"):
        assert await served.get(path) == (200, {"status": "ok"})
    clients = {name: await connect(served.url) for name in ("counter", "extraction", "weather")}
    _, counter = await clients["counter"].post("/counter/seed_session", ROW)
    _, extraction = await clients["extraction"].post("/extraction/seed_session", {"id": 1, **words, **mines})
    assert (await clients["weather"].post("/weather/seed_session", {}))[0] == 200
    cookies = {cookie.key: cookie.value for client in clients.values() for cookie in client.client.cookie_jar}
    assert len(cookies) == 3
    served.client.cookie_jar.update_cookies(cookies, URL(served.url))
    assert await served.post("/ng-rollout/a/counter/increment_counter", {"count": 6}) == (200, {"success": True})
    assert (await served.post("/extraction/extract_synonym_values", {"synonym_values": [543]}))[0] == 200
    assert (await served.post("/weather/get_weather", {"city": "Lima"}))[0] == 200
    assert (await served.post("/counter/verify", SAID))[1]["reward"] == 1.0
    assert (await served.post("/extraction/verify", SAID))[1]["reward"] == 1.0
    assert (await served.post("/weather/verify", SAID))[1]["reward"] == 0.0  # it made no call
    assert counter["mcp"]["url_path"] == "/counter/mcp"
    assert await served.get("/weather/reverify_mode") == (200, "stateless")
    assert await served.refused("/extraction/increment_counter", {"count": 6}) == (404, "unknown_tool")
    status, refused = await served.post("/counter/close_session", {"resources_session_id": extraction["session_id"]})
    assert (status, refused["error"]["code"]) == (409, "conflict")
    status, refused = await served.post("/increment_counter", {"count": 6})
    assert (status, refused["error"]["code"]) == (404, "not_found")
    assert "/counter, /extraction, /weather" in refused["error"]["message"]


class LuckyEnvironment(Environment):
    """Roll dice."""

    @tool
    def roll(self, rng: Any, clock: Any) -> list[Any]:
        """A number and the time."""
        return [rng.random(), clock.now().isoformat()]

    def verify(self, episode: Episode) -> float:
        return float(episode.task.wanted)


async def test_without_a_state_nothing_needs_a_seed(serve: Any, store_url: str) -> None:
    served = await serve(WeatherEnvironment(), store=store_url)
    _, unseeded = await served.post("/get_weather", {"city": "Lima"})
    called = {"type": "function_call", "call_id": "call_0", "name": "get_weather", "arguments": "{}"}
    assert (await served.post("/verify", {"response": {"output": [called]}, "a": 1}))[1]["reward"] == 1.0
    assert len(served.client.cookie_jar) == 0
    seeded = await served.good("/seed_session", {})
    assert await served.post("/get_weather", {"city": "Lima"}) == (200, unseeded)
    assert await served.post("/close_session", {"resources_session_id": seeded["session_id"]}) == (
        200,
        {"resources_session_id": seeded["session_id"]},
    )
    assert await served.get("/reverify_mode") == (200, "stateless")
    assert await served.services.store.heads() == []


class LuckyVerifier(LuckyEnvironment):
    def verify(self, rng: Any) -> float:
        return float(rng.random())


async def test_a_verdict_by_luck_cannot_be_given_again(serve: Any) -> None:
    assert await (await serve(LuckyVerifier())).get("/reverify_mode") == (200, "unsupported")


async def test_without_a_state_the_cookie_is_the_luck(serve: Any) -> None:
    served = await serve(LuckyEnvironment())
    luck = {"Stateroom-Seed": "5", "Stateroom-Began": "1000.5"}
    key = {"Idempotency-Key": "a"}
    await served.post("/seed_session", {"wanted": 1}, headers=luck)
    status, rolled = await served.post("/roll", headers=key)
    assert (status, rolled[1]) == (200, "1970-01-01T00:16:40.500000+00:00")
    assert await served.post("/roll", headers=key) == (200, rolled)
    served.client.cookie_jar.clear()
    assert (await served.post("/roll", headers=key))[1] != rolled
    await served.post("/seed_session", {"wanted": 1}, headers=luck)
    assert await served.post("/roll", headers=key) == (200, rolled)


async def test_without_a_state_the_row_is_judged(serve: Any) -> None:
    served = await serve(LuckyEnvironment())
    await served.post("/seed_session", {"wanted": 0.25})
    assert (await served.post("/verify", {**SAID, "wanted": 0.5}))[1]["reward"] == 0.5
    status, refused = await served.post("/verify", SAID)
    assert (status, refused["error"]["code"]) == (500, "environment_error")
    assert refused["error"]["message"] == "verify failed: unexpected AttributeError"


async def test_luck_that_is_no_number_is_refused(served: Any) -> None:
    for name, value in [("Stateroom-Seed", "-1"), ("Stateroom-Began", "nan"), ("Stateroom-Began", "soon")]:
        status, refused = await served.post("/seed_session", ROW, headers={name: value})
        assert (status, refused["error"]["code"]) == (422, "invalid_task")
        assert name in refused["error"]["message"]


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
async def test_a_call_that_is_sent_again_is_made_once(stored: Any, together: bool) -> None:
    await stored.post("/seed_session", ROW)
    posts = [stored.post("/increment_counter", {"count": 6}, headers={"Idempotency-Key": "one"}) for _ in range(3)]
    replies = await asyncio.gather(*posts) if together else [await post for post in posts]
    assert replies == [(200, {"success": True})] * 3
    assert await stored.post("/get_counter_value") == (200, {"count": 9})


async def test_an_empty_id_is_none_and_one_that_cannot_be_written_is_refused(served: Any) -> None:
    await served.post("/seed_session", ROW)
    for _ in range(2):
        await served.post("/increment_counter", {"count": 3}, headers={"Idempotency-Key": ""})
    odd = {"Idempotency-Key": "\x80"}
    assert await served.refused("/increment_counter", {"count": 3}, headers=odd) == (422, "invalid_arguments")
    assert await served.post("/get_counter_value") == (200, {"count": 9})


class SaidEnvironment(CounterEnvironment):
    """Its verifier reads the response alone."""

    def verify(self, episode: Episode) -> float:
        return float(len(episode.response["output"]))


class LookingBack(SaidEnvironment):
    def verify(self, episode: Episode) -> float:
        return float(len(episode.calls()))


async def test_a_verifier_that_reads_only_the_response_needs_no_session(serve: Any) -> None:
    row = {"initial_count": 1, "expected_count": 2, **SAID}
    served = await serve(SaidEnvironment())
    assert await served.get("/reverify_mode") == (200, "stateless")
    assert (await served.post("/verify", row))[1]["reward"] == len(SAID["response"]["output"])
    assert len(served.client.cookie_jar) == 0
    served = await serve(LookingBack())
    assert (await served.post("/verify", row))[0] == 401
    assert await served.get("/reverify_mode") == (200, "unsupported")
