"""An episode: an agent acts in a session until it is done, and the verifier judges the result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple

from stateroom.agent import AgentLog, Times, Workspace, act, recall, task_items
from stateroom.errors import JudgeFailed, ModelFailed, SessionError, StateroomError
from stateroom.jsonl import line_of
from stateroom.rollout.backend import EpisodeSession
from stateroom.rollout.plan import EpisodePlan
from stateroom.rollout.rows import (
    INDICES,
    PARENT,
    SESSION,
    TIMES,
    Row,
    failure_fields,
    given_row,
    is_transient,
    response_fields,
    verdict_fields,
)
from stateroom.session import Session, Verdict, contained


class EpisodeStart(NamedTuple):
    """The session of an episode, and the session with its transcript."""

    session: EpisodeSession
    transcript: AgentLog
    stored: Session[Any] | None = None
    """The session in the run's store that keeps the transcript; a worker that takes over the episode leases it."""


Start = Callable[[], Awaitable[EpisodeStart]]

Watch = Callable[[EpisodeSession, Row], Workspace]


class EpisodeEnd(NamedTuple):
    """An episode that ended or waits for input."""

    row: Row
    line: bytes = b""
    failed: bool = False
    waits_in: str | None = None
    """The session, if it waits for input."""
    session: EpisodeSession | None = None
    """The session to close."""


async def run_episode(
    plan: EpisodePlan, start: Start, row: Row, watch: Watch = lambda session, row: session
) -> EpisodeEnd:
    """Run an episode from its start or its interruption; if it fails, its row has the error.

    `watch` returns the workspace in which the agent calls the tools of a session.
    """
    began = perf_counter()
    started: EpisodeStart | None = None
    try:
        with contained:
            started = await start()
            return await _act_and_verify(plan, started, row, began, watch)
    except Exception as error:  # noqa: BLE001 - the author's code may raise anything
        session = None if started is None else started.session
        known = given_row(row) if session is None else row  # otherwise the row names a session that was not seeded
        failure = {**known, **failure_fields(error), **session_fields(session)}
        if session is None and isinstance(error, SessionError):  # it exists, and may continue with another plan
            failure["_ng_failure_terminal"] = False
        return EpisodeEnd(failure, line_of(failure), failed=True, session=None if is_transient(error) else session)


async def _act_and_verify(plan: EpisodePlan, started: EpisodeStart, row: Row, began: float, watch: Watch) -> EpisodeEnd:
    session, transcript, _ = started
    seed, tools = plan.seed_of_row(row), plan.tools_for(row)
    before = await recall(transcript)
    workspace = watch(session, {**row, **session_fields(session)})
    trajectory = await act(workspace, transcript, plan.new_agent(row, seed), tools, task_items(row))
    trajectory = trajectory.following(before)
    if trajectory.status == "waiting":
        return EpisodeEnd(row, waits_in=session.id)
    if trajectory.status == "failed":  # in an earlier process that did not write the row
        raise ModelFailed(trajectory.reason)
    response = plan.response(trajectory, tools, seed)
    try:
        verdict = await session.verify(response)
    except JudgeFailed as error:  # the row has everything that a later verdict needs
        spent = time_fields(began, trajectory.times, before.times) | plan.cost_of(response)
        failure = {**row, "response": response, **spent, **failure_fields(error), **session_fields(session)}
        return EpisodeEnd(failure, line_of(failure), failed=True)
    done = {
        **row,
        **measured_fields(row, session, verdict, response),
        **plan.cost_of(response),
        **time_fields(began, trajectory.times, before.times),
        "response": response,
    }
    return EpisodeEnd(done, line_of(done), session=session)


async def close_quietly(session: EpisodeSession) -> None:
    """Close the session of a finished episode to release its resources; on an error, it expires instead."""
    with suppress(StateroomError):
        await session.close()


def measured_fields(row: Row, session: EpisodeSession, verdict: Verdict, response: Row) -> Row:
    """The measurements of a finished episode, with its indices and session."""
    return {
        **verdict_fields(verdict),
        **response_fields(response),
        **{name: row[name] for name in INDICES if name in row},
        **session_fields(session),
    }


def time_fields(began: float, times: Times, before: Times) -> Row:
    """The field of a row with the times of an episode, including parts that an earlier process ran.

    For those parts, only the times of the model and the tools are known.
    """
    wall = perf_counter() - began + before.model + before.tool
    return {TIMES: {"wall": round(wall, 6), "model": times.model, "tool": times.tool}}


def session_fields(session: EpisodeSession | None) -> Row:
    """The fields of a row with its session and the session's parent, if known."""
    fields: Row = {}
    if session is not None and session.id is not None:
        fields[SESSION] = session.id
    if session is not None and session.parent is not None:
        fields[PARENT] = dict(zip(("session", "revision"), session.parent, strict=True))
    return fields
