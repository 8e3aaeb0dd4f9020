"""A server with Studio, and a real browser that looks at it.

A module of browser tests has `pytestmark = BROWSER`: its tests share a browser and an event loop, in which the server
runs too, so that a test can use the server's own store.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright, expect

from stateroom import Environment
from stateroom.cli import main
from stateroom.gallery import CounterEnvironment
from stateroom.server import Application, ApplicationOptions
from stateroom.studio import Studio
from tests.more import find_chromium
from tests.patience import PATIENCE
from tests.server.conftest import SECRET, Served, launch, running, until  # noqa: F401 - tests here use them too
from tests.studio import hostile
from tests.studio.effects import EFFECTS

expect.set_options(timeout=PATIENCE * 1000)

BROWSER = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

AXE = Path(__file__).parents[2] / ".venv" / "node" / "node_modules" / "axe-core" / "axe.min.js"

OpenStudio = Callable[..., Awaitable[Served]]
OpenPage = Callable[..., Awaitable[Page]]


@pytest_asyncio.fixture(loop_scope="session")
async def open_studio() -> AsyncIterator[OpenStudio]:
    """Serves environments, by default the counter, with Studio: `open_studio(studio=Studio("read"), store=url)`."""
    async with AsyncExitStack() as stack:

        async def start(
            *environments: Environment[Any, Any],
            studio: Studio | None = None,
            now: Callable[[], float] = time.time,
            **options: Any,
        ) -> Served:
            served = environments or (CounterEnvironment(),)
            made = ApplicationOptions((SECRET,), **options)
            app = Application(served, made, extensions=(studio or Studio(),), now=now)
            return await stack.enter_async_context(running(app))

        yield start


@pytest_asyncio.fixture(loop_scope="session")
async def studio(open_studio: OpenStudio) -> Served:
    """The counter with Studio, in memory, where everything is allowed."""
    return await open_studio()


def stateroom(*arguments: str) -> None:
    """Run a command in this process; on a thread, where there is an event loop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["stateroom", *arguments])
        with pytest.raises(SystemExit):
            main()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a model says that it was asked, and waits to be let on."""
    monkeypatch.setenv("STATEROOM_TEST_FOLDER", str(tmp_path))
    return tmp_path


@pytest_asyncio.fixture(loop_scope="session")
async def runs(tmp_path: Path) -> Path:
    """A folder with a run of the counter, and its sessions."""
    await asyncio.to_thread(stateroom, "run", "counter", "--limit", "2", "--output", f"{tmp_path}/a/first.jsonl")
    return tmp_path


@pytest.fixture(scope="session")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `house`."""
    return tmp_path_factory.mktemp("house")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def house(hostile_folder: Path) -> AsyncIterator[Served]:
    """A server whose store and runs are full of payloads: every screen of `hostile.views` shows some."""
    async with hostile.serve(hostile_folder, Studio(runs=hostile_folder / "runs")) as served:
        await hostile.fill(served, hostile_folder / "runs")
        yield served


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium())
        yield browser
        await browser.close()


@pytest.fixture
def problems() -> list[str]:
    """What pages reported that they should not. A test that provokes some empties it."""
    return []


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(browser: Browser, studio: Served, problems: list[str], tmp_path: Path) -> AsyncIterator[OpenPage]:
    """Opens a tab with a storage of its own, by path and with Playwright's options, such as `color_scheme="dark"`.

    It is a tab of `studio`, or of another server by its `url`.

    At the end the test fails if a page logged an error, broke its content security policy, or asked another origin for
    something. Pages are closed before servers stop and `tmp_path` is removed.
    """
    async with AsyncExitStack() as stack:

        async def start(path: str = "/studio/", url: str = studio.url, **options: Any) -> Page:
            context = await browser.new_context(base_url=url, **options)
            stack.push_async_callback(context.close)
            context.set_default_timeout(PATIENCE * 1000)
            page = await context.new_page()
            watch(page, url, problems)
            press_when_bound(page)
            await page.goto(path)
            return page

        yield start
    assert problems == []


@pytest_asyncio.fixture(loop_scope="session")
async def page(open_page: OpenPage) -> Page:
    """A tab with Studio."""
    return await open_page()


def named(url: str, name: str = "ada") -> dict[str, Any]:
    """The storage of a browser whose person has given a name before, for `storage_state`."""
    known = [{"name": "stateroom-studio-name", "value": name}]
    return {"cookies": [], "origins": [{"origin": url, "localStorage": known}]}


@pytest.fixture
def storage(studio: Served) -> dict[str, Any]:
    """The storage of a person who has given a name to `studio`."""
    return named(studio.url)


async def button(page: Page, name: str) -> None:
    """Click a button."""
    await page.get_by_role("button", name=name, exact=True).click()


def press_when_bound(page: Page) -> None:
    """Let a page's keyboard wait for the effects of what is shown before each key."""
    press = page.keyboard.press

    async def press_later(key: str, **options: Any) -> None:
        await page.evaluate(EFFECTS)
        await press(key, **options)

    page.keyboard.press = press_later  # type: ignore[method-assign]


def watch(page: Page, origin: str, problems: list[str]) -> None:
    """Note what a page should not do. Chromium logs what a content security policy refuses as an error."""

    def note_error(line: ConsoleMessage) -> None:
        if line.type == "error":
            problems.append(f"{line.text} {line.location['url']}")

    def note_stranger(request: Request) -> None:
        if not is_own(request.url, origin):
            problems.append(f"elsewhere: {request.url}")

    page.on("console", note_error)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", note_stranger)


def is_own(url: str, origin: str) -> bool:
    """Whether a page may ask for this."""
    return url.startswith((f"{origin}/", "data:"))


async def axe(page: Page, *rules: str) -> None:
    """Fail if axe-core finds a serious or critical violation of accessibility on a page, by all rules or some."""
    if not AXE.exists():
        pytest.skip("axe-core is not there: make test installs it where npm is")
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE.read_text())
    found = await page.evaluate("rules => axe.run(rules.length ? { runOnly: rules } : {})", rules)
    serious = [
        f"{each['id']}: {each['help']}: {node['html']}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
    assert serious == []
