"""What holds on every screen: it is accessible, survives a reload and lists its keys, and a reader changes nothing."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, Request, expect

from stateroom.studio import Studio
from tests.server.conftest import Served
from tests.studio.conftest import BROWSER, OpenPage, axe, until
from tests.studio.hostile import patterns, serve, views

pytestmark = [*BROWSER, pytest.mark.more("time")]

CONTROLS = """() => [...document.querySelectorAll("main :is(button, form:not([role=search]), textarea, input)")]
  .filter((one) => !one.closest("form[role=search], [role=columnheader], .histogram"))
  .filter((one) => one.type !== "search" && one.role !== "tab" && !one.matches("[aria-pressed]"))
  .map((one) => one.innerText || one.localName)"""
"""Controls that are no tab, filter, search or order."""

READING = {"Swap", "Measure again", "Show all", "Next"}
CHANGED = {"/sessions/:id", "/sessions/:id/play", "/play", "/inbox", "/threads", "/threads/:id"}
CHANGED |= {f"/runs/:run{each}" for each in ("/sessions/:id", "/sessions/:id/play")}
"""The screens on which a person can change something."""

KEYS = ("F", "e", "p", "c", "x", "b", "v", "a", "m", "t", "1", "Control+Enter")
"""The keys that change something on some screen."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reader(house: Served, hostile_folder: Path) -> AsyncIterator[Served]:
    """The same store and runs as of `house`, for reading."""
    async with serve(hostile_folder, Studio("read", runs=hostile_folder / "runs")) as served:
        yield served


async def changing(page: Page) -> set[str]:
    """The controls of a screen that change something."""
    return {*await page.evaluate(CONTROLS)} - READING


async def shown(page: Page) -> str:
    """What a screen shows, without how long ago something was."""
    return re.sub(r"\d+ (s|min) ago|now", "", await page.locator("main").inner_text())


async def keys_of(page: Page) -> list[str]:
    """The titles of the keys that `?` lists."""
    await page.locator("main").focus()  # a field would take it
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    return await page.get_by_role("dialog").get_by_role("heading", level=3).all_inner_texts()


@pytest.mark.parametrize("pattern", patterns())
async def test_a_screen_is_accessible_and_survives_a_reload(open_page: OpenPage, house: Served, pattern: str) -> None:
    [(view, field), *_] = views(pattern).items()
    page = await open_page(view, house.url, color_scheme="light")
    await expect(page.locator("main")).to_contain_text(f"§{field}§")
    await axe(page)
    assert bool(await changing(page)) == (pattern in CHANGED)
    before = await shown(page)
    await page.emulate_media(color_scheme="dark")
    await page.reload()

    async def is_same() -> bool:
        return await shown(page) == before

    await until(is_same)
    await axe(page, "color-contrast")
    titles = await keys_of(page)
    assert titles[0] == "Everywhere"
    assert len(titles) > 1


@pytest.mark.parametrize("pattern", patterns())
async def test_a_reader_finds_nothing_to_change(
    open_page: OpenPage, house: Served, reader: Served, pattern: str
) -> None:
    [(view, field), *_] = views(pattern).items()
    page = await open_page(view, reader.url)
    sent: list[str] = []

    def note(request: Request) -> None:
        if request.method != "GET":
            sent.append(request.url)

    page.on("request", note)
    said = "Studio is read-only." if pattern.endswith("/play") else f"§{field}§"
    await expect(page.locator("main")).to_contain_text(said)
    assert await changing(page) == set()
    for key in KEYS:
        await page.keyboard.press(key)
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert {"Session", "Answer", "Thread", "Play"} & {*await keys_of(page)} == set()
    await expect(page.get_by_role("dialog")).not_to_contain_text("New thread")
    assert sent == []


OUT_OF_SIGHT = """() => {
  const wide = document.documentElement.scrollWidth > innerWidth ? ["the page"] : [];
  const cut = [...document.querySelectorAll("main :is(table, [role=tab], [role=tablist])")].filter((one) => {
    const { left, right } = one.getBoundingClientRect();
    return !one.closest(".matrix") && (left < 0 || right > innerWidth); // which scrolls sideways, as it is a picture
  });
  return [...wide, ...cut.map((one) => one.outerHTML.slice(0, 200))];
}"""


@pytest.mark.parametrize("pattern", patterns())
async def test_a_small_screen_shows_all(open_page: OpenPage, house: Served, pattern: str) -> None:
    for view, field in views(pattern).items():
        page = await open_page(view, house.url, viewport={"width": 390, "height": 844})
        await expect(page.locator("main")).to_contain_text(f"§{field}§")
        assert await page.evaluate(OUT_OF_SIGHT) == []


FAULT = {"error": {"code": "internal_error", "message": "the disk is full"}}


@pytest.mark.parametrize("pattern", patterns())
async def test_a_fault_shows_the_servers_message_and_a_retry(
    open_page: OpenPage, house: Served, problems: list[str], pattern: str
) -> None:
    [(view, field), *_] = views(pattern).items()
    page = await open_page("/studio/nowhere", house.url)
    await page.route("**/studio/api/**", lambda route: route.fulfill(status=500, json=FAULT))
    await page.goto(view)
    alert = page.get_by_role("alert").filter(has_text="the disk is full").filter(has=page.get_by_text("internal_error"))
    await expect(alert.get_by_role("button", name="Retry").first).to_be_visible()
    await page.unroute_all()

    async def is_shown() -> bool:
        await page.evaluate("() => document.querySelectorAll('[role=alert] button').forEach((one) => one.click())")
        return f"§{field}§" in await page.locator("main").inner_text()

    await until(is_shown)
    await expect(page.get_by_role("alert")).to_have_count(0)
    assert all("500" in each for each in problems)
    problems.clear()
