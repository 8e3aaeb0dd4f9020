"""Sessions for the tests of the care for stores."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stateroom import Environment, SessionLimits, Sessions, State, tool
from stateroom.session import Cut, Retention, RetentionPolicy, Session, check_session, each_session
from stateroom.store import Store


class Notes(State):
    notes: list[str] = []


class Profile(State):
    seen: int = 0


class NotesEnvironment(Environment[Notes]):
    """Keeps notes."""

    def seed(self, task: Any) -> Notes:
        return Notes(notes=["x" * 100] * getattr(task, "size", 0))

    def user_of(self, task: Any) -> str:
        return getattr(task, "user", "ann")

    @tool
    def add(self, state: Notes, text: str) -> int:
        """Add a note."""
        state.notes.append(text)
        return len(state.notes)

    @tool
    def replace(self, state: Notes, text: str) -> None:
        """Replace the last note."""
        state.notes[-1] = text

    @tool
    def meet(self, user: Profile) -> int:
        """Be seen by the user."""
        user.seen += 1
        return user.seen

    def verify(self, state: Notes) -> float:
        return 1.0


def sessions_of(store: Store, **options: Any) -> Sessions[Notes]:
    return Sessions(NotesEnvironment(), store, SessionLimits(**options))


async def go_on(session: Session[Notes], times: int) -> None:
    """Add notes."""
    for _ in range(times):
        assert (await session.call("add", {"text": f"note {session.revision}"})).ok


async def new(store: Store, length: int, **options: Any) -> Session[Notes]:
    """A session of so many revisions."""
    session = await sessions_of(store, **options).seed({"user": "ann"})
    await go_on(session, length - 1)
    return session


async def family(store: Store) -> list[str]:
    """A session; a fork of it that was rewound into its parent, and one that was closed; a fork of the first fork.

    All of them have large values, of their own or of their parents'.
    """
    parent = await new(store, 30)
    await parent.call("add", {"text": "large " * 20_000})
    fork = await parent.fork(at=20)
    await go_on(fork, 3)
    await fork.call("add", {"text": "larger " * 20_000})
    await fork.rewind(to=15)
    await go_on(fork, 12)
    closed = await parent.fork()
    await go_on(closed, 2)
    await closed.verify()
    await closed.close()
    grandchild = await fork.fork(at=24)
    await go_on(grandchild, 1)
    return [parent.id, fork.id, closed.id, grandchild.id]


async def prune(store: Store, now: Callable[[], float] = time.time, **policy: Any) -> dict[str, Cut]:
    """What has gone, by session."""
    made = Retention(store, RetentionPolicy(**policy), now).carry_out()
    return {head.id: cut async for head, cut in made if cut is not None}


async def problems(store: Store) -> dict[str | None, list[str]]:
    """What is wrong with the sessions of a store."""
    checked = each_session(store, lambda head: check_session(store, head))
    found: dict[str | None, list[str]] = {head.id: wrong async for head, wrong in checked if wrong}
    orphans = await store.maintenance.orphans()
    return {**found, None: orphans} if orphans else found
