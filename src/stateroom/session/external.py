"""External calls: their effects cannot be taken back, so the log says that one starts before it runs.

An external call has the entry `started` before it runs, and `call` or `failed` after it; or `asked`, if it asked for
input. After a crash, one that was started and has no other entry has an unknown outcome: it runs again only if its tool
allows that (`retries_unknown`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from stateroom.errors import Conflict, DuplicateCall, SchemaChanged, TooLarge
from stateroom.session.call import CHANGED, Call
from stateroom.session.cause import Cause
from stateroom.session.commit import RetryCommit, append_entry, commit
from stateroom.session.invocation import ToolRun
from stateroom.session.log import UNSTORABLE, person
from stateroom.session.progress import ASKED, STARTED
from stateroom.session.result import Code, Failed, Result, result_of_entry
from stateroom.session.shared import SharedConflict, View

MAX_OUTCOME_ATTEMPTS = 1000
"""Attempts to commit what came of an external call: its effect stays, whatever others write."""


class ExternalCall(Call, gc=False):
    """A call whose effect cannot be taken back; the caller has the session's lock."""

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
                    f"{tool.name} was started before and its outcome is unknown; it was not run again. "
                    "Find out what happened before you try again.",
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
                    meanwhile = "the session got its verdict" if cached.verdict_facts else "others changed the state"
                    message = f"{tool.name} took effect, but {meanwhile} meanwhile: its change was refused"
                    return await self._fail(message, "tool_failed")
                ran = replace(ran, revision=cached.head.revision, progress=cached.progress)
            try:
                await self.commit_shared(ran, views)
                return Result(True, ran.output)
            except Failed as failure:  # the output cannot be stored
                return await self._fail(str(failure), failure.code)
            except SharedConflict as error:
                return await self._fail(f"{tool.name} took effect, but {CHANGED.format(error.name)}", "shared_conflict")
            except DuplicateCall:  # another process, told to try again too, was quicker
                return await self._recorded()
            except Conflict:
                raise RetryCommit from None

        return await commit(
            cached, attempt, tool.name, after_verdict=True, load_state=False, attempts=MAX_OUTCOME_ATTEMPTS
        )

    async def _fail(self, message: str, code: Code, cause: Cause | None = None) -> Result:
        try:
            await self._append("failed", {"error": message, "code": code}, self.call_id)
        except DuplicateCall:  # another process, told to try again too, has noted what came of it
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
