"""Studio's page in the system's Chromium: how soon it shows what, and what it keeps in memory."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from playwright.async_api import Browser, Page, async_playwright

from benchmarks.office import TASK
from benchmarks.rollouts import write_run
from benchmarks.studio_process import serving
from benchmarks.timing import Figure, NotInstalled
from stateroom import Sessions, open_store
from stateroom.agent import ThreadEnvironment, Threads
from stateroom.gallery import CounterEnvironment, OfficeEnvironment
from stateroom.rollout import RunFiles
from stateroom.store import Head
from tests.more import find_chromium
from tests.studio.effects import EFFECTS

SESSIONS, REVISIONS = 100_000, 10_000
ROUNDS = 7
TAIL = float(os.environ.get("STATEROOM_TAIL_MINUTES", "1"))
"""Minutes for which a log is followed."""
PACE = 0.05
"""Seconds between two commits of the log that is followed."""

TASKS, REPEATS = 500, 8
"""Of the run that is opened."""
MESSAGES = 200
"""Of the thread that is opened."""
SETTLED = 1.0
"""Seconds after which a screen has done all that it does by itself."""

MODEL = f"{Path(__file__).with_name('studio_process.py')}:Slow"

ROWS = ".sessions .row"

START = """
    localStorage.setItem("stateroom-studio-name", "bench");
    window.longest = 0;
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
    }).observe({ type: "longtask", buffered: true });
"""

# Milliseconds until a selector, with a text if one is given, is in the page and drawn.
SHOWN = """
    ([selector, text]) => new Promise((done, fail) => {
        const start = performance.now();
        const has = (one) => one.textContent.replaceAll(",", "").includes(text);
        const look = () => {
            if ([...document.querySelectorAll(selector)].some(has)) {
                requestAnimationFrame(() => done(performance.now() - (window.asked ?? 0)));
            } else if (performance.now() - start > 20000) fail(`there is no ${selector} with ${text}`);
            else requestAnimationFrame(look);
        };
        look();
    })
"""


async def studio() -> list[Figure]:
    """Studio's page in the system's Chromium, on a store with 100,000 sessions.

    The limits are durations that a person notices, and the ratio is that of the measured median to the limit. The
    browser shares the cores with the server.
    """
    with tempfile.TemporaryDirectory() as folder:
        url, runs = f"sqlite:///{folder}/rooms.db", Path(folder) / "runs"
        stored = await _fill(url)
        runs.mkdir()
        write_run(RunFiles(runs / "some.jsonl"), TASKS, REPEATS)
        arguments = ("counter", "office", "--store", url, "--runs", str(runs), "--model", MODEL)
        async with serving(*arguments) as root, _chromium() as browser, open_store(url) as store:
            bench = _Bench(browser, root)
            first = f"{root}/studio/sessions"
            log = f"{root}/studio/sessions/{stored.counter}"
            sessions = Sessions(CounterEnvironment(), store)
            figures = [
                await bench.milliseconds("first screen, cold", 500, lambda: bench.opened(first, ROWS, cold=True)),
                await bench.milliseconds("first screen, warm", 200, lambda: bench.opened(first, ROWS)),
                await bench.milliseconds(
                    f"log of {REVISIONS:,} revisions: open", 400, lambda: bench.opened(log, ".entries .row")
                ),
                *await bench.log(log),
                *await bench.tree(f"{root}/studio/sessions/{stored.office}?tab=state"),
                *await _live(bench, sessions),
                await bench.longest_task(stored),
                *await _tail(bench, sessions),
            ]
            await bench.close()
            return figures


class _Stored(NamedTuple):
    """The ids of sessions by what they are."""

    counter: str
    office: str
    thread: str


async def _fill(url: str) -> _Stored:
    """A store with 100,000 sessions, one of them with a long log, one of the office, a thread, and a question."""
    async with open_store(url) as store:
        now = time.time()
        for start in range(0, SESSIONS, 1000):
            numbers = range(start, start + 1000)
            heads = (Head(f"s{number:06}", "counter", "", now - number, now + 1e6, 0) for number in numbers)
            await asyncio.gather(*map(store.create, heads))
        sessions = Sessions(CounterEnvironment(), store)
        counter = await sessions.seed({"initial_count": 0, "expected_count": REVISIONS})
        for _ in range(REVISIONS - 1):
            await counter.call("increment_counter", {"count": 1})
        office = await Sessions(OfficeEnvironment(), store).seed(TASK)
        asking = (await sessions.seed({"initial_count": 0, "expected_count": 1})).agent
        for event in ("new_task", "plan_ready", "needs_input"):
            await asking.move(event)
        threads = Threads(Sessions(ThreadEnvironment(), store))
        thread = await threads.create()
        for number in range(MESSAGES):
            await threads.add(thread.id, f"message {number}")
        return _Stored(counter.id, office.id, thread.id)


class _Bench:
    """A browser, and the longest task that its pages had."""

    def __init__(self, browser: Browser, root: str) -> None:
        self.browser = browser
        self.root = root
        self.longest = 0.0
        self.slowest = ""
        """The screen that had the longest task."""
        self._warm: Page | None = None

    async def milliseconds(self, what: str, bar: float, measure: Callable[[], Awaitable[float]]) -> Figure:
        taken = median([await measure() for _ in range(ROUNDS)])
        return Figure(f"Studio: {what}", taken / bar, 1, "at most", f"{taken:.0f} ms / {bar:.0f} ms")

    async def page(self, *, cold: bool = False) -> Page:
        """A page with an empty cache, or the one that was used before."""
        if cold or self._warm is None:
            page = await (await self.browser.new_context(viewport={"width": 1280, "height": 800})).new_page()
            await page.add_init_script(START)
            if cold:
                return page
            self._warm = page
        return self._warm

    async def opened(self, url: str, selector: str, *, cold: bool = False) -> float:
        """Milliseconds from the start of a navigation until something is shown."""
        page = await self.page(cold=cold)
        await page.goto(url, wait_until="commit")
        taken: float = await page.evaluate(SHOWN, [selector, ""])
        await self._note(page)
        if cold:
            await page.context.close()
        return taken

    async def acted(self, page: Page, action: Callable[[], Awaitable[object]], selector: str, text: str) -> float:
        """Milliseconds from before an action until something is shown."""
        await page.evaluate("() => { window.asked = performance.now(); }")
        await action()
        taken: float = await page.evaluate(SHOWN, [selector, text])
        await self._note(page)
        return taken

    async def log(self, url: str) -> list[Figure]:
        page = await self.page()
        await self.opened(url, ".entries .row")
        places = iter(range(500, REVISIONS, 571))

        async def jump() -> float:
            to = next(places)
            await page.evaluate(EFFECTS)
            await page.keyboard.type(f"g{to}")
            return await self.acted(page, lambda: page.keyboard.press("Enter"), ".row[aria-selected=true]", f"{to}")

        async def state() -> float:
            await page.get_by_role("tab", name="Changes").click()
            return await self.acted(page, page.get_by_role("tab", name="State").click, ".tree .row", "value")

        return [
            await self.milliseconds(f"log of {REVISIONS:,} revisions: jump", 150, jump),
            await self.milliseconds(f"log of {REVISIONS:,} revisions: state", 200, state),
        ]

    async def tree(self, url: str) -> list[Figure]:
        figure = await self.milliseconds("the office's state as a tree", 300, lambda: self.opened(url, ".tree .row"))
        page = await self.page()
        nodes = await page.locator(".tree *").count()
        return [figure, Figure("Studio: nodes of that tree", nodes / 500, 1, "at most", f"{nodes} / 500")]

    async def longest_task(self, stored: _Stored) -> Figure:
        """The longest task so far, and of every other screen."""
        session = f"/sessions/{stored.counter}"
        screens = {
            "/runs": ".runs .row",
            "/runs/some": ".episodes .row",
            "/runs/some?tab=tasks": ".matrix .cell",
            "/runs/some?tab=metrics": ".run table",
            "/runs/some/rollouts/1": ".tree .row",
            "/inbox": "article .chat",
            "/play": ".examples li",
            f"{session}/play": ".tree .row",
            f"{session}/compare": ".differences li",
            "/threads": ".threads .row",
            f"/threads/{stored.thread}": ".turn",
            "/store": ".figures",
        }
        for path, selector in screens.items():
            await self.opened(f"{self.root}/studio{path}", selector)
            await asyncio.sleep(SETTLED)
            await self._note(await self.page())
        told = f"{self.longest:.0f} ms / 100 ms, on {self.slowest}" if self.longest else "none of 50 ms or more"
        return Figure("Studio: longest task on any screen", self.longest / 100, 1, "at most", told)

    async def _note(self, page: Page) -> None:
        longest = await page.evaluate("window.longest")
        if longest > self.longest:
            self.longest, self.slowest = longest, page.url.partition("/studio")[2]

    async def close(self) -> None:
        for context in self.browser.contexts:
            await context.close()


async def _live(bench: _Bench, sessions: Sessions[Any]) -> list[Figure]:
    """From a change in another process to the screen: an entry, a new session; and from a click until a model stops."""
    page = await bench.page()
    row = {"initial_count": 0, "expected_count": 0}
    session = await sessions.seed(row)

    async def commit() -> float:
        shown = f"Revision {session.revision + 1}"
        call = partial(session.call, "increment_counter", {"count": 1})
        return await bench.acted(page, call, ".revision h2", shown)

    async def seed() -> float:
        name = f"new-{time.time_ns()}"
        return await bench.acted(page, partial(sessions.seed, row, session_id=name), ROWS, name)

    async def stop() -> float:
        asked = {**row, "responses_create_params": {"input": "Take your time."}}
        here = f"/sessions/{(await sessions.seed(asked)).id}"
        started = await page.request.post(f"{bench.root}/studio/api{here}/continue", data={"by": "bench"})
        assert started.ok, await started.text()
        await bench.opened(f"{bench.root}/studio{here}", "[role=toolbar] .danger")
        await page.evaluate(EFFECTS)
        press = partial(page.keyboard.press, "x")
        return await bench.acted(page, press, "[role=toolbar] button", "Continue with a model")

    async def live(path: str) -> None:
        await page.goto(f"{bench.root}/studio{path}")
        await page.get_by_text("Live", exact=True).wait_for()

    await live(f"/sessions/{session.id}")
    figures = [await bench.milliseconds("from commit to screen", 600, commit)]
    await live("/sessions")
    figures.append(await bench.milliseconds("a session seeded elsewhere appears", 1000, seed))
    return [*figures, await bench.milliseconds("a model is stopped", 1000, stop)]


async def _tail(bench: _Bench, sessions: Sessions[Any]) -> list[Figure]:
    """The heap of a page that follows a log, at the end and in the middle."""
    session = await sessions.seed({"initial_count": 0, "expected_count": 0})
    page = await bench.page(cold=True)
    await page.goto(f"{bench.root}/studio/sessions/{session.id}")
    sizes: list[float] = []
    end = time.monotonic() + TAIL * 60
    while time.monotonic() < end:
        half = time.monotonic() + TAIL * 30
        while time.monotonic() < half:
            await session.call("increment_counter", {"count": 1})
            await asyncio.sleep(PACE)
        await page.evaluate(SHOWN, [".entries .row", f"{session.revision}"])  # it has kept up
        sizes.append(await _heap(page))
    await page.context.close()
    middle, last = sizes[0], sizes[-1]
    told = f"{last / 1e6:.1f} MB after {TAIL:g} min, {middle / 1e6:.1f} MB halfway"
    return [
        Figure("Studio: heap of a live tail against 80 MB", last / 80e6, 1, "at most", told),
        Figure("Studio: growth of that heap in its second half", last / middle, 1.2, "at most", told),
    ]


async def _heap(page: Page) -> float:
    """Bytes that a page's scripts use, after a collection."""
    devtools = await page.context.new_cdp_session(page)
    await devtools.send("HeapProfiler.collectGarbage")
    found: Any = await devtools.send("Runtime.getHeapUsage")
    await devtools.detach()
    return float(found["usedSize"])


@asynccontextmanager
async def _chromium() -> AsyncIterator[Browser]:
    path = find_chromium()
    if path is None:
        raise NotInstalled("Chromium", "apt-get install chromium (or name one in STATEROOM_CHROMIUM)")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path)
        try:
            yield browser
        finally:
            await browser.close()
