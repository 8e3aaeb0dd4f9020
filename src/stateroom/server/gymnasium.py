"""The Gymnasium-style endpoints: reset, step and close, over the same sessions."""

from __future__ import annotations

from hashlib import blake2b
from secrets import token_hex
from typing import Any

from stateroom.agent import call_tool, output_text
from stateroom.server.faults import wrong_field
from stateroom.server.hosted import Endpoint, Hosted
from stateroom.server.http import Reply, Request
from stateroom.server.response import calls_of, checked_response, said_in
from stateroom.server.seeding import LONGEST_NAME
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
        """Make the tool calls of a response; one without any ends the episode, unless the user has an answer to it.

        An episode that has ended is judged.
        """
        subject = self.hosted.subject_of(request)
        body = await request.json()
        response = checked_response(body)
        if response is None:
            raise wrong_field("response", "should be a Responses object")
        calls, step_id = calls_of(response), _step_id(body)
        outputs: list[dict[str, str]] = []
        answer, reward = None, 0.0
        if calls:
            outputs = await _made(await self.hosted.session(subject), calls, step_id)
        else:
            answer = await self._answer(subject, response, step_id)
        ended = not calls and answer is None
        if ended:
            row = {key: value for key, value in body.items() if key not in ("response", STEP_ID)}
            reward = (await self.hosted.judge(subject, row, response)).reward
        done = {"observation": answer, "reward": reward, "terminated": ended, "truncated": False}
        return Reply(200, to_json({**done, "info": {"tool_outputs": outputs}}))

    async def _answer(self, subject: str | None, response: dict[str, Any], step_id: str | None) -> str | None:
        """What the environment's user says to a response; None if there is no user, or it is all over."""
        if self.hosted.environment.replying is None:
            return None
        session = await self.hosted.session(subject, closed_too=True)
        if session.verdict is not None:
            return None
        call_id = token_hex(12) if step_id is None else f"{step_id}.reply"
        return await session.reply(said_in(response), call_id=call_id)

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
        outputs.append({"call_id": call["call_id"], "output": output_text(await call_tool(session, call, call_id))})
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
