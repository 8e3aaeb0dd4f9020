"""Verdicts: on the newest state of a session, which is recorded; and on the states of stored sessions, again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from stateroom.errors import (
    BadVerdict,
    Conflict,
    Contradiction,
    DefinitionError,
    DuplicateCall,
    InvalidArguments,
    SessionClosed,
    SessionError,
    SessionSealed,
    UnknownRevision,
)
from stateroom.session.agent import SessionAgent, response_of
from stateroom.session.cache import OpenSession
from stateroom.session.commit import RetryCommit
from stateroom.session.environment import SessionEnvironment
from stateroom.session.episode import Episode, Rehearsal, Verdict, digest, load_path, run_verifier
from stateroom.session.history import History, line_to
from stateroom.session.invocation import NOTHING, CallContext
from stateroom.session.log import SPOKEN, UNSTORABLE, VERDICT, LogEntry, person, read_entry, task_row
from stateroom.session.reader import Reader, StateAt
from stateroom.session.recorded_call import same
from stateroom.session.resources import ResourceManager, SessionResources
from stateroom.session.runner import Runner
from stateroom.state import State
from stateroom.store import Loaded, Store


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
                raise SessionSealed(cached.head.id, "it is for another response")
            return Verdict(**cached.verdict_facts["verdict"])
        if cached.head.closed:
            raise SessionClosed(cached.head.id)
        verdict, facts = await self._judge(response, added)
        try:
            await cached.append(cached.prepare("verdict", {**facts, **person(self.by)}, call_id=VERDICT))
        except (Conflict, DuplicateCall):
            raise RetryCommit from None  # the judged state is outdated
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
                    f"{name}: the session was seeded with another value; pass the row that it was seeded with"
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
        verdict = await run_verifier(runtime.runner, procedure, call, episode, path, lend)
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
            cached.head.id,
            task,
            partial(cached.at, 1),
            self.session.reload_tampered,
        )


# Rescoring: the current verifier runs on the states of stored sessions. Nothing is written.


class Rescored(NamedTuple):
    """A new verdict on a stored session."""

    verdict: Verdict
    revision: int
    """Of the state that was judged."""
    row: Any
    """The task row of the session."""
    before: Verdict | None
    """The verdict that is in the log."""
    edited: bool
    """Whether a person's edit is among what led to the state."""


class Rescorer:
    """Judges stored sessions of an environment again, also closed and expired ones. Nothing is written."""

    def __init__(self, environment: SessionEnvironment, store: Store, *, timeout: float = 30.0) -> None:
        if environment.state_type is None:
            raise DefinitionError(f"{environment.name} is stateless: its sessions are not stored")
        self._environment = environment
        self._reader = Reader(store, environment.state_type)
        self._store = store
        self._runner = Runner(timeout)
        self._manager = ResourceManager(environment.resources, store, self._runner)

    async def stop(self) -> None:
        """Stop all resources that verifiers were given."""
        await self._manager.stop()

    async def judge(self, session: str, response: Any = None, *, at: int | None = None) -> Rescored:
        """Judge the state of the session's verdict again, with the same response.

        By default the response is the session's conversation up to then.
        `at` chooses another state: that of a revision or, if negative, that of -`at` calls before the judged one.
        Raises a `SessionError` if the store lacks data that the verifier needs.
        """
        history, store, environment = History(self._store), self._store, self._environment
        loaded, first = await asyncio.gather(  # at once, which is one round trip to a store far away
            store.load(session), store.entries(session, until=1)
        )
        head = loaded.head
        if head.environment != environment.name:
            raise SessionError(
                session,
                f"session {session!r} belongs to the environment {head.environment!r}, not {environment.name!r}",
            )
        entry = await self._verdict(loaded)
        judged = None if entry is None else entry.revision - 1
        revision = await self._chosen(session, at, judged, head.revision)
        if response is None:
            response = response_of(await history.line(session, revision, kinds=SPOKEN))
        elif entry is not None and entry.facts.get("response", digest(response)) != digest(response):
            raise SessionError(session, f"the verdict of session {session!r} is for another response")
        # Since the verdict nothing has changed: the newest is what was judged.
        document = await (history.outline_in(loaded) if revision == judged else history.outline(session, revision))
        standing = await self._reader.understood(document)
        seeded = await history.seed(head, first)
        facts = None if entry is None else entry.facts
        procedure = environment.verify_function
        shared = NOTHING
        if procedure.shared:
            shared = await self._shared(session, entry if revision == judged else None, sorted(procedure.shared))

        def task() -> Any:
            return environment.parse_task(task_row(read_entry(seeded), facts))

        call = CallContext(standing.state, standing.progress, session, revision, task, None, None, shared)
        first_state = partial(self._first, session)
        rehearsal = partial(Rehearsal, environment, self._runner, session, task, first_state, self._reload_tampered)
        episode = Episode(task(), response, rehearsal)
        path = partial(load_path, self._reader, session, revision, environment.tools, response)
        holding = SessionResources(self._manager)
        try:
            verdict = await run_verifier(self._runner, procedure, call, episode, path, holding.lend_to_judge)
        finally:
            if holding:
                await holding.stop()
        row = task_row(read_entry(seeded), facts)
        before = None if facts is None else Verdict(**facts["verdict"])
        return Rescored(verdict, revision, row, before, standing.progress.edited)

    async def _first(self, session: str) -> StateAt:
        """The state and progress that the session was seeded with."""
        standing, _ = await self._reader.read(session, 1)
        return standing

    async def _reload_tampered(self) -> None:
        """Keep nothing in memory that may have been tampered with."""
        self._reader.forget()

    async def _chosen(self, session: str, at: int | None, judged: int | None, newest: int) -> int:
        """The revision to judge."""
        if at is None:
            if judged is None:
                raise SessionError(session, f"session {session!r} has no verdict: choose a revision to judge")
            return judged
        last = newest if judged is None else judged
        if at > 0:
            if at > last:
                raise UnknownRevision(
                    session, f"session {session!r} cannot be judged at revision {at}; choose 1 to {last}"
                )
            return at
        entries = [entry async for entry in History(self._store).entries(session, until=last)]
        calls = [entry.revision for entry in line_to(entries, last)[1] if entry.kind == "call"]
        if at == 0 or -at > len(calls):
            raise UnknownRevision(
                session, f"session {session!r} cannot be judged {-at} calls back; it has {len(calls)}"
            )
        return calls[at] - 1

    async def _verdict(self, loaded: Loaded) -> LogEntry | None:
        """The entry with the verdict; most often it was loaded with the state."""
        history, session = History(self._store), loaded.head.id
        for entry in reversed(loaded.entries):
            if entry.call_id == VERDICT:
                return await history.read(session, entry)
        return await history.find_own_call(session, VERDICT)

    async def _shared(self, session: str, verdict: LogEntry | None, names: list[str]) -> dict[str, State]:
        """The shared states that the verifier asks for, as it saw them when it gave its verdict."""
        if verdict is None:
            asked = " and ".join(names)
            raise SessionError(session, f"verify needs {asked}, which is known only at the judged revision")
        views = verdict.facts.get("views", {})
        states: dict[str, State] = {}
        for name in names:
            if name not in views:
                message = (
                    f"verify needs {name}, but the verdict of session {session!r} does not record which version it saw"
                )
                raise SessionError(session, message)
            states[name] = await self._seen(name, verdict, *views[name])
        return states

    async def _seen(self, name: str, verdict: LogEntry, identity: str, revision: int) -> State:
        reader = Reader(self._store, self._environment.shared_types[name])
        standing, document = await reader.read(identity, revision)
        if document.head.created > verdict.at:
            raise SessionError(identity, f"the {name} that the verifier saw is gone: {identity!r} was recreated since")
        state: State = standing.state
        return state
