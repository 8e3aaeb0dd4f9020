"""The Gymnasium-style endpoints: reset, step and close, over the same sessions."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from stateroom.agent import call_tool
from stateroom.server.faults import wrong_field
from stateroom.server.hosted import LONGEST_NAME, Endpoint, Hosted
from stateroom.server.http import Reply, Request
from stateroom.server.response import calls_of, checked_response
from stateroom.session import Session
from stateroom.state import to_json

STEP_ID = "_ng_step_request_id"


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
        session, key = await self.hosted.seed(request)
        return Reply(200, to_json({"observation": None, "info": {"session_id": session.id, "seed_key": key}}))

    async def step(self, request: Request) -> Reply:
        """Make the tool calls of a response; one without any ends the episode, which is then judged."""
        subject = self.hosted.subject_of(request)
        body = await request.json()
        response = checked_response(body)
        if response is None:
            raise wrong_field("response", "should be a Responses object")
        calls, step_id = calls_of(response), _step_id(body)
        outputs: list[dict[str, str]] = []
        reward = 0.0
        if calls:
            outputs = await _made(await self.hosted.session(subject), calls, step_id)
        else:
            row = {key: value for key, value in body.items() if key not in ("response", STEP_ID)}
            reward = (await self.hosted.judge(subject, row, response)).reward
        done = {"observation": None, "reward": reward, "terminated": not calls, "truncated": False}
        return Reply(200, to_json({**done, "info": {"tool_outputs": outputs}}))

    async def close(self, request: Request) -> Reply:
        """Close the session, if it has its verdict.

        Before that the cookie alone will not do, which a model's call comes with too: it is left to expire.
        """
        subject = self.hosted.subject_of(request)
        if subject is not None and not self.hosted.stateless:
            session = await self.hosted.sessions.open(subject, closed_too=True)
            if session.verdict is not None:
                await self.hosted.close(session)
        return Reply(200, b"{}")


async def _made(session: Session[Any], calls: list[dict[str, Any]], step_id: str | None) -> list[dict[str, str]]:
    """Make tool calls, one after another; gives what the model is shown of each."""
    outputs = []
    for index, call in enumerate(calls):
        call_id = None if step_id is None else f"{step_id}.{index}"
        outputs.append({"call_id": call["call_id"], "output": await call_tool(session, call, call_id)})
    return outputs


def _step_id(body: dict[str, Any]) -> str | None:
    """The id that a client gives a step, so that to send it again is to do nothing."""
    given = body.get(STEP_ID)
    if given is None or given == "":
        return None
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise wrong_field(STEP_ID, "should be a text")
    text = str(given)
    if len(text) <= LONGEST_NAME and text.isprintable():
        return text
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
