"""The endpoints of an environment that judge: verdicts, and the metrics of many."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from stateroom.errors import Unauthorized
from stateroom.rollout import EpisodeMetrics, aggregate, numbers, reads_only_the_response, verdict_fields
from stateroom.server.environment import NO_TOKEN, ServedEnvironment, guard_user_code
from stateroom.server.http import HTTPRequest, HTTPResponse, json_response, wrong_field
from stateroom.server.operation import Operation, get, post
from stateroom.server.wire import (
    ReverifyMode,
    VerifiedEpisodes,
    VerifyFields,
    VerifyReply,
    checked_response,
    task_fields,
)
from stateroom.session import Progress, Verdict, new_session_id
from stateroom.state import to_json

ECHOED = ("responses_create_params", "response")
"""Fields of a row that a reply to verify repeats, as NeMo Gym's does."""


class VerdictAPI:
    """Verifies the episodes of an environment."""

    def __init__(self, environment: ServedEnvironment) -> None:
        self.environment = environment

    def operations(self) -> list[Operation]:
        """The endpoints."""
        served = self.environment
        return [
            post(
                "/verify", self.verify, detail=lambda: (served.task, VerifyFields), reply=VerifyReply, **served.acting
            ),
            post("/aggregate_metrics", self.aggregate_metrics, body=VerifiedEpisodes, reply=EpisodeMetrics),
            get("/reverify_mode", self.reverify_mode, reply=ReverifyMode),
        ]

    async def verify(self, request: HTTPRequest) -> HTTPResponse:
        """Verify the episode.

        The body is the task row, with the model's output as `response`. The reply has the fields of the verdict, with
        each part of the reward as a separate number, and `responses_create_params` and `response` from the row. The
        verdict seals the session: it cannot be changed any more, and verifying it again returns the same verdict.
        """
        subject = self.environment.subject_of(request, optional=self._reads_only_the_response)
        body = request.json()
        verdict = await self.judge(subject, body, checked_response(body))
        fields = verdict_fields(verdict)
        if request.headers.get(b"prefer") == b"return=minimal":  # our own runner has the row
            return HTTPResponse(200, to_json(fields), headers=((b"preference-applied", b"return=minimal"),))
        # Clients take each number at the top level for a metric, so the task's own fields do not come back.
        echoed = {name: body[name] for name in ECHOED if name in body}
        return json_response({**verdict.components, **echoed, **fields})

    async def judge(self, subject: str | None, row: dict[str, Any], response: Any) -> Verdict:
        """The verdict on a session. Without a state the task comes from the row."""
        outcome, start = "error", perf_counter()
        try:
            verdict = await self._judge(subject, row, response)
            outcome = "ok"
            return verdict
        finally:
            self.environment.metrics.verdicts(self.environment.name).count(outcome, perf_counter() - start)

    async def _judge(self, subject: str | None, row: dict[str, Any], response: Any) -> Verdict:
        served = self.environment
        if served.stateless:
            session = await served.session(subject, self._task(row))
            work = session.verify(response)
        elif subject is None:
            return await self._judge_alone(row, response)
        else:
            session = await served.session(subject, include_closed=True)  # a closed session keeps its verdict
            work = session.verify(response, row=task_fields(row))
        return await guard_user_code("verify", work)

    async def _judge_alone(self, row: dict[str, Any], response: Any) -> Verdict:
        """The verdict on a response without a session, of a verifier that reads nothing else."""
        served = self.environment
        if self._reads_only_the_response:
            alone = served.sessions.stateless(new_session_id(), Progress(0, 0.0), self._task(row))
            verdict = await guard_user_code("verify", alone.verify(response))
            if self._reads_only_the_response:  # else it has just looked back at the session, and there is none
                return verdict
        if served.gym_compat:
            return Verdict(0.0)
        raise Unauthorized(NO_TOKEN)

    def _task(self, row: dict[str, Any]) -> Any:
        given = {key: value for key, value in row.items() if key != "response"}
        return self.environment.environment.parse_task(given)

    @property
    def _reads_only_the_response(self) -> bool:
        """Whether the verifier asks for nothing but the episode, and has not looked back at a session so far."""
        environment, runner = self.environment.environment, self.environment.sessions.runtime.runner
        looked_back = environment.verify_function.function in runner.look_back
        return reads_only_the_response(environment) and not looked_back

    async def aggregate_metrics(self, request: HTTPRequest) -> HTTPResponse:
        """Aggregate the metrics of many episodes, overall and by task."""
        self.environment.token_of(request)
        rows = request.json().get("verify_responses")
        if not isinstance(rows, list) or not all(
            isinstance(row, dict)
            and type(row.get("_ng_task_index")) is int
            and type(row.get("_ng_rollout_index", 0)) is int
            for row in rows
        ):
            message = "should be a list of verify replies, each with an _ng_task_index that is a whole number"
            raise wrong_field("verify_responses", message)
        try:
            if not all("reward" in numbers(row) for row in rows if isinstance(row.get("reward"), int | float)):
                raise ValueError
            given = self.environment.environment.task_type.model_fields  # which the rows of an agent repeat
            return json_response(await asyncio.to_thread(aggregate, rows, given=given))
        except (ArithmeticError, ValueError, AttributeError):  # raised by `statistics`
            message = "the numbers and their sums should be finite"
            raise wrong_field("verify_responses", message) from None

    async def reverify_mode(self, request: HTTPRequest) -> HTTPResponse:
        """Check whether an episode can be verified again from its row alone."""
        mode: ReverifyMode = "stateless" if self._reads_only_the_response else "unsupported"
        return json_response(mode)
