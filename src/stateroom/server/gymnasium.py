"""The Gymnasium-style endpoints: reset, step and close, over the same sessions."""

from __future__ import annotations

from typing import Any

from stateroom.agent import call_tool
from stateroom.errors import InvalidArguments
from stateroom.server.hosted import Endpoint, Hosted
from stateroom.server.http import Reply, Request
from stateroom.state import to_json


class Gymnasium:
    """Steps an episode by whole answers of a model: all tool calls of one are made in one step."""

    def __init__(self, hosted: Hosted) -> None:
        self.hosted = hosted

    def routes(self) -> dict[tuple[str, str], Endpoint]:
        """The endpoints by method and path."""
        prefix = self.hosted.prefix
        return {
            ("POST", f"{prefix}/reset"): self.reset,
            ("POST", f"{prefix}/step"): self.step,
            ("POST", f"{prefix}/close"): self.close,
        }

    async def reset(self, request: Request) -> Reply:
        """Seed a session. What the model is to do stands in the row, so there is nothing to observe yet."""
        session, key = await self.hosted.seed(request, await request.json())
        return Reply(200, to_json({"observation": None, "info": {"session_id": session.id, "seed_key": key}}))

    async def step(self, request: Request) -> Reply:
        """Make the tool calls of a response; one without any ends the episode, which is then judged."""
        session = await self.hosted.session_of(request)
        body = await request.json()
        calls = _calls(body)
        step_id = body.get("_ng_step_request_id")
        outputs = []
        for index, call in enumerate(calls):
            call_id = None if step_id is None else f"{step_id}.{index}"
            outputs.append({"call_id": call["call_id"], "output": await call_tool(session, call, call_id)})
        reward = 0.0
        if not calls:
            found = self.hosted.token_of(request)
            row = {key: value for key, value in body.items() if key not in ("response", "_ng_step_request_id")}
            reward = (await self.hosted.judge(found[0] if found else None, row, body["response"])).reward
        done = {"observation": None, "reward": reward, "terminated": not calls, "truncated": False}
        return Reply(200, to_json({**done, "info": {"tool_outputs": outputs}}))

    async def close(self, request: Request) -> Reply:
        """Close the session."""
        session = await self.hosted.session_of(request)
        await session.close()
        return Reply(200, b"{}")


def _calls(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The tool calls of the response in a step's body."""
    response = body.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        problem = "response: should be a Responses object, with a list of items as its output"
        raise InvalidArguments(problem, {"response": problem})
    calls = [item for item in output if item.get("type") == "function_call"]
    for call in calls:
        if not isinstance(call.get("call_id"), str) or not isinstance(call.get("name"), str):
            problem = "response.output: a function_call should have a call_id, a name and arguments"
            raise InvalidArguments(problem, {"response.output": problem})
    return [{**call, "arguments": call.get("arguments")} for call in calls]
