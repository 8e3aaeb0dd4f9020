"""The difference of two revisions, or of two sessions, in a real browser."""

import json
from collections.abc import Iterable
from typing import Any

import pytest_asyncio
from playwright.async_api import Page, expect

from stateroom import Session
from stateroom.errors import format_path
from stateroom.state import Difference, diff
from tests.server.conftest import Served
from tests.server.test_admin_log import NotesEnvironment
from tests.studio.conftest import BROWSER, OpenPage, OpenStudio, until

pytestmark = BROWSER


SHOWN = """[...document.querySelectorAll(".differences > li")].map((one) => [
    one.querySelector("code").innerText,
    one.querySelector(".badge").innerText,
    [...one.querySelectorAll(":scope > :is(del, ins)")].map((part) => part.innerText),
])"""

STORY = "It was a dark and stormy night, and the rain fell in torrents, except at occasional intervals."


@pytest_asyncio.fixture(loop_scope="session")
async def served(open_studio: OpenStudio) -> Served:
    return await open_studio(NotesEnvironment())


@pytest_asyncio.fixture(loop_scope="session")
async def session(served: Served) -> Session[Any]:
    made = await served.services.environments["notes"].sessions.seed({})
    for title, text in (("a", "one"), ("story", STORY), ("a", "two"), ("story", STORY.replace("dark", "bright"))):
        await made.call("write", {"title": title, "text": text})
    return made


async def shows(page: Page, differences: Iterable[Difference]) -> None:
    """Wait until the page shows these differences: places, kinds, and what was and is there."""
    wanted = [as_shown(one) for one in differences]
    assert wanted

    async def is_there() -> bool:
        return await page.evaluate(SHOWN) == wanted

    await until(is_there)


def as_shown(difference: Difference) -> list[Any]:
    place, kind, before, after = difference
    told = ([] if kind == "new" else [before]) + ([] if kind == "gone" else [after])
    path = format_path(place).replace("'", '"')
    return [path, kind, [one if isinstance(one, str) and len(one) > 40 else json.dumps(one) for one in told]]


async def test_it_equals_the_difference_of_the_session(
    open_page: OpenPage, served: Served, session: Session[Any]
) -> None:
    page = await open_page(f"/studio/sessions/{session.id}/compare?from=2&to=4", url=served.url)
    await shows(page, await session.diff(2, 4))
    await page.get_by_label("To revision").fill("3")
    await page.keyboard.press("Enter")
    await shows(page, await session.diff(2, 3))
    await page.keyboard.press("Tab")
    await page.get_by_role("button", name="Swap").click()
    await shows(page, await session.diff(3, 2))
    await page.reload()
    await shows(page, await session.diff(3, 2))
    await page.goto(f"/studio/sessions/{session.id}/compare?from=2&to=2")
    await expect(page.get_by_text("Both states are the same.")).to_be_visible()


async def test_two_sessions_are_compared(open_page: OpenPage, served: Served, session: Session[Any]) -> None:
    fork = await session.fork(at=2)
    await fork.call("write", {"title": "b", "text": "three"})
    page = await open_page(f"/studio/sessions/{session.id}/compare?from=4&to=3&with={fork.id}", url=served.url)
    states = [
        (await served.get(f"/studio/api/sessions/{one.id}/state?at={at}"))[1]["state"]
        for one, at in ((session, 4), (fork, 3))
    ]
    await shows(page, diff(*states))
    await page.keyboard.press("x")
    await page.wait_for_url(f"**/sessions/{fork.id}/compare?from=3&to=4&with={session.id}")
    await shows(page, diff(*reversed(states)))


async def test_long_texts_are_compared_by_words(open_page: OpenPage, served: Served, session: Session[Any]) -> None:
    page = await open_page(f"/studio/sessions/{session.id}/compare?from=4&to=5", url=served.url)
    story = page.get_by_role("listitem").filter(has_text="stormy")
    await expect(story.locator("del")).to_have_text("dark")
    await expect(story.locator("ins")).to_have_text("bright")
