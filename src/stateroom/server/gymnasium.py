"""The Gymnasium-style endpoints reset, step and close, on the same sessions."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from secrets import token_hex
from typing import Any, NamedTuple

from msgspec.structs import asdict

from stateroom.agent import call_tool, output_text
from stateroom.server.environment import ServedEnvironment
from stateroom.server.http import HTTPRequest, HTTPResponse, json_response, wrong_field
from stateroom.server.operation import Operation, post
from stateroom.server.verification import VerdictAPI
from stateroom.server.wire import (
    MAX_NAME_CHARACTERS,
    ResetInfo,
    ResetReply,
    StepBody,
    StepInfo,
    StepReply,
    ToolOutput,
    calls_of,
    checked_response,
    message_text,
)
from stateroom.session import Result, Session, Update

STEP_ID = "_ng_step_request_id"

STEP = "\nstep/"
"""How the call id of what was said in a step begins; the client's id of the step follows."""

LAST = "\nlast step"
"""The call id of what was said in the step that ended the episode."""


class Gymnasium:
    """Steps an episode by whole responses of a model: a step makes all tool calls of one."""

    def __init__(self, verdicts: VerdictAPI, threads: ServedEnvironment) -> None:
        self.verdicts = verdicts
        self.environment = verdicts.environment
        self.threads = threads
        """Keeps what is said in episodes without a state, as plain threads."""

    def operations(self) -> list[Operation]:
        """The endpoints."""
        served = self.environment
        return [
            post("/reset", self.reset, detail=lambda: served.task, reply=ResetReply, **served.seeding),
            post("/step", self.step, body=StepBody, reply=StepReply, **served.acting),
            post("/close", self.close, reply=dict[str, Any], **served.acting),
        ]

    async def reset(self, request: HTTPRequest) -> HTTPResponse:
        """Seed a session, as in Gymnasium.

        The model's task is in the row, so the first observation is empty.
        """
        session, key = await self.environment.seed(request)
        return json_response(ResetReply(None, ResetInfo(session.id, key)))

    async def step(self, request: HTTPRequest) -> HTTPResponse:
        """Make the tool calls of a response.

        A response without tool calls ends the episode, unless the user answers it. The conversation is logged, and
        verified when the episode ends.
        """
        subject = self.environment.subject_of(request)
        body = request.json()
        response = checked_response(body)
        calls, step_id = calls_of(response), _step_id(body)
        session = await self.environment.session(subject, include_closed=not calls)
        outputs: list[ToolOutput] = []
        answer, reward = None, 0.0
        if calls:
            outputs = await _make(_Tools(session, self.environment), calls, step_id)
        else:
            answer = await _answer(session, response, step_id)
        ended = not calls and answer is None
        if ended:
            row = {key: value for key, value in body.items() if key not in ("response", STEP_ID)}
            whole = await _whole(await self._logged(session, subject), response)
            reward = (await self.verdicts.judge(subject, row, whole)).reward
        else:
            results = [{"type": "function_call_output", **asdict(output)} for output in outputs]
            items = [*response.get("output", ()), *results]
            if answer is not None:
                items.append({"type": "message", "role": "user", "content": answer})
            call_id = None if step_id is None else STEP + step_id
            await (await self._logged(session, subject)).agent.say(Update(items, "model"), call_id=call_id)
        return json_response(StepReply(answer, reward, ended, StepInfo(outputs)))

    async def _logged(self, session: Session[Any], subject: str | None) -> Session[Any]:
        """The session that keeps the conversation: a thread for a stateless environment; None without a token."""
        if not self.environment.stateless or subject is None:
            return session
        return await self.threads.named_session(self._thread_name(session), {})

    def _thread_name(self, session: Session[Any]) -> str:
        return f"step/{self.environment.name}/{session.id}"

    async def close(self, request: HTTPRequest) -> HTTPResponse:
        """Close the session, as in Gymnasium, if its episode has ended.

        Before that the cookie is not enough, because a model's calls have it too: the session is left to expire.
        """
        subject = self.environment.subject_of(request)
        if subject is not None and not self.environment.stateless:
            session = await self.environment.sessions.open(subject, include_closed=True)
            if session.verdict is not None:
                await self.environment.close(session)
        elif subject is not None:
            ids = self.threads.signer.session_ids(self._thread_name(await self.environment.session(subject)))
            thread = await self.threads.first_session(ids, include_closed=True)
            if thread is not None and any(entry.call_id == LAST for entry in await thread.agent.said()):
                await self.threads.close(thread)
        return HTTPResponse(200, b"{}")


async def _answer(session: Session[Any], response: dict[str, Any], step_id: str | None) -> str | None:
    """The answer of the environment's user to a response; None without a user, or if the episode is over."""
    if not session.replies or session.verdict is not None:
        return None
    call_id = token_hex(12) if step_id is None else f"{step_id}.reply"
    return await session.reply(message_text(response), call_id=call_id)


async def _whole(session: Session[Any], last: dict[str, Any]) -> dict[str, Any]:
    """The last response of an episode, with all that was said and done before it; the log has the last one too."""
    messages = [entry for entry in await session.agent.said() if entry.kind == "message" and entry.call_id != LAST]
    items = last.get("output", [])
    if session.verdict is None:
        await session.agent.say(Update(items, "model"), call_id=LAST)
    return {**last, "output": [*(item for entry in messages for item in entry.facts["items"]), *items]}


class _Tools(NamedTuple):
    """The tools of a session, as the environment's clients call them."""

    session: Session[Any]
    environment: ServedEnvironment

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Result:
        given = self.environment.known_arguments(name, arguments)
        return await self.session.call(name, given, call_id=call_id)


async def _make(tools: _Tools, calls: list[dict[str, Any]], step_id: str | None) -> list[ToolOutput]:
    """Make tool calls one after another, and return the outputs for the model."""
    outputs = []
    for index, call in enumerate(calls):
        call_id = None if step_id is None else f"{step_id}.{index}"
        outputs.append(ToolOutput(call["call_id"], output_text(await call_tool(tools, call, call_id))))
    return outputs


def _step_id(body: dict[str, Any]) -> str | None:
    """The client's id of a step: a step that is sent again runs nothing."""
    given = body.get(STEP_ID)
    if given is None or given == "":
        return None
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise wrong_field(STEP_ID, "should be a text")
    text = str(given)
    if len(text) <= MAX_NAME_CHARACTERS and text.isprintable():
        return text
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
