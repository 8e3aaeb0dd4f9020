"""An environment whose sessions have a folder, a browser and a client; and a process of its own that works with it."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from stateroom import (
    Environment,
    Resource,
    SessionInfo,
    SessionLimits,
    Sessions,
    State,
    TempFolder,
    ToolError,
    open_store,
    tool,
)
from stateroom.session import Episode, Session
from stateroom.store import Store


class Desk(State):
    notes: list[str] = []


class Page:
    """What a browser shows, which nobody can save."""

    def __init__(self) -> None:
        self.visited: list[str] = []
        self.closed = asyncio.Event()


class Browser(Resource[Page]):
    kind = "restart_only"

    async def start(self, session: SessionInfo, /) -> Page:
        await asyncio.sleep(0)  # so that two can be at it at once
        return Page()

    async def stop(self, page: Page, /) -> None:
        page.closed.set()


class Client(Resource[list[str]]):
    """All that was ever asked of it."""

    kind = "stateless"

    def start(self, session: SessionInfo, /) -> list[str]:
        return []

    def stop(self, asked: list[str], /) -> None:
        asked.append("stopped")


class DeskEnvironment(Environment[Desk]):
    """Works with files and pages."""

    resources = {"folder": TempFolder(max_bytes=2**20), "browser": Browser(), "client": Client()}

    def __init__(self) -> None:
        self.given: list[Any] = []
        """The folders, pages and clients that tools were given."""
        self.meanwhile: Any = None

    @tool
    async def write(self, state: Desk, folder: Path, name: str, text: str) -> int:
        """Add a line to a file."""
        self.given.append(folder)
        with (folder / name).open("a") as file:
            file.write(f"{text}\n")
        state.notes.append(name)
        await self._let_others_go_on()
        return len(state.notes)

    async def _let_others_go_on(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()

    @tool
    def scribble(self, folder: Path) -> None:
        """Change nothing but the folder."""
        (folder / "scribble").write_text("x")

    @tool
    def touch(self, folder: Path) -> None:
        """Ask for the folder, and leave it as it is."""

    @tool(effect="read")
    def files(self, folder: Path) -> dict[str, str]:
        """All files."""
        self.given.append(folder)
        return {path.name: path.read_text() for path in sorted(folder.iterdir())}

    @tool(effect="read")
    def peek(self, folder: Path, how: str) -> str:
        """Look, and leave something behind."""
        (folder / "left").write_text("x")
        match how:
            case "refuse":
                raise ToolError("not like this")
            case "raise":
                raise OSError
            case "fill":
                (folder / "large").write_bytes(bytes(2**20))
        return how

    @tool(timeout=0.05)
    async def spoil(self, state: Desk, folder: Path, how: str) -> Any:
        """Write, and come to grief."""
        (folder / "spoiled").write_text("x")
        self.given.append(folder)
        match how:
            case "refuse":
                raise ToolError("not like this")
            case "raise":
                raise OSError
            case "hang":
                await asyncio.Event().wait()
            case "state":
                state.notes = 5  # type: ignore[assignment]
            case "fill":
                (folder / "large").write_bytes(bytes(2**20))
            case "link":
                (folder / "out").symlink_to("/etc")
        return object() if how == "output" else None

    @tool(effect="external")
    async def send(self, state: Desk, folder: Path, fails: bool = False) -> str:
        """Write a file of what was sent."""
        (folder / "sent").write_text("sent")
        await self._let_others_go_on()
        if fails:
            raise ToolError("nobody there")
        return "sent"

    @tool
    async def visit(self, state: Desk, browser: Page, address: str) -> list[str]:
        """Go to a page."""
        self.given.append(browser)
        browser.visited.append(address)
        if address == "nowhere":
            raise ToolError("there is no such page")
        if address == "crash":
            raise OSError
        return browser.visited

    @tool
    def browse(self, browser: Page, address: str) -> list[str]:
        """Go to a page, on a thread."""
        browser.visited.append(address)
        return browser.visited

    @tool(effect="read")
    async def look(self, browser: Page) -> list[str]:
        """What was visited."""
        self.given.append(browser)
        await asyncio.sleep(0)
        return browser.visited

    @tool(effect="read")
    def ask(self, client: list[str], what: str) -> int:
        """Ask the client."""
        client.append(what)
        self.given.append(client)
        return len(client)

    @tool
    def note(self, state: Desk, text: str) -> None:
        """Use nothing but the state."""
        state.notes.append(text)

    def verify(self, state: Desk, folder: Path, episode: Episode) -> float:
        return float(len(list(folder.iterdir())))


class SurfEnvironment(Environment[Desk]):
    """Has a browser, and nothing else that reaches outside."""

    resources = {"browser": Browser()}

    @tool
    def visit(self, state: Desk, browser: Page, address: str) -> list[str]:
        """Go to a page, and write much about it."""
        browser.visited.append(address)
        state.notes.append("x" * 20_000)
        return browser.visited

    @tool(effect="read")
    def look(self, browser: Page) -> list[str]:
        """What was visited."""
        return browser.visited

    @tool
    def note(self, state: Desk) -> None:
        """Write much."""
        state.notes.append("x" * 20_000)

    def verify(self, browser: Page) -> float:
        return float(len(browser.visited))


class Office:
    """Sessions, and the environment that remembers what its tools were given."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.environment = DeskEnvironment()
        self.sessions = Sessions[Desk](self.environment, store, SessionLimits(**options))

    @property
    def given(self) -> Any:
        """What a tool was given last."""
        return self.environment.given[-1]


async def write(session: Session[Desk], name: str, text: str = "text") -> None:
    """Add a line to a file."""
    result = await session.call("write", {"name": name, "text": text})
    assert result.ok, result.error


async def files(session: Session[Desk]) -> dict[str, str]:
    """All files."""
    result = await session.call("files")
    assert result.ok, result.error
    found: dict[str, str] = result.output
    return found


async def write_and_hang(sessions: Sessions[Desk], session_id: str) -> None:
    """Write a file, and then another in a call that never ends."""
    session = await sessions.open(session_id)
    assert (await session.call("write", {"name": "kept", "text": "by the other"})).ok

    async def hang() -> None:
        sys.stdout.write("inside\n")
        sys.stdout.flush()
        await asyncio.Event().wait()

    environment = sessions.environment
    assert isinstance(environment, DeskEnvironment)
    environment.meanwhile = hang
    await session.call("write", {"name": "lost", "text": "by the other"})


async def main(url: str, session_id: str) -> None:
    async with open_store(url) as store:
        await write_and_hang(Sessions(DeskEnvironment(), store), session_id)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
