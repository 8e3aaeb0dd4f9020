"""The verification of a session: its verifier runs on the newest state, and the verdict is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic_core import to_jsonable_python

from stateroom.errors import (
    BadVerdict,
    Conflict,
    Contradiction,
    DuplicateCall,
    InvalidArguments,
    SessionClosed,
    SessionSealed,
)
from stateroom.session.agent import SessionAgent
from stateroom.session.cache import OpenSession
from stateroom.session.commit import RetryCommit
from stateroom.session.episode import Episode, Rehearsal, Verdict, digest, load_path, run_verifier
from stateroom.session.invocation import CallContext
from stateroom.session.log import UNSTORABLE, VERDICT, person, read_entry, task_row
from stateroom.session.recorded_call import same


@dataclass(frozen=True)
class Verification:
    """One request for a session's verdict, by a response, a task row and a person, as far as these are given."""

    session: OpenSession
    response: Any
    row: Mapping[str, Any]
    by: str | None

    async def attempt(self) -> Verdict:
        """The verdict that there is, or one on the state as it is now; `RetryCommit` if that was changed meanwhile."""
        cached, response = self.session.cached, self.response
        if response is None:
            response = await SessionAgent(self.session).response()
        added = self._added_fields()
        if cached.verdict_facts is not None:
            if cached.verdict_facts.get("response", digest(response)) != digest(response):
                raise SessionSealed(cached.head.id, "it was given for another response")
            return Verdict(**cached.verdict_facts["verdict"])
        if cached.head.closed:
            raise SessionClosed(cached.head.id)
        verdict, facts = await self._judge(response, added)
        try:
            await cached.append(cached.prepare("verdict", {**facts, **person(self.by)}, call_id=VERDICT))
        except (Conflict, DuplicateCall):
            raise RetryCommit from None  # what was judged is no longer what is there
        except UNSTORABLE as error:
            raise BadVerdict(f"verify returned a Verdict that cannot be stored: {error}") from error
        return verdict

    def _added_fields(self) -> dict[str, Any]:
        """The fields of the given row that the seeded one lacks; `Contradiction` if another one contradicts it."""
        if not self.row:
            return {}
        cached, row = self.session.cached, self.row
        seed = read_entry(cached.seeded)
        known = task_row(seed, cached.verdict_facts)
        added = {name: row[name] for name in seed.facts.get("lacks", ()) if name in row and name not in known}
        task = self.session.task()
        for name, value in row.items():
            if name in added or (name in known and same(known[name], value)):
                continue
            try:
                typed = to_jsonable_python(getattr(task, name, value), fallback=str)
            except UNSTORABLE as error:
                message = "should be JSON that is not nested too deeply"
                raise InvalidArguments(f"{name}: {message}", {name: message}) from error
            if not same(typed, value):
                raise Contradiction(
                    f"{name}: the session was seeded with another value; verify it with the row that it was seeded with"
                )
        return added

    async def _judge(self, response: Any, added: dict[str, Any]) -> tuple[Verdict, dict[str, Any]]:
        """Run the verifier; gives its verdict, and what the log says of it.

        `added` are fields of the task that the seeded row lacks.
        """
        cached, runtime, procedure = self.session.cached, self.session.runtime, self.session.environment.verify_function
        session, revision = cached.head.id, cached.head.revision
        facts: dict[str, Any] = {"row": added} if added else {}

        def task() -> Any:
            return runtime.environment.parse_task(task_row(read_entry(cached.seeded), facts))

        episode = Episode(task(), response, partial(self._rehearsal, task))
        views = await self.session.views(procedure.shared)
        path = partial(load_path, cached.reader, session, revision, runtime.environment.tools, response)
        lend = self.session.resources().lend_to_judge if procedure.resources else None
        shared = {name: view.state for name, view in views.items()}
        call = CallContext(cached.state, cached.progress, session, revision, task, None, shared=shared)
        verdict = await run_verifier(runtime.runner, procedure, call, episode, runtime.limits.timeout, path, lend)
        facts["verdict"] = vars(verdict)
        if views:
            facts["views"] = {name: [view.shared.cached.head.id, view.revision] for name, view in views.items()}
        if episode.response_was_read:
            facts["response"] = digest(response)
        return verdict, facts

    def _rehearsal(self, task: Callable[[], Any]) -> Rehearsal:
        runtime, cached = self.session.runtime, self.session.cached
        return Rehearsal(
            runtime.environment,
            runtime.runner,
            runtime.limits.timeout,
            cached.head.id,
            task,
            partial(cached.at, 1),
            self.session.reload_tampered,
        )
