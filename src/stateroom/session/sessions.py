"""`Sessions`: the sessions of one environment in one store."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import chain
from secrets import randbits, token_hex
from typing import Any, Generic

from msgspec.structs import replace
from pydantic_core import PydanticSerializationError, to_jsonable_python

from stateroom.errors import (
    BadTask,
    DefinitionError,
    SessionClosed,
    SessionError,
    SessionExpired,
    TimedOut,
    UnknownSession,
)
from stateroom.session.calling import has_tampered
from stateroom.session.execution import Runner, contained
from stateroom.session.history import History, Start, world_is_gone
from stateroom.session.holding import Holding, Keeper
from stateroom.session.journal import AFTER_VERDICT, UNSTORABLE, VERDICT, checked_text, read_entry
from stateroom.session.moment import Moment
from stateroom.session.program import SHARED, Program
from stateroom.session.reading import Reader
from stateroom.session.room import Room, new_room
from stateroom.session.scopes import Scopes
from stateroom.session.session import S, Session
from stateroom.session.stateless import StatelessSession
from stateroom.session.worlds import Worlds
from stateroom.state import ENDED, Desk, State, commit, draft_of, shape_of
from stateroom.store import Head, Store

WEEK = 7 * 24 * 3600.0

YEAR = 365 * 24 * 3600.0

SHARED_IDS = tuple(f"{name}:" for name in sorted(SHARED | {"world"}))

LATE = (None, "verdict", "abandoned", *AFTER_VERDICT)
"""What may be the last that is read of a session which has its verdict."""

RENEWED = 0.99
"""An expiry that is this share of the time to live away need not be renewed."""


def new_session_id() -> str:
    """An id that cannot be guessed."""
    return token_hex(12)


class Sessions(Generic[S]):
    """Seeds, opens and sweeps the sessions of an environment.

    `ttl` is how many seconds a session lives after its last use, `timeout` how many seconds a tool may take that sets
    no limit of its own, `hot` how many sessions' states this process keeps at hand, `max_state` how many bytes
    a state may have as it is stored, `max_log` how many bytes may be stored for a session in all, its log above all,
    and `kept` how many seconds the state of a user, or of the app, is kept after its last use.
    """

    def __init__(
        self,
        environment: Program,
        store: Store,
        *,
        ttl: float = WEEK,
        timeout: float = 30.0,
        hot: int = 10_000,
        max_state: int = 1 << 30,
        max_log: int = 1 << 34,
        kept: float = YEAR,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.environment = environment
        self.store = store
        self.ttl = ttl
        self.timeout = timeout
        self.hot = hot
        self.max_state = max_state
        self.max_log = max_log
        self.kept = kept
        self.now = now
        self.runner = Runner()
        self.scopes = Scopes(self)
        self.worlds = Worlds(self)
        self.reader = Reader(store, environment.state_type or State)
        self.keeper = Keeper(environment.resources, store, self.runner, timeout, max_state)
        self._rooms: OrderedDict[str, Room] = OrderedDict()

    async def seed(
        self,
        task: Mapping[str, Any] | Any,
        *,
        owner: str = "",
        seed: int | None = None,
        began: float | None = None,
        session_id: str | None = None,
        replaces: str | None = None,
    ) -> Session[S]:
        """A new session for a task: a row of task data, or a typed task.

        `seed` decides the session's rng and ids, and `began` the time at which its clock starts, in seconds since
        1970; by default a random seed, and now. `session_id` must be unguessable where strangers can call; by default
        it is. `replaces` is the session whose place this one takes, for the log.
        """
        checked_text("owner", owner)
        if session_id is not None:
            checked_text("session_id", session_id)
        row = self._plain(task)
        if session_id is not None and session_id.startswith(SHARED_IDS):
            raise BadTask(f"a session cannot be named {session_id!r}: that is the name of a shared state")
        created = self.now()
        moment = Moment(randbits(63) if seed is None else seed, created if began is None else began)
        if self.environment.state_type is None:
            return self.stateless(session_id or new_session_id(), moment, self._task(row))
        if "user" in self.environment.shared_types:
            with contained:
                user = self.environment.user_of(self._task(row))
            checked_text("user", user)  # else the first call would fail for it
        state, moment, start = await self._seeded(self._task(row), moment)
        head = self.new_head(owner, 1, session_id=session_id)
        try:
            facts = {"input": row, "replaces": replaces} if replaces else {"input": row}
            room, entries, snapshot, blobs = new_room(
                self.reader, head, state, moment, facts, self.max_state, start, max_log=self.max_log
            )
        except UNSTORABLE as error:
            raise BadTask(f"the task, or the state that it was seeded with, cannot be stored: {error}") from error
        await self.store.create(head, entries, snapshot, blobs)
        return self.admit(room)

    def _plain(self, task: Any) -> Any:
        """A task as JSON data of our own."""
        try:
            with contained:
                return to_jsonable_python(task)
        except UnicodeEncodeError as error:
            raise BadTask("the task is not JSON: a key in it is not a text that can be written") from error
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            raise BadTask(f"the task is not JSON: {error}") from error

    def _task(self, row: Any) -> Any:
        """The typed task of a row, with which whoever gets it may do as they like."""
        return self.environment.parse_task(self._plain(row))

    def task_of(self, room: Room) -> Any:
        """The typed task of a session."""
        return self.environment.parse_task(read_entry(room.seeded).input)

    async def _seeded(self, task: Any, moment: Moment) -> tuple[State, Moment, Start | None]:
        """The first state of a session, its moment, and the start that the state follows from, if it does."""
        luck, clock = replace(moment, steps=-1), moment.clock()  # the first call has luck of its own
        available = {"task": lambda: task, "rng": luck.rng, "clock": lambda: clock, "new_id": luck.new_id}
        if self.environment.founding is None:
            state, start = await self._seeded_state(available), None
        else:
            state, start = await self._seeded_in_world(available)
        return state, replace(moment, offset=clock.advanced), start

    async def _seeded_in_world(self, available: dict[str, Callable[[], Any]]) -> tuple[State, Start]:
        """A world, with what the task changes in it."""
        world = await self.worlds.current()
        desk = Desk()
        draft = draft_of(world.state, desk)
        try:
            returned = await self._run_seed({**available, "state": lambda: draft})
            if returned is not None:
                raise DefinitionError(
                    f"{self.environment.name}.seed changes the `state` that it is given, and returns nothing: there is "
                    f"a world to start from; not {type(returned).__name__}"
                )
            with contained:
                state, patch = commit(draft)
        except Exception:
            if has_tampered(draft):
                await self.mend()
            raise
        finally:
            desk.closed = ENDED
        return state, Start(world.id, world.size, patch)

    async def _run_seed(self, available: dict[str, Callable[[], Any]]) -> Any:
        procedure = self.environment.seeding
        arguments = {name: available[name]() for name in procedure.needs}
        try:
            return await self.runner.run(procedure, arguments, self.timeout)
        except TimedOut as error:
            raise TimedOut(f"{self.environment.name}.seed did not finish within {error}") from None

    async def _seeded_state(self, available: dict[str, Callable[[], Any]]) -> State:
        state = await self._run_seed(available)
        expected = self.environment.state_type
        if expected is None or type(state) is not expected:  # a subclass could not be read back
            wanted = expected.__name__ if expected else None
            raise DefinitionError(f"{self.environment.name}.seed must return a {wanted}, not {type(state).__name__}")
        with contained:
            copy: State = shape_of(expected).admit(state, ())  # valid, and shared with nobody
            return copy

    async def open(self, session_id: str, *, closed_too: bool = False) -> Session[S]:
        """A handle on a session that was seeded before, here or in any other process.

        A closed one can be opened too, to be read and forked, if that is asked for.
        """
        room = self._rooms.get(session_id) if isinstance(session_id, str) else None
        if room is None:
            checked_text("session_id", session_id)
            if self.environment.state_type is None:
                raise UnknownSession(session_id)
            history = History(self.store)
            document, first = await asyncio.gather(  # at once, which is one round trip to a store far away
                history.outline(session_id), self.store.entries(session_id, until=1)
            )
            head = document.head
            if head.environment != self.environment.name:
                raise SessionError(
                    session_id, f"session {session_id!r} is of {head.environment}, not of {self.environment.name}"
                )
            self._refuse_ended(head, closed_too)
            room = Room(self.reader, head, self.max_state, self.max_log)
            room.hold(await self.reader.understood(document), document)
            if document.start is not None:
                await self._renew_world(session_id, document.start.world)
            room.seeded = await history.seed(head, first)
            if document.last_kind in LATE:
                judged = await history.find_own_call(session_id, VERDICT)
                room.judged = judged.facts if judged else None
            room.head = await self._renewed(room.head)
        else:
            await self.catch_up(room, closed_too=closed_too)
        return self.admit(self._rooms.get(session_id, room))  # another task may have opened it meanwhile

    async def _renew_world(self, session_id: str, world: str) -> None:
        try:
            await self.worlds.renew(world)
        except UnknownSession:  # it is at hand here, and nowhere else
            raise world_is_gone(session_id, world) from None

    def at_hand(self, session_id: str) -> Session[S] | None:
        """The same without waiting, if this process has the state at hand; each use looks whether it is the newest."""
        room = self._rooms.get(session_id)
        if room is None or room.head.closed:
            return None
        self._rooms.move_to_end(session_id)
        return Session(self, room)

    def stateless(self, session_id: str, moment: Moment, task: Any = None) -> Session[S]:
        """A session of an environment without a state, which is nothing but what is given here."""
        return StatelessSession(self, session_id, task, moment)  # type: ignore[return-value]

    def forget(self, session_id: str) -> None:
        """Keep nothing of a session at hand: the next use reads it from the store."""
        room = self._rooms.pop(session_id, None)
        if room is not None and room.holding:
            self.keeper.own(self._let_go(room))

    async def stop(self) -> None:
        """Let go of all resources that this process has. Sessions that go on restore theirs, or start them again."""
        for session_id in [*self._rooms]:
            self.forget(session_id)
        await self.keeper.stop()

    async def sweep(self) -> int:
        """Remove the sessions in the store that have expired; tells how many."""
        now = self.now()
        for session_id in [room.head.id for room in self._rooms.values() if room.head.expires <= now]:
            self.forget(session_id)
        swept = await self.store.sweep(now)
        self._rooms = OrderedDict(self._rooms)  # a dict that has been large stays so; its copy does not
        return swept

    # For sessions.

    @cached_property
    def reaches_outside(self) -> bool:
        """Whether a call may have effects that no store knows of."""
        return self.keeper.restarts or any(tool.effect == "external" for tool in self.environment.tools.values())

    def holding_of(self, room: Room) -> Holding:
        """The resources that this process has for a session: for as long as it has its room at hand, as it has now."""
        if room.holding is None:
            room.holding = Holding(self.keeper)
        self.admit(self._rooms.get(room.head.id, room))
        if self._rooms.get(room.head.id) is not room:
            self.keeper.own(self._let_go(room))
        return room.holding

    async def _let_go(self, room: Room) -> None:
        """Stop a session's resources as soon as nobody uses them, unless its room is at hand again."""
        async with room.lock:
            if room.holding and self._rooms.get(room.head.id) is not room:
                await room.holding.let_go()

    async def look(self, room: Room, *, closed_too: bool = True) -> Head:
        """The newest head of a session that may be used, and goes on living; what its room holds stays as it is."""
        fresh = room.is_fresh and room.head.expires > self.now()  # others may have renewed it
        head = room.head if fresh else await self.store.head(room.head.id)
        if head.created != room.head.created:  # it was deleted, and another one seeded that has its id
            self.forget(head.id)
            raise UnknownSession(head.id)
        self._refuse_ended(head, closed_too)
        return await self._renewed(head)

    async def catch_up(self, room: Room, *, closed_too: bool = False, unread: bool = False) -> None:
        """See that a room is up to date, that the session may be used, and that it goes on living.

        The newest state is at hand then, unless it may stay `unread`; for that, one needs the room's lock.
        """
        head = await self.look(room, closed_too=closed_too)
        if (room.state is None and not unread) or head.revision != room.head.revision:
            await room.refresh(unread=unread)
        else:
            room.head = head  # its lease may be news
        # Nothing is waited for any more: until the caller does, the state is at hand.

    def _refuse_ended(self, head: Head, closed_too: bool) -> None:
        if head.expires <= self.now():
            raise SessionExpired(head.id)
        if head.closed and not closed_too:
            raise SessionClosed(head.id)

    async def _renewed(self, head: Head) -> Head:
        """Let a session that is used go on living."""
        now = self.now()
        expires = None if head.closed else self.renewal(head, now)
        if expires is None:
            return head
        await self.store.touch(head.id, now=now, expires=expires)
        return replace(head, expires=expires)

    async def mend(self, *rooms: Room) -> None:
        """Read again what the author's code may have tampered with: these, and all that share states with others."""
        forks = [other.head for other in self._rooms.values() if other.head.parent is not None]
        related = {*(room.head.id for room in rooms), *(head.id for head in forks), *(head.parent for head in forks)}
        if self.environment.founding is not None:  # all may share the world
            related = {*self._rooms}
            self.worlds.forget()
            self.reader.forget()
        spoiled = {*rooms, *(other for other in self._rooms.values() if other.head.id in related)}
        self.scopes.forget()
        for other in spoiled:  # all at once, before anybody can use one
            other.forget()
        for other in spoiled:
            try:
                await other.refresh()
            except SessionError:  # it has expired, or was swept
                self.forget(other.head.id)

    def renewal(self, head: Head, at: float) -> float | None:
        """The new expiry of a session that is used; None when the old one is as good, which saves the store work."""
        return None if head.expires - at > RENEWED * self.ttl else at + self.ttl

    def new_head(self, owner: str, revision: int, *, parent: str | None = None, session_id: str | None = None) -> Head:
        """A head for a new session."""
        return Head(
            id=session_id or new_session_id(),
            environment=self.environment.name,
            owner=owner,
            created=(now := self.now()),
            expires=now + self.ttl,
            revision=revision,
            parent=parent,
            parent_revision=revision if parent else 0,
            fence=int(now * 1e6),  # of a session that is deleted and seeded again under its id: another one
        )

    def admit(self, room: Room) -> Session[S]:
        """Keep a room at hand, and give a handle on it."""
        self._rooms[room.head.id] = room
        self._rooms.move_to_end(room.head.id)
        if len(self._rooms) > self.hot:
            self.forget(self._least_missed(room))
        return Session(self, room)

    def _least_missed(self, newest: Room) -> str:
        """The room to give up for a new one: the oldest without a lease; before all others, one without resources."""
        free = (other for other in self._rooms.values() if other.held is None and other is not newest)
        first = next(free, newest)
        return next((other for other in chain((first,), free) if not other.holding), first).head.id
