"""Seeding sessions, again too: by names, as 0.7 clients do, and with the key that whoever seeded has."""

import asyncio
from typing import Any

import pytest

from stateroom.gallery import WeatherEnvironment
from stateroom.session import check_session

ROW = {"responses_create_params": {"input": "add 6"}, "initial_count": 3, "expected_count": 9}

SAID: Any = {"response": {"output": []}}
OTHER = {**ROW, "initial_count": 20}

NEW, OLD = "the secret that takes over", "the secret that was there first"


def seeding(name: Any, row: Any = ROW) -> dict[str, Any]:
    return {
        "resources_session_id": name,
        "episode_id": {"rollout_id": "r-1", "attempt": 0},
        "task_id": {"taskset": "counter", "task_id": "7"},
        "task_data": row,
    }


def closing(name: str) -> dict[str, Any]:
    return {"resources_session_id": name, "episode_id": {"rollout_id": "r-1", "attempt": 0}}


async def post_afresh(served: Any, path: str, body: Any) -> tuple[int, Any]:
    """Post as a client that has no cookie yet."""
    served.client.cookie_jar.clear()
    return await served.post(path, body)


async def joins(served: Any, name: str, row: Any = ROW) -> bool:
    """Whether a name can be seeded again, and is answered as the first time."""
    status, reply = await served.post("/seed_session", seeding(name, row))
    return (status, reply.get("resources_session_id"), len(reply)) == (200, name, 2)


async def test_to_seed_a_name_again_is_to_join_it(stored: Any) -> None:
    first = await stored.good("/seed_session", seeding("one"))
    assert first.keys() == {"resources_session_id", "resources_tools"}
    assert first["resources_tools"].keys() == {"server_name", "url_path", "transport", "headers"}
    await stored.post("/increment_counter", {"count": 2})
    assert await joins(stored, "one")
    stored.client.cookie_jar.clear()
    assert await joins(stored, "one")
    assert await stored.post("/get_counter_value") == (200, {"count": 5})
    await post_afresh(stored, "/seed_session", seeding("another"))
    assert await stored.post("/get_counter_value") == (200, {"count": 3})
    assert len(await stored.services.store.heads()) == 2


async def test_a_row_with_what_is_no_number_is_the_same_row_again(stored: Any) -> None:
    row = {**ROW, "deep": [{"score": float("nan"), "most": float("inf")}]}
    assert (await stored.post("/seed_session", seeding("one", row)))[0] == 200
    assert await joins(stored, "one", row)
    other = {**ROW, "deep": [{"score": 0.0, "most": float("inf")}]}
    assert (await stored.post("/seed_session", seeding("one", other)))[0] == 409


async def test_many_who_seed_a_name_at_once_share_one_session(stored: Any) -> None:
    replies = await asyncio.gather(*(post_afresh(stored, "/seed_session", seeding("one")) for _ in range(8)))
    assert {status for status, _ in replies} == {200}
    assert len(await stored.services.store.heads()) == 1
    assert await stored.services.store.count(stored.services.now()) == 1


async def test_a_name_can_be_joined_with_a_large_task(stored: Any) -> None:
    row = {**ROW, "story": "s" * 100_000}
    for _ in range(2):
        assert (await post_afresh(stored, "/seed_session", seeding("one", row)))[0] == 200
    assert (await post_afresh(stored, "/seed_session", seeding("one")))[0] == 409
    assert (await stored.services.store.maintenance.sizes())["blobs"].rows == 1


@pytest.mark.parametrize(
    "other",
    [
        {"task_data": {**ROW, "initial_count": 9}},
        {"episode_id": {"rollout_id": "r-2", "attempt": 0}},
        {"task_id": {"taskset": "counter", "task_id": "8"}},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_a_name_is_not_joined_with_another_task_or_episode(served: Any, other: dict[str, Any]) -> None:
    await served.post("/seed_session", seeding("one"))
    for post in (served.post, lambda path, body: post_afresh(served, path, body)):
        status, refused = await post("/seed_session", seeding("one") | other)
        assert (status, refused["error"]["code"]) == (409, "conflict")
        assert "another task" in refused["error"]["message"]
    assert (await post_afresh(served, "/seed_session", seeding("one")))[0] == 200
    assert await served.post("/get_counter_value") == (200, {"count": 3})


async def test_the_row_may_stand_beside_the_name(served: Any) -> None:
    body = {"resources_session_id": "one", **ROW}
    for _ in range(2):
        assert (await post_afresh(served, "/seed_session", body))[0] == 200
    assert await served.post("/get_counter_value") == (200, {"count": 3})


async def test_a_closed_name_is_not_resurrected(stored: Any) -> None:
    await stored.post("/seed_session", seeding("one"))
    for _ in range(2):
        assert await stored.post("/close_session", closing("one")) == (200, {"resources_session_id": "one"})
    for path, body in [("/seed_session", seeding("one")), ("/get_counter_value", {}), ("/verify", {"response": {}})]:
        assert await stored.refused(path, body) == (410, "session_closed")
    status, refused = await post_afresh(stored, "/seed_session", seeding("one"))
    assert (status, refused["error"]["code"]) == (410, "session_closed")
    assert len(stored.client.cookie_jar) == 0
    assert await stored.post("/close_session", closing("one")) == (200, {"resources_session_id": "one"})


async def test_a_name_closes_its_session_without_a_cookie(served: Any) -> None:
    _, seeded = await served.post("/seed_session", seeding("one"))
    session_id = (await served.services.store.heads())[0].id
    served.client.cookie_jar.clear()
    assert (await served.post("/close_session", closing(session_id)))[0] == 200
    assert not (await served.services.store.head(session_id)).closed  # an id that leaked closes nothing
    assert await served.post("/close_session", closing("one")) == (200, {"resources_session_id": "one"})
    assert (await served.services.store.head(session_id)).closed
    assert seeded["resources_session_id"] == "one"


@pytest.mark.parametrize("holds_another", [False, True])
async def test_a_name_that_is_closed_before_it_is_seeded_stays_closed(stored: Any, holds_another: bool) -> None:
    await stored.post("/seed_session", seeding("mine"))
    await stored.post("/increment_counter", {"count": 2})
    post = stored.post if holds_another else lambda *sent: post_afresh(stored, *sent)
    for _ in range(2):
        assert await post("/close_session", closing("late")) == (200, {"resources_session_id": "late"})
    assert (await post("/seed_session", seeding("late")))[0] == (409 if holds_another else 410)
    status, refused = await post_afresh(stored, "/seed_session", seeding("late"))
    assert (status, refused["error"]["code"]) == (410, "session_closed")
    assert len(stored.client.cookie_jar) == 0
    assert await joins(stored, "mine")
    assert await stored.post("/get_counter_value") == (200, {"count": 5})


async def test_what_was_closed_unseeded_is_no_live_session_and_expires(serve: Any, store_url: str) -> None:
    now = 1_000_000.0
    served = await serve(now=lambda: now, ttl=60, store=store_url)
    services = served.services
    await served.post("/close_session", closing("late"))
    assert (await services.store.count(now), services.count.live) == (0, 0)
    [head] = await services.store.heads()
    assert (head.environment, await check_session(services.store, head)) == ("counter:unseeded", [])
    now += 61
    assert await services.environments["counter"].sessions.sweep() == 1
    assert (await served.post("/seed_session", seeding("late")))[0] == 200


async def test_a_close_and_a_seed_that_race_leave_nothing_open(stored: Any) -> None:
    for name in map(str, range(5)):
        replies = await asyncio.gather(
            post_afresh(stored, "/seed_session", seeding(name)), post_afresh(stored, "/close_session", closing(name))
        )
        assert replies[1] == (200, {"resources_session_id": name})
        assert replies[0][0] in (200, 410)
    assert all(head.closed for head in await stored.services.store.heads())


async def test_a_cookie_closes_no_session_but_its_own(stored: Any) -> None:
    await stored.post("/seed_session", seeding("other"))
    other = (await stored.services.store.heads())[0].id
    await post_afresh(stored, "/seed_session", seeding("mine"))
    for name in ("other", other):
        assert await stored.refused("/close_session", closing(name)) == (409, "conflict")
    assert await stored.services.store.count(stored.services.now()) == 2


async def test_names_outlive_a_change_of_secrets(serve: Any, shared_url: str) -> None:
    before = await serve(store=shared_url, secrets=(OLD,))
    await before.post("/seed_session", seeding("one"))
    await before.post("/increment_counter", {"count": 2})
    after = await serve(store=shared_url, secrets=(NEW, OLD))
    assert (await after.post("/seed_session", seeding("one")))[0] == 200
    assert await after.post("/get_counter_value") == (200, {"count": 5})
    assert await joins(after, "one")
    assert await after.post("/close_session", closing("one")) == (200, {"resources_session_id": "one"})
    assert (await post_afresh(after, "/seed_session", seeding("one")))[0] == 410
    stranger = await serve(store=shared_url, secrets=(NEW,))
    assert (await stranger.post("/seed_session", seeding("one")))[0] == 200  # to it, the name is new
    assert await stranger.post("/get_counter_value") == (200, {"count": 3})


async def test_an_expired_name_is_gone_and_closing_it_is_fine(serve: Any) -> None:
    now = 1_000_000.0
    served = await serve(now=lambda: now, ttl=60)
    await served.post("/seed_session", seeding("one"))
    now += 61
    for _ in range(2):
        status, refused = await served.post("/seed_session", seeding("one"))
        assert (status, refused["error"]["code"]) in [(410, "session_expired"), (410, "unknown_session")]
        assert await served.post("/close_session", closing("one")) == (200, {"resources_session_id": "one"})
        await served.services.environments["counter"].sessions.sweep()
    assert (await served.services.store.heads()) == []


async def test_what_is_no_name_is_refused(served: Any) -> None:
    for name in ("", None, 7, "x" * 201, ["one"]):
        status, refused = await served.post("/seed_session", seeding(name))
        assert (status, list(refused["error"]["fields"])) == (422, ["resources_session_id"])
    assert len(served.client.cookie_jar) == 0


async def test_odd_names_and_rows(served: Any) -> None:
    for name in ("\ud800", "é\n", "../one"):
        status, seeded = await post_afresh(served, "/seed_session", seeding(name))
        assert (status, seeded["resources_session_id"]) == (200, name)
    odd: tuple[Any, ...] = (None, [], "row", 3)
    for row in odd:
        status, refused = await post_afresh(served, "/seed_session", seeding("one", row))
        assert (status, list(refused["error"]["fields"])) == (422, ["task_data"])
    status, refused = await post_afresh(served, "/seed_session", seeding("one", {"initial_count": 3}))
    assert (status, refused["error"]["code"]) == (422, "invalid_task")
    assert (await post_afresh(served, "/seed_session", seeding("one")))[0] == 200


async def test_names_without_a_state(serve: Any) -> None:
    served = await serve(WeatherEnvironment())
    assert (await served.good("/seed_session", seeding("one", {})))["resources_session_id"] == "one"
    assert (await served.post("/get_weather", {"city": "Lima"}))[0] == 200
    assert await joins(served, "one", {})
    assert await served.refused("/seed_session", seeding("another", {})) == (409, "conflict")
    for _ in range(2):
        assert await served.post("/close_session", closing("one")) == (200, {"resources_session_id": "one"})


async def entries(served: Any, session_id: str) -> list[Any]:
    session = await served.services.environments["counter"].sessions.open(session_id, include_closed=True)
    return [entry async for entry in session.log()]


async def test_with_a_cookie_alone_nobody_seeds(stored: Any) -> None:
    await stored.post("/seed_session", ROW)
    await stored.post("/increment_counter", {"count": 2})
    before = stored.token
    for path in ("/seed_session", "/reset"):
        async with stored.client.post(f"{stored.url}{path}", json=OTHER) as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (409, "conflict")
            assert reply.cookies["stateroom_counter"].value == before
    assert await stored.post("/get_counter_value") == (200, {"count": 5})
    assert len(await stored.services.store.heads()) == 1


async def test_the_key_replaces_the_session_and_both_logs_say_so(stored: Any) -> None:
    _, first = await stored.post("/seed_session", ROW)
    old = stored.token
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
    for wrong in (other["seed_key"], "", key[:-1], key.upper(), key + " ", "é", None, 7, [key], served.token):
        assert await served.refused("/seed_session", {**OTHER, "seed_key": wrong}) == (409, "conflict")
    assert await served.post("/get_counter_value") == (200, {"count": 3})
    assert (await served.post("/seed_session", {**OTHER, "seed_key": key}))[0] == 200
    status, refused = await served.post("/seed_session", {**OTHER, "seed_key": key})  # it was the old session's
    assert (status, refused["error"]["code"]) == (409, "conflict")


async def test_the_key_is_not_in_what_the_model_comes_near(served: Any) -> None:
    async with served.client.post(f"{served.url}/seed_session", json=ROW) as reply:
        key = (await reply.json())["seed_key"]
        assert key not in str(reply.headers)
        assert (await reply.json())["mcp"]["headers"]["X-NeMo-Gym-Session-Token"] == served.token
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
    before = served.token
    status, refused = await served.post("/seed_session", {"initial_count": "x", "seed_key": first["seed_key"]})
    assert (status, refused["error"]["code"]) == (422, "invalid_task")
    assert served.token == before
    assert await served.post("/get_counter_value") == (200, {"count": 3})
    assert await served.services.store.count(served.services.now()) == 1


async def test_the_key_of_an_older_secret_is_good(serve: Any, shared_url: str) -> None:
    before = await serve(store=shared_url, secrets=(OLD,))
    _, first = await before.post("/seed_session", ROW)
    after = await serve(store=shared_url, secrets=(NEW, OLD))
    cookies = {"stateroom_counter": before.token}
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
