"""The resources that a process has for its sessions, and whether they are still what the log says."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from secrets import token_hex
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from stateroom.errors import (
    Busy,
    EnvironmentFailed,
    ReadOnlyState,
    SessionError,
    StateroomError,
    TimedOut,
    TooLarge,
    ToolError,
)
from stateroom.session.containment import cause_of
from stateroom.session.environment import Procedure, SessionTool
from stateroom.session.history import History
from stateroom.session.invocation import CallContext, ToolRun, run_tool
from stateroom.session.log import UNSTORABLE
from stateroom.session.resource import NO_VERSION, Resource, ResourceVersion, Used, identity, restart_blocker, saved_as
from stateroom.session.result import Code, Failed
from stateroom.session.runner import Runner
from stateroom.state import decode, digest_of, encode
from stateroom.store import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_STOPS = 64
"""Maximum number of resources that are stopped concurrently."""

HOOK_FAILED = (ToolError, TimedOut, TooLarge, EnvironmentFailed, ReadOnlyState)
"""Errors from a hook that failed, and from a read that changed something."""


class HeldResource(msgspec.Struct):
    """A resource of this process."""

    handle: Any
    identity: str | None
    """That of the version which it is of."""
    restarted: bool
    """Whether it was started again although it had been used, and no entry records that yet."""
    sure: bool = True
    """Whether its content is known: not while a tool uses it, or after the tool failed."""


class ResourceManager:
    """Runs the hooks of an environment's resources, and keeps those that all sessions of this process share.

    What it has begun to start or to stop, it finishes, even if the caller is cancelled: nothing is lost.
    `most` is how many bytes of one may be saved.
    """

    def __init__(self, resources: Mapping[str, Resource[Any]], store: Store, runner: Runner, most: float = inf) -> None:
        self.resources = resources
        self.store = store
        self.runner = runner
        self.most = most
        self._stateless: dict[str, Any] = {}
        self._lock = asyncio.Lock()
        self._stops = asyncio.Semaphore(MAX_STOPS)
        self._tasks: set[asyncio.Task[Any]] = set()

    def is_exclusive(self, procedure: Procedure) -> bool:
        """Whether a function needs a session's own resource, which only one call can use at a time."""
        needed = procedure.resources
        return bool(needed) and any(self.resources[name].kind != "stateless" for name in needed)

    @property
    def restarts(self) -> bool:
        """Whether a resource is `restart_only`."""
        return any(resource.kind == "restart_only" for resource in self.resources.values())

    async def stateless(self, name: str, call: CallContext) -> Any:
        """A resource that all sessions share, started on its first use."""
        async with self._lock:
            if name not in self._stateless:
                self._stateless[name] = await self.started(name, call)
            return self._stateless[name]

    async def started(self, name: str, call: CallContext) -> Any:
        return await self._make(name, "started", self.resources[name].start, call.info())

    async def restored(self, name: str, call: CallContext, content: bytes) -> Any:
        return await self._make(name, "restored", self.resources[name].restore, decode(content), call.info())

    async def _make(self, name: str, done: str, hook: Callable[..., Any], *given: Any) -> Any:
        """The resource from a hook; if the caller is gone by then, it is stopped."""
        making = self.own(self._made_in_time(name, done, hook, *given))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self.own(self._unmake(name, making))
            raise

    async def _unmake(self, name: str, making: asyncio.Task[Any]) -> None:
        with suppress(StateroomError):  # then there is nothing to stop
            await self._stop((name, await making))

    async def _made_in_time(self, name: str, done: str, hook: Callable[..., Any], *given: Any) -> Any:
        """The resource from a hook, within its timeout; a thread cannot be ended, so a late resource is stopped."""
        if inspect.iscoroutinefunction(hook):
            return await self._run(name, done, hook, *given)
        loop, late = asyncio.get_running_loop(), threading.Event()
        there: list[Any] = []

        def make() -> Any:
            made = hook(*given)
            there.append(made)
            if late.is_set():
                loop.call_soon_threadsafe(drop)
            return made

        def drop() -> None:  # whichever of the two comes second finds something
            if there:
                self.stop_handles((name, there.pop()))

        try:
            return await self._run(name, done, make)
        except BaseException:
            late.set()
            drop()
            raise

    async def saved(self, name: str, handle: Any) -> bytes:
        """The saved content of a resource."""
        saved = await self._run(name, "saved", self.resources[name].save, handle)
        try:
            content = encode(saved)
        except UNSTORABLE as error:
            raise EnvironmentFailed(f"the {name} could not be saved: its content cannot be stored: {error}") from error
        if len(content) > self.most:
            raise TooLarge(f"the {name} exceeds its limit of {self.most:,} saved bytes")
        return content

    def stop_handles(self, *handles: tuple[str, Any]) -> asyncio.Future[None]:
        """Stop these, by name, one after another. One can wait for that, or not."""
        return asyncio.shield(self.own(self._stop(*handles)))

    async def _stop(self, *handles: tuple[str, Any]) -> None:
        for name, handle in handles:
            try:
                async with self._stops:
                    await self._run(name, "stopped", self.resources[name].stop, handle)
            except StateroomError as error:  # this is for the log only: another can be started
                logger.warning("%s", error)

    def own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Finish some work, even if the caller is cancelled."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """Finish started work, and stop the shared resources."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        async with self._lock:
            shared, self._stateless = self._stateless, {}
            await self.stop_handles(*reversed(shared.items()))

    async def _run(self, name: str, done: str, hook: Callable[..., Any], *given: Any) -> Any:
        # With a timeout of its own, a plain function is never run on the loop.
        procedure = Procedure(partial(hook, *given), frozenset(), self.runner.timeout)
        try:
            return await self.runner.run(procedure, {})
        except (ToolError, TooLarge, Busy):
            raise
        except TimedOut as error:
            raise TimedOut(f"the {name} could not be {done} within {error}") from None
        except Exception as error:
            logger.warning("the %s could not be %s", name, done, exc_info=error)
            raise EnvironmentFailed(f"the {name} could not be {done}: unexpected {type(error).__name__}") from error


class SessionResources:
    """The resources of one session that this process has. The caller has the session's lock."""

    def __init__(self, manager: ResourceManager) -> None:
        self._manager = manager
        self._held: dict[str, HeldResource] = {}

    async def lend(self, procedure: Procedure, call: CallContext) -> CallContext:
        """The context of a call, with the resources that its function asks for."""
        resources = {name: await self._current(name, call) for name in sorted(procedure.resources)}
        return replace(call, resources=resources)

    async def lend_to_judge(self, procedure: Procedure, call: CallContext) -> CallContext:
        """The same for a verifier: whatever others have left in what can be restored, or it leaves there, is gone.

        Raises a `SessionError` if it would be given one afresh in place of one that was used.
        """
        versions = {name: version for name, version in call.progress.resources.items() if name in procedure.resources}
        there = {name: {"used": one.identity} for name, one in self._held.items() if one.sure and not one.restarted}
        if why := restart_blocker(versions, there):
            raise SessionError(call.session, f"session {call.session!r} cannot be verified here: {why}")
        self._distrust(procedure)
        call = await self.lend(procedure, call)
        self._distrust(procedure)
        return call

    def _distrust(self, procedure: Procedure) -> None:
        for name in procedure.resources & self._held.keys():
            self._held[name].sure &= self._manager.resources[name].kind != "exportable"

    async def run(self, tool: SessionTool, arguments: dict[str, Any], call: CallContext) -> ToolRun:
        """Run a tool that asks for resources; raises as `run_tool` does, and then they are what they were."""
        reads = tool.effect == "read"
        try:
            call = await self.lend(tool.procedure, call)
            held = {name: self._held[name] for name in sorted(tool.procedure.resources & self._held.keys())}
            contents = await self._contents(held) if reads else {}
        except HOOK_FAILED as error:
            raise _failure(tool, error) from error
        _trust(held.values(), False)
        try:
            ran = await run_tool(self._manager.runner, tool, arguments, call)
        except Busy:  # it was not run
            _trust(held.values(), True)
            raise
        except Failed as failure:
            if failure.code in ("tool_error", "needs_input"):  # as the author meant it: nothing is broken
                for name, one in held.items():
                    one.sure = self._manager.resources[name].kind == "restart_only"
                if reads:
                    with suppress(*HOOK_FAILED, Busy):  # then it is not known whether they are the same
                        await self._changed(held, contents)
            raise
        try:
            if not reads:
                return replace(ran, used=await self._used(held))
            if changed := await self._changed(held, contents):
                raise ReadOnlyState(f"it is declared as a read, so it cannot change the {changed[0]}")
            return ran
        except HOOK_FAILED as error:
            raise _failure(tool, error) from error

    async def _contents(self, held: Mapping[str, HeldResource]) -> dict[str, str]:
        """The digests of what can be saved, by name."""
        return {
            name: one.identity or digest_of(await self._manager.saved(name, one.handle))
            for name, one in held.items()
            if self._manager.resources[name].kind == "exportable"
        }

    async def _changed(self, held: Mapping[str, HeldResource], contents: Mapping[str, str]) -> list[str]:
        """Which resources are not what they were before a read; the others can be trusted.

        One that is never saved alike is not among them, but is restored.
        """
        changed = []
        for name, one in held.items():
            if name not in contents:
                one.sure = True
                continue
            new = digest_of(await self._manager.saved(name, one.handle))
            one.sure = new == contents[name]
            if not one.sure and new == digest_of(await self._manager.saved(name, one.handle)):
                changed.append(name)
        return changed

    async def _current(self, name: str, call: CallContext) -> Any:
        """A resource as it is at the call's revision."""
        manager = self._manager
        if manager.resources[name].kind == "stateless":
            return await manager.stateless(name, call)
        version = call.progress.resources.get(name, NO_VERSION)
        held = self._held.get(name)
        if held is not None and held.sure and held.identity == identity(version):
            return held.handle
        if held is not None:
            del self._held[name]
            await manager.stop_handles((name, held.handle))
        held = self._held[name] = await self._made(name, version, call)
        return held.handle

    async def _made(self, name: str, version: ResourceVersion, call: CallContext) -> HeldResource:
        manager = self._manager
        large = saved_as(version)
        if manager.resources[name].kind == "exportable" and large is not None:
            content = await History(manager.store).content(call.session, large)
            return HeldResource(await manager.restored(name, call, content), large.digest, restarted=False)
        if version:
            logger.warning("the %s of session %s is started again: the previous one is gone", name, call.session)
        return HeldResource(await manager.started(name, call), identity(version), restarted=bool(version))

    async def _used(self, held: Mapping[str, HeldResource]) -> Used:
        """The effect of a successful call on its resources, whose content is known from now on."""
        used = Used({}, [], {})
        for name, one in held.items():
            if self._manager.resources[name].kind == "exportable":
                content = await self._manager.saved(name, one.handle)
                new = digest_of(content)
                if new != one.identity:
                    used.versions[name] = {"saved": new, "bytes": len(content)}
                    used.blobs[new] = content
            else:
                new = token_hex(8)
                used.versions[name] = {"used": new}
            if one.restarted:
                used.restarted.append(name)
            one.identity, one.restarted, one.sure = new, False, True
        return used

    def __bool__(self) -> bool:
        """Whether this process has any resources of the session."""
        return bool(self._held)

    def stop(self) -> asyncio.Future[None]:
        """Stop all, the newest first. What is used again is restored, or started."""
        held, self._held = self._held, {}
        return self._manager.stop_handles(*((name, one.handle) for name, one in reversed(held.items())))


def _trust(held: Iterable[HeldResource], sure: bool) -> None:
    for one in held:
        one.sure = sure


def _failure(tool: SessionTool, error: Exception) -> Failed:
    """The failure of a hook, for the model."""
    if isinstance(error, ToolError):
        return Failed(str(error) or f"{tool.name} failed", "tool_error")
    message = f"{tool.name} failed: {error}"
    if isinstance(error, TooLarge):
        return Failed(message, "too_large")
    code: Code = "timeout" if isinstance(error, TimedOut) else "tool_failed"
    return Failed(message, code, cause_of(error, tool.procedure.function))
