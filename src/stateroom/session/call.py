"""A call on a session: a read looks at the newest state, a write commits what the tool did to it.

External calls, whose effects cannot be taken back, are in `external`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec

from stateroom.errors import Conflict, DuplicateCall, TooLarge, UnknownSession
from stateroom.session.cache import OpenSession
from stateroom.session.cached_session import PreparedCommit
from stateroom.session.commit import RetryCommit
from stateroom.session.environment import SessionTool
from stateroom.session.invocation import NOTHING, CallContext, ToolRun, run_tool
from stateroom.session.log import UNSTORABLE, person, progress_after
from stateroom.session.reader import StateAt
from stateroom.session.result import Failed, Result, result_of_entry
from stateroom.session.shared import SharedConflict, View
from stateroom.state import event_facts
from stateroom.store import NO_BLOBS

CHANGED = "another session changed the state of the {} at the same time: its change was refused"


class Call(msgspec.Struct, gc=False):
    """One call of a tool on a session."""

    session: OpenSession
    tool: SessionTool
    given: dict[str, Any]
    """The arguments, as JSON data."""
    call_id: str | None
    by: str | None = None
    """The person who makes it, if it is not an agent."""
    user: str | None = None
    """Whose call it is, if the caller says."""

    def asker(self) -> str | None:
        """Whose call it is: the user whom the caller names or, for the agent's own calls, whose message it answers."""
        agent = self.session.cached.progress.agent
        is_agents = agent.user is not None and self.call_id is not None and agent.made(self.call_id)
        return agent.user if self.user is None and is_agents else self.user

    async def read(self) -> Result:
        """Run a tool that only looks at the newest state."""
        views = await self.session.views(self.tool.procedure.shared, self.asker())
        await self.session.refresh()
        self.session.cached.ensure_unsealed()
        ran = await self.run(self.tool.bind(self.given), views)
        return Result(True, ran.output)

    async def write(self) -> Result:
        """Run a tool on the newest state, and commit what it did: an attempt, for `commit`."""
        cached, tool, call_id = self.session.cached, self.tool, self.call_id
        if call_id is not None and not cached.is_new(call_id):
            entry = await cached.find_call(call_id)
            if entry is not None:
                return result_of_entry(entry)
        views, shared = NOTHING, tool.procedure.shared
        if shared:
            views = await self.session.views(shared, self.asker())
        try:
            ran = await self.run(tool.bind(self.given), views)
        except Failed as failure:
            if failure.tampered or await cached.check_newest():
                raise
            raise RetryCommit from None  # it failed on a state that is no longer the newest
        try:
            if ran.shared:
                await self.commit_shared(ran, views)
            else:
                await cached.append(self.prepare(ran))
            return Result(True, ran.output)
        except SharedConflict as error:
            if error.rejects:
                raise Failed(f"{tool.name} failed: {CHANGED.format(error.name)}", "shared_conflict") from None
            raise RetryCommit from None
        except (Conflict, DuplicateCall):
            raise RetryCommit from None

    def run(self, arguments: dict[str, Any], views: Mapping[str, View]) -> Awaitable[ToolRun]:
        """Run the tool on the state that is loaded, with arguments that are bound."""
        session, cached, tool, call_id = self.session, self.session.cached, self.tool, self.call_id
        agent = cached.progress.agent
        call = CallContext(
            cached.state,
            cached.progress,
            cached.head.id,
            cached.head.revision,
            lambda: session.runtime.task_of(cached.seeded),
            call_id,
            cached.pool,
            {name: view.state for name, view in views.items()} if views else NOTHING,
            answers=agent.inputs if agent.asking is not None and agent.asking == call_id else (),
            user=self.asker() if "session" in tool.procedure.needs else None,
        )
        if tool.procedure.resources:
            return session.resources().run(tool, arguments, call)
        return run_tool(session.runtime.runner, tool, arguments, call, session.runtime.limits.timeout)

    async def commit_shared(self, ran: ToolRun, views: Mapping[str, View]) -> None:
        """Commit what the tool did, to the session and to the shared states that it changed, if any."""

        async def decide(facts: dict[str, Any]) -> None:
            await self.session.cached.append(self.prepare(ran, facts))

        try:
            await self.session.cache.shared.commit(self.session.cached, ran.revision + 1, views, ran.shared, decide)
        except TooLarge as error:
            raise Failed(f"{self.tool.name} failed: {error}", "too_large") from error
        except UnknownSession as error:
            for view in views.values():
                if view.shared.cached.head.id == error.session:  # it was deleted, and is made anew on its next use
                    raise SharedConflict(view.shared) from error
            raise

    def prepare(self, ran: ToolRun, more: Mapping[str, Any] = NOTHING) -> PreparedCommit:
        """The commit of a run."""
        name, cached = self.tool.name, self.session.cached
        facts = {"name": name, "input": self.given, "output": ran.output, **person(self.by)}
        if (self.user is not None or cached.progress.agent.user is not None) and (user := self.asker()) is not None:
            facts["user"] = user
        if more:
            facts |= more
        if ran.advanced:
            facts["advance"] = ran.advanced
        if ran.events:
            facts["events"] = [event_facts(event) for event in ran.events]
        if ran.used is not None:
            facts |= ran.used.facts(ran.revision + 1)
        after = StateAt(ran.state, progress_after(ran.progress, "call", self.call_id, facts))
        if cached.head.revision != ran.revision or cached.state is not ran.base:
            raise Conflict(cached.head.id, ran.revision)  # meanwhile a reader in this process has caught up with others
        try:
            saved = NO_BLOBS if ran.used is None else ran.used.blobs
            return cached.prepare("call", facts, ran.patch, after, self.call_id, saved=saved)
        except TooLarge as error:
            raise Failed(f"{name} failed: {error}", "too_large") from error
        except UNSTORABLE as error:
            raise Failed(f"{name} failed: its input or output cannot be stored") from error
