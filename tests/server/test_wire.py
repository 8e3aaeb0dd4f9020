"""The resources-server protocol, over a real connection."""

from typing import Any

ROW = {"responses_create_params": {"input": "add 4, then add 2"}, "initial_count": 3, "expected_count": 9}


async def test_an_episode(serve: Any) -> None:
    served = await serve()
    assert await served.get("/") == (200, {"status": "ok"})
    status, seeded = await served.post("/seed_session", ROW)
    assert status == 200
    assert await served.post("/increment_counter", {"count": 4}) == (200, {"success": True})
    assert await served.post("/increment_counter", {"count": 2}) == (200, {"success": True})
    assert await served.post("/get_counter_value") == (200, {"count": 9})
    status, verdict = await served.post("/verify", {**ROW, "response": {"output": []}})
    assert (status, verdict["reward"], verdict["initial_count"]) == (200, 1.0, 3)
    assert await served.post("/close_session", {"resources_session_id": seeded["session_id"]}) == (
        200,
        {"resources_session_id": seeded["session_id"]},
    )
