"""Verifiers that look at resources: each run sees what the log says, and nothing that another has left there."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment, Resource, SessionInfo, Sessions, State, TempFolder, tool
from stateroom.errors import SessionError
from stateroom.session import Episode, Rescorer, Session
from stateroom.store import Store
from tests.messages import raises
from tests.session.outside import Desk, SurfEnvironment


class Site(State):
    visits: int = 0


class Counted(Resource[list[str]]):
    """What all sessions share, and how often that was started and stopped."""

    kind = "stateless"

    def __init__(self) -> None:
        self.started = self.stopped = 0

    def start(self, session: SessionInfo, /) -> list[str]:
        self.started += 1
        return []

    def stop(self, handle: list[str], /) -> None:
        self.stopped += 1


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class BuildEnvironment(Environment[Site]):
    """Its verifier builds in the folder, which it can do only once, and looks back."""

    resources = {"folder": TempFolder(), "client": Counted()}

    def __init__(self) -> None:
        self.meanwhile: Callable[[], Awaitable[Any]] | None = None
        self.fails = False

    @tool
    def write(self, state: Site, folder: Path) -> list[str]:
        """Write a file."""
        state.visits += 1
        (folder / f"file{state.visits}").touch()
        return names_in(folder)

    @tool(effect="read")
    def smuggle(self, folder: Path) -> None:
        """Leave something that no entry speaks of."""
        (folder / "smuggled").touch()

    @tool
    def note(self, state: Site) -> None:
        """Use no folder."""
        state.visits += 1

    async def verify(self, folder: Path, client: list[str], episode: Episode) -> float:
        files = len(names_in(folder))
        (folder / "build").mkdir()
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        if self.fails:
            raise LookupError("not yet")
        return files + len(episode.calls()) / 10


@pytest.fixture
async def sessions(store: Store) -> AsyncIterator[Sessions[Site]]:
    made = Sessions[Site](BuildEnvironment(), store)
    yield made
    await made.stop()


async def test_a_verifier_that_is_run_again_to_look_back_finds_nothing_of_its_own(sessions: Sessions[Site]) -> None:
    for _ in range(2):  # from the second time on it is known that it looks back
        session = await sessions.seed({})
        await session.call("write")
        assert (await session.verify()).reward == 1.1


async def test_a_verifier_that_is_run_again_because_others_wrote_finds_nothing_of_its_own(
    sessions: Sessions[Site], store: Store
) -> None:
    session = await sessions.seed({})
    await session.call("write")
    other = await Sessions[Site](BuildEnvironment(), store).open(session.id)

    async def others_write() -> None:
        assert (await other.call("note")).ok

    assert isinstance(sessions.environment, BuildEnvironment)
    sessions.environment.meanwhile = others_write
    assert (await session.verify()).reward == 1.2


async def test_what_a_verifier_that_raises_leaves_is_not_kept(sessions: Sessions[Site]) -> None:
    session = await sessions.seed({})
    await session.call("write")
    assert isinstance(sessions.environment, BuildEnvironment)
    sessions.environment.fails = True
    with pytest.raises(LookupError):
        await session.verify()
    assert (await session.call("write")).output == ["file1", "file2"]


async def test_what_a_reader_has_left_is_not_judged(sessions: Sessions[Site]) -> None:
    await (await sessions.seed({})).verify()  # from now on it is known that it looks back, and it is run once
    session = await sessions.seed({})
    await session.call("write")
    await session.call("smuggle")
    assert (await session.verify()).reward == 1.1


async def test_who_judges_again_starts_what_all_share_once(sessions: Sessions[Site], store: Store) -> None:
    session = await sessions.seed({})
    await session.call("write")
    await session.verify()
    client = BuildEnvironment.resources["client"]
    assert isinstance(client, Counted)
    client.started = client.stopped = 0
    rejudging = Rescorer(BuildEnvironment(), store)
    assert [(await rejudging.judge(session.id, at=at)).verdict.reward for at in (None, 1, 2)] == [1.1, 0.0, 1.1]
    assert (client.started, client.stopped) == (1, 0)
    await rejudging.stop()
    assert (client.started, client.stopped) == (1, 1)


@pytest.fixture
async def surfing(store: Store) -> AsyncIterator[Session[Desk]]:
    sessions = Sessions[Desk](SurfEnvironment(), store)
    session = await sessions.seed({})
    await session.call("visit", {"address": "a"})
    yield session
    await sessions.stop()


async def test_a_browser_that_is_gone_is_not_judged(surfing: Session[Desk], store: Store) -> None:
    elsewhere = Sessions[Desk](SurfEnvironment(), store)
    other = await elsewhere.open(surfing.id)
    for _ in range(2):
        with raises(SessionError):
            await other.verify()
        assert (await other.call("look")).output == []  # which is another one
    assert other.verdict is None
    assert (await surfing.verify()).reward == 1.0
    await elsewhere.stop()


async def test_a_browser_of_which_the_log_says_that_it_was_started_afresh_is_judged(
    surfing: Session[Desk], store: Store
) -> None:
    elsewhere = Sessions[Desk](SurfEnvironment(), store)
    other = await elsewhere.open(surfing.id)
    for address in ("b", "c"):
        await other.call("visit", {"address": address})
    assert (await other.verify()).reward == 2.0
    await elsewhere.stop()


async def test_a_browser_that_was_never_used_is_judged(surfing: Session[Desk]) -> None:
    assert (await (await surfing.fork(at=1)).verify()).reward == 0.0
