"""Seeding again: only whoever seeded may, and what was there before is never silently kept."""

from typing import Any

from stateroom.gallery import WeatherEnvironment

ROW = {"responses_create_params": {"input": "add 6"}, "initial_count": 3, "expected_count": 9}

SAID: Any = {"response": {"output": []}}
OTHER = {**ROW, "initial_count": 20}

NEW, OLD = "the secret that takes over", "the secret that was there first"


def token(served: Any) -> str:
    [cookie] = served.client.cookie_jar
    return str(cookie.value)


async def entries(served: Any, session_id: str) -> list[Any]:
    session = await served.services.environments["counter"].sessions.open(session_id, include_closed=True)
    return [entry async for entry in session.log()]


async def test_with_a_cookie_alone_nobody_seeds(stored: Any) -> None:
    await stored.post("/seed_session", ROW)
    await stored.post("/increment_counter", {"count": 2})
    before = token(stored)
    for path in ("/seed_session", "/reset"):
        async with stored.client.post(f"{stored.url}{path}", json=OTHER) as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (409, "conflict")
            assert reply.cookies["stateroom_counter"].value == before
    assert await stored.post("/get_counter_value") == (200, {"count": 5})
    assert len(await stored.services.store.heads()) == 1


async def test_the_key_replaces_the_session_and_both_logs_say_so(stored: Any) -> None:
    _, first = await stored.post("/seed_session", ROW)
    old = token(stored)
    await stored.post("/increment_counter", {"count": 2})
    second = await stored.good("/seed_session", {**OTHER, "seed_key": first["seed_key"]})
    assert second["session_id"] != first["session_id"]
    assert second["seed_key"] != first["seed_key"]
    assert await stored.post("/get_counter_value") == (200, {"count": 20})
    closed = (await entries(stored, first["session_id"]))[-1]
    assert (closed.kind, closed.facts) == ("close", {"replaced_by": second["session_id"]})
    [seeded] = await entries(stored, second["session_id"])
    assert (seeded.facts["replaces"], seeded.input) == (first["session_id"], OTHER)
    assert await stored.services.store.count(stored.services.now()) == 1
    status, refused = await stored.post(
        "/get_counter_value", headers={"Cookie": f"stateroom_counter={old}"}, cookies={"stateroom_counter": old}
    )
    assert (status, refused["error"]["code"]) == (410, "session_closed")


async def test_only_its_own_key_replaces_a_session(served: Any) -> None:
    _, other = await served.post("/seed_session", OTHER)
    served.client.cookie_jar.clear()
    _, first = await served.post("/seed_session", ROW)
    key = first["seed_key"]
    for wrong in (other["seed_key"], "", key[:-1], key.upper(), key + " ", "é", None, 7, [key], token(served)):
        assert await served.refused("/seed_session", {**OTHER, "seed_key": wrong}) == (409, "conflict")
    assert await served.post("/get_counter_value") == (200, {"count": 3})
    assert (await served.post("/seed_session", {**OTHER, "seed_key": key}))[0] == 200
    status, refused = await served.post("/seed_session", {**OTHER, "seed_key": key})  # it was the old session's
    assert (status, refused["error"]["code"]) == (409, "conflict")


async def test_the_key_is_not_in_what_the_model_comes_near(served: Any) -> None:
    async with served.client.post(f"{served.url}/seed_session", json=ROW) as reply:
        key = (await reply.json())["seed_key"]
        assert key not in str(reply.headers)
        assert (await reply.json())["mcp"]["headers"]["X-NeMo-Gym-Session-Token"] == token(served)
    for path, body in [
        ("/get_counter_value", {}),
        ("/seed_session", OTHER),
        ("/verify", {**ROW, **SAID}),
        ("/nothing", {}),
    ]:
        async with served.client.post(f"{served.url}{path}", json=body) as reply:
            assert key not in await reply.text()
            assert key not in str(reply.headers)


async def test_after_a_verdict_the_key_still_seeds_and_a_cookie_still_does_not(served: Any) -> None:
    _, first = await served.post("/seed_session", ROW)
    assert (await served.post("/verify", {**ROW, **SAID}))[1]["reward"] == 0.0
    assert (await served.post("/seed_session", ROW))[0] == 409
    assert (await served.post("/close"))[0] == 200
    assert await served.refused("/seed_session", {"initial_count": 9, "expected_count": 9}) == (409, "conflict")
    assert (await served.post("/seed_session", {**ROW, "seed_key": first["seed_key"]}))[0] == 200
    assert await served.post("/increment_counter", {"count": 6}) == (200, {"success": True})
    assert (await served.post("/verify", {**ROW, **SAID}))[1]["reward"] == 1.0


async def test_a_row_that_cannot_be_seeded_leaves_the_old_session(served: Any) -> None:
    _, first = await served.post("/seed_session", ROW)
    before = token(served)
    status, refused = await served.post("/seed_session", {"initial_count": "x", "seed_key": first["seed_key"]})
    assert (status, refused["error"]["code"]) == (422, "invalid_task")
    assert token(served) == before
    assert await served.post("/get_counter_value") == (200, {"count": 3})
    assert await served.services.store.count(served.services.now()) == 1


async def test_the_key_of_an_older_secret_is_good(serve: Any, shared_url: str) -> None:
    before = await serve(store=shared_url, secrets=(OLD,))
    _, first = await before.post("/seed_session", ROW)
    after = await serve(store=shared_url, secrets=(NEW, OLD))
    cookies = {"stateroom_counter": token(before)}
    status, second = await after.post("/seed_session", {**OTHER, "seed_key": first["seed_key"]}, cookies=cookies)
    assert (status, second["session_id"] == first["session_id"]) == (200, False)
    assert await after.post("/get_counter_value") == (200, {"count": 20})


async def test_without_a_state_seeding_again_needs_the_key_too(serve: Any) -> None:
    served = await serve(WeatherEnvironment())
    _, first = await served.post("/seed_session", {})
    assert (await served.post("/seed_session", {}))[0] == 409
    status, second = await served.post("/seed_session", {"seed_key": first["seed_key"]})
    assert (status, second["session_id"] == first["session_id"]) == (200, False)


async def test_a_session_that_expired_is_in_the_way_too(serve: Any) -> None:
    """A model could stall until its session has expired, and then seed one that is solved."""
    now = 1_000.0
    served = await serve(ttl=100.0, now=lambda: now)
    row = {"initial_count": 3, "expected_count": 9}
    _, seeded = await served.post("/seed_session", row)
    now += 101
    assert (await served.post("/get_counter_value"))[0] == 410
    assert (await served.post("/seed_session", row))[0] == 409
    assert (await served.post("/seed_session", {**row, "seed_key": seeded["seed_key"]}))[0] == 200
    assert await served.post("/get_counter_value") == (200, {"count": 3})
