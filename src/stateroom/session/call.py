"""A call on a session: a read looks at the newest state, a write commits what the tool did to it."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from stateroom.errors import Conflict, DuplicateCall, SchemaChanged, TooLarge, UnknownSession
from stateroom.session.cache import OpenSession
from stateroom.session.cached_session import PreparedCommit
from stateroom.session.commit import RetryCommit, append_entry, commit
from stateroom.session.containment import Cause
from stateroom.session.environment import SessionTool
from stateroom.session.invocation import NOTHING, CallContext, ToolRun, run_tool
from stateroom.session.log import UNSTORABLE, person, progress_after
from stateroom.session.progress import ASKED, STARTED
from stateroom.session.reader import StateAt
from stateroom.session.result import Code, Failed, Result, result_of_entry
from stateroom.session.shared import SharedConflict, View
from stateroom.state import event_facts
from stateroom.store import NO_BLOBS

CHANGED = "another session changed the state of the {} at the same time, so this change was refused"


MAX_OUTCOME_ATTEMPTS = 1000
"""Attempts to commit what came of an external call: its effect stays, whatever others write."""


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
            raise RetryCommit from None  # it failed on an outdated state
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
        return run_tool(session.runtime.runner, tool, arguments, call)

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


class ExternalCall(Call, gc=False):
    """A call whose effect cannot be taken back, so the log says that it starts before it runs.

    It has the entry `started` before it runs, and `call` or `failed` after it; or `asked`, if it asked for input. After
    a crash, one that was started and has no other entry has an unknown outcome: it runs again only if its tool allows
    that (`retries_unknown`). The caller has the session's lock.
    """

    call_id: str

    async def result(self) -> Result:
        """The recorded result, if there is one; else note that the call starts, run it once, and note what came."""
        cached, tool, call_id = self.session.cached, self.tool, self.call_id
        arguments = tool.bind(self.given)  # bad ones start nothing
        if cached.stale:
            await cached.refresh()
        entry = await cached.find_call(call_id)
        if entry is not None:
            return result_of_entry(entry)
        agent = cached.progress.agent
        # Each answer lets it start once more.
        suffix = f"/{len(agent.inputs)}" if agent.asking == call_id and agent.inputs else ""
        asked = await cached.find_call(call_id + ASKED + suffix)
        if asked is not None:
            raise Failed(asked.facts["question"], "needs_input")
        if not await self._start(suffix):
            await cached.refresh()  # another process may have finished it
            entry = await cached.find_call(call_id)
            if entry is not None:
                return result_of_entry(entry)
            if not tool.retries_unknown:
                raise Failed(
                    f"{tool.name} was started before and its outcome is unknown, so it was not run again. "
                    "Check what happened before you try again.",
                    "unknown_outcome",
                )
        return await self._run(arguments, suffix)

    async def _start(self, suffix: str) -> bool:
        """Note that the call starts; False if that was noted before."""
        name, call_id = self.tool.name, self.call_id + STARTED + suffix
        if await self.session.cached.find_call(call_id) is not None:
            return False
        try:
            await self._append("started", {}, call_id)
        except DuplicateCall:
            return False
        except TooLarge as error:
            raise Failed(f"{name} failed: {error}", "too_large") from error
        except UNSTORABLE as error:
            raise Failed(f"{name} failed: its input cannot be stored") from error
        return True

    async def _run(self, arguments: dict[str, Any], suffix: str) -> Result:
        session, cached, tool = self.session, self.session.cached, self.tool
        try:
            views = await session.views(tool.procedure.shared, self.asker())
            if cached.stale:  # meanwhile others have gone back in it
                await cached.refresh()
            ran = await self.run(arguments, views)
        except SchemaChanged as error:
            await self._fail(f"{tool.name} was not run: {error}", "tool_failed")
            raise
        except Failed as failure:
            if failure.tampered:
                await session.reload_tampered()
            if failure.code == "needs_input":
                await self._append("asked", {"question": str(failure)}, self.call_id + ASKED + suffix)
                raise
            return await self._fail(str(failure), failure.code, failure.cause)
        return await self._succeed(ran, views)

    async def _succeed(self, ran: ToolRun, views: Mapping[str, View]) -> Result:
        """Commit what came of the call, or else note why that could not be done."""
        cached, tool = self.session.cached, self.tool

        async def attempt() -> Result:
            nonlocal ran
            if cached.head.revision != ran.revision:
                changed = cached.state is not ran.base or cached.progress.resources != ran.progress.resources
                if cached.verdict_facts is not None or changed:  # never merged by accident
                    meanwhile = "the session was verified" if cached.verdict_facts else "another call changed the state"
                    message = (
                        f"{tool.name} took effect, but {meanwhile} meanwhile, so its change of the state was refused"
                    )
                    return await self._fail(message, "tool_failed")
                ran = replace(ran, revision=cached.head.revision, progress=cached.progress)
            try:
                await self.commit_shared(ran, views)
                return Result(True, ran.output)
            except Failed as failure:  # the output cannot be stored
                return await self._fail(str(failure), failure.code)
            except SharedConflict as error:
                return await self._fail(f"{tool.name} took effect, but {CHANGED.format(error.name)}", "shared_conflict")
            except DuplicateCall:  # another process, retrying too, was quicker
                return await self._recorded()
            except Conflict:
                raise RetryCommit from None

        return await commit(
            cached, attempt, tool.name, after_verdict=True, load_state=False, attempts=MAX_OUTCOME_ATTEMPTS
        )

    async def _fail(self, message: str, code: Code, cause: Cause | None = None) -> Result:
        try:
            await self._append("failed", {"error": message, "code": code}, self.call_id)
        except DuplicateCall:  # another process, retrying too, has noted the outcome
            return await self._recorded()
        return Result(False, None, message, code, cause=cause)

    async def _recorded(self) -> Result:
        await self.session.cached.refresh(load_state=False)
        return result_of_entry(await self.session.cached.find_call(self.call_id))

    async def _append(self, kind: str, facts: dict[str, Any], call_id: str) -> None:
        facts = {"name": self.tool.name, "input": self.given, **facts, **person(self.by)}
        if user := self.asker():
            facts["user"] = user
        await append_entry(self.session.cached, kind, facts, call_id)
