"""The Gymnasium-style endpoints: reset, step and close."""

import json
from typing import Any

import pytest

from stateroom import Verdict
from stateroom.gallery import CounterEnvironment, WeatherEnvironment
from stateroom.session import Rescorer
from tests.plain_counter import PlainCounterEnvironment

ROW = {"responses_create_params": {"input": "add 4, then add 2"}, "initial_count": 3, "expected_count": 9}


def made(*calls: tuple[str, Any], **more: Any) -> dict[str, Any]:
    """A step's body: a response with these calls."""
    items = [
        {"type": "function_call", "call_id": f"c{index}", "name": name, "arguments": json.dumps(arguments)}
        for index, (name, arguments) in enumerate(calls)
    ]
    return {**ROW, "response": {"output": [{"type": "reasoning"}, *items]}, **more}


async def test_an_episode(serve: Any, store_url: str) -> None:
    served = await serve(CounterEnvironment(), WeatherEnvironment(), store=store_url)
    prefix = "/ng-rollout/7/counter"
    status, begun = await served.post(f"{prefix}/reset", ROW)
    assert (status, begun["observation"], begun["info"].keys()) == (
        200,
        None,
        {"session_id", "seed_key", "supports_step_idempotency", "supports_explicit_close"},
    )
    status, stepped = await served.post(
        f"{prefix}/step", made(("increment_counter", {"count": 4}), ("get_counter_value", {}))
    )
    outputs = [{"call_id": "c0", "output": '{"success":true}'}, {"call_id": "c1", "output": '{"count":7}'}]
    ongoing: Any = {"observation": None, "reward": 0.0, "terminated": False, "truncated": False}
    assert (status, stepped) == (200, {**ongoing, "info": {"tool_outputs": outputs}})
    await served.post(f"{prefix}/step", made(("increment_counter", {"count": 2})))
    over = {**ongoing, "reward": 1.0, "terminated": True, "info": {"tool_outputs": []}}
    for _ in range(2):
        assert await served.post(f"{prefix}/step", made()) == (200, over)
    for _ in range(2):
        assert await served.post(f"{prefix}/close") == (200, {})
    assert await served.refused(f"{prefix}/step", made(("get_counter_value", {}))) == (410, "session_closed")


async def test_a_step_that_is_sent_again_is_made_once(stored: Any) -> None:
    await stored.post("/reset", ROW)
    for step_id in ("one", 2, "\n", "x" * 1000, "\ud800"):
        step = made(
            ("increment_counter", {"count": 1}), ("increment_counter", {"count": 1}), _ng_step_request_id=step_id
        )
        first = await stored.post("/step", step)
        assert first[0] == 200
        assert await stored.post("/step", step) == first
    assert await stored.post("/get_counter_value") == (200, {"count": 13})
    for none in ("", None):
        await stored.post("/step", made(("increment_counter", {"count": 1}), _ng_step_request_id=none))
    assert await stored.post("/get_counter_value") == (200, {"count": 15})


async def test_calls_that_fail_are_told_to_the_model(served: Any) -> None:
    await served.post("/reset", ROW)
    step = made(("increment_counter", {"count": "x"}), ("verify", {}), ("increment_counter", [1]))
    step["response"]["output"].append({"type": "function_call", "call_id": "c3", "name": "x", "arguments": "{not"})
    status, stepped = await served.post("/step", step)
    codes = [json.loads(found["output"])["error"]["code"] for found in stepped["info"]["tool_outputs"]]
    assert (status, stepped["terminated"]) == (200, False)
    assert codes == ["invalid_arguments", "unknown_tool", "invalid_arguments", "invalid_arguments"]
    assert await served.post("/get_counter_value") == (200, {"count": 3})


async def test_the_plain_endpoints_share_the_session(serve: Any) -> None:
    served = await serve(PlainCounterEnvironment())
    await served.post("/seed_session", ROW)
    await served.post("/step", made(("increment_counter", {"count": 4})))
    await served.post("/increment_counter", {"count": 2})
    assert (await served.post("/verify", made()))[1]["reward"] == 1.0
    assert await served.refused("/step", made(("increment_counter", {"count": 4}))) == (409, "session_sealed")
    assert (await served.post("/step", made()))[1]["reward"] == 1.0


async def test_close_leaves_a_session_without_a_verdict_alone(served: Any) -> None:
    await served.post("/reset", ROW)
    assert await served.post("/close") == (200, {})
    assert await served.post("/get_counter_value") == (200, {"count": 3})


async def test_close_knows_a_verdict_that_another_worker_gave(serve: Any, shared_url: str) -> None:
    one, other = await serve(store=shared_url), await serve(store=shared_url)
    _, begun = await one.post("/reset", ROW)
    cookies = {found.key: found.value for found in one.client.cookie_jar}
    assert (await other.post("/step", made(), cookies=cookies))[1]["terminated"]
    assert await one.post("/close") == (200, {})
    assert (await one.services.store.head(begun["info"]["session_id"])).closed


@pytest.mark.parametrize("step_id", [["one"], True])
async def test_an_id_of_a_step_is_a_text(served: Any, step_id: Any) -> None:
    await served.post("/reset", ROW)
    status, refused = await served.post("/step", made(_ng_step_request_id=step_id))
    assert (status, list(refused["error"]["fields"])) == (422, ["_ng_step_request_id"])


@pytest.mark.parametrize("seeded", [False, True])
async def test_steps_without_a_state(serve: Any, shared_url: str, seeded: bool) -> None:
    """A client without a session is judged by its last response: nothing connects its requests."""
    served = await serve(WeatherEnvironment(), store=shared_url)
    if seeded:
        assert (await served.post("/reset", {}))[0] == 200
    status, stepped = await served.post("/step", made(("get_weather", {"city": "Lima"})))
    assert (status, "Lima" in stepped["info"]["tool_outputs"][0]["output"]) == (200, True)
    assert await served.post("/close") == (200, {})  # as a model may try
    for _ in range(2):  # the second time, the first reply was lost
        judged = (await served.post("/step", made()))[1]
        assert (judged["terminated"], judged["reward"]) == (True, float(seeded))
    assert await served.post("/close") == (200, {})
    assert (await served.post("/step", made()))[0] == (410 if seeded else 200)


async def test_an_episode_without_a_state_is_stepped_on_by_another_server(serve: Any, shared_url: str) -> None:
    first, second = [await serve(WeatherEnvironment(), store=shared_url) for _ in range(2)]
    await first.post("/reset", {})
    await first.post("/step", made(("get_weather", {"city": "Lima"})))
    cookie = {"cookie": "; ".join(f"{each.key}={each.value}" for each in first.client.cookie_jar)}
    assert (await second.good("/step", made(), headers=cookie))["reward"] == 1.0


class SayingEnvironment(CounterEnvironment):
    """Judges what was said and done in all steps."""

    def verify(self, state: Any, episode: Any) -> Verdict:
        items = episode.response["output"]
        seen = [item.get("name") or item.get("output") or item.get("content") for item in items]
        return Verdict(1.0, details={"seen": seen})


def told(text: str, **more: Any) -> dict[str, Any]:
    """A step's body: a message without calls, which ends the episode."""
    return {**ROW, "response": {"output": [{"type": "message", "role": "assistant", "content": text}]}, **more}


async def test_the_verifier_is_given_the_whole_conversation(serve: Any, shared_url: str) -> None:
    first = await serve(SayingEnvironment(), store=shared_url)
    await first.post("/reset", ROW)
    cookies = {found.key: found.value for found in first.client.cookie_jar}
    add = made(("increment_counter", {"count": 4}), _ng_step_request_id="one")
    for _ in range(2):  # sent again, it is said once
        assert (await first.post("/step", add))[0] == 200
    other = await serve(SayingEnvironment(), store=shared_url)  # as after a restart
    assert (await other.post("/step", made(("get_counter_value", {})), cookies=cookies))[0] == 200
    for _ in range(2):
        assert (await other.post("/step", told("It is 7."), cookies=cookies))[1]["terminated"]
    assert await other.refused("/step", told("It is 8."), cookies=cookies) == (409, "session_sealed")
    [head] = await other.services.store.heads()
    session = await other.services.environments["saying"].sessions.open(head.id)
    called = [None, "increment_counter", '{"success":true}', None, "get_counter_value", '{"count":7}']
    assert session.verdict.details["seen"] == [*called, "It is 7."]
    rescored = await Rescorer(SayingEnvironment(), other.services.store).judge(head.id)
    assert rescored.verdict == session.verdict


class AskingEnvironment(SayingEnvironment):
    """A user answers the first message."""

    def reply(self, message: str) -> str | None:
        return "Sure." if message == "May I?" else None


async def test_the_answers_of_the_user_are_part_of_the_conversation(serve: Any) -> None:
    served = await serve(AskingEnvironment())
    await served.post("/reset", ROW)
    for _ in range(2):
        stepped = (await served.post("/step", told("May I?", _ng_step_request_id=1)))[1]
        assert (stepped["observation"], stepped["terminated"], stepped["reward"]) == ("Sure.", False, 0.0)
    for _ in range(2):
        stepped = (await served.post("/step", told("Done.", _ng_step_request_id=2)))[1]
        assert (stepped["observation"], stepped["terminated"], stepped["reward"]) == (None, True, 1.0)
    [head] = await served.services.store.heads()
    session = await served.services.environments["asking"].sessions.open(head.id)
    assert session.verdict.details["seen"] == ["May I?", "Sure.", "Done."]
