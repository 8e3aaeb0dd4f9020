"""The list of sessions in a real browser."""

import time

import pytest
from playwright.async_api import Page, expect

from stateroom.gallery import CounterEnvironment, RefundEnvironment
from stateroom.store import Head
from tests.server.conftest import Served
from tests.studio.conftest import BROWSER, OpenPage, OpenStudio
from tests.studio.test_sessions import seed

pytestmark = BROWSER

MANY = 100_000


async def listening(page: Page) -> None:
    """Wait until new sessions are reported to the page."""
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()


async def test_a_session_that_is_seeded_elsewhere_appears(page: Page, studio: Served) -> None:
    await expect(page.get_by_text("There are no sessions yet.")).to_be_visible()
    await listening(page)
    for _ in range(2):
        await expect(page.get_by_role("link", name=await seed(studio))).to_be_visible()
    await expect(page.get_by_role("status").filter(has_text="2 sessions")).to_be_visible()


async def test_the_url_holds_the_filters(page: Page, studio: Served) -> None:
    first, second = await seed(studio), await seed(studio)
    await page.get_by_label("Id prefix").fill(first)
    await expect(page.get_by_role("link", name=second)).to_have_count(0)
    await page.get_by_label("Status").select_option("live")
    await page.wait_for_url(f"**/studio/sessions?prefix={first}&status=live")
    await page.reload()
    await expect(page.get_by_role("link", name=first)).to_be_visible()
    await expect(page.get_by_label("Status")).to_have_value("live")
    await expect(page.get_by_role("status").filter(has_text="1 session")).to_be_visible()
    await page.go_back()
    await expect(page.get_by_label("Status")).to_have_value("")
    await page.get_by_label("Status").select_option("closed")
    await expect(page.get_by_text("No sessions match these filters.")).to_be_visible()


async def test_a_row_follows_its_session(page: Page, studio: Served) -> None:
    session = await seed(studio)
    row = page.get_by_role("row").filter(has_text=session)
    await expect(row.locator(".revision")).to_have_text("1")
    await listening(page)
    opened = await studio.services.environments["counter"].sessions.open(session)
    await opened.call("increment_counter", {"count": 2})
    await expect(row.locator(".revision")).to_have_text("2")
    await opened.verify()
    await expect(row.locator(".reward")).to_have_text("1")
    await opened.close()
    await expect(row.locator(".status")).to_have_text("closed")


async def test_sessions_are_filtered_by_environment_owner_and_reward(
    open_studio: OpenStudio, open_page: OpenPage
) -> None:
    served = await open_studio(CounterEnvironment(), RefundEnvironment())
    sessions = served.services.environments["counter"].sessions
    poor, rich = [await sessions.seed({"initial_count": 3, "expected_count": each}, owner="ada") for each in (5, 3)]
    for each in (poor, rich):
        await each.verify()
    other = await sessions.seed({"initial_count": 3, "expected_count": 5}, owner="bob")
    thread = await served.services.session_environments["thread"].sessions.seed({})
    page = await open_page("/studio/", served.url)
    names = page.get_by_role("grid").get_by_role("link")
    await expect(names).to_have_text([thread.id, other.id, rich.id, poor.id])
    await expect(page.get_by_label("Environment").get_by_role("option")).to_have_text(
        ["any", "counter", "refund", "thread"]
    )
    await page.get_by_label("Environment").select_option("counter")
    await expect(names).to_have_text([other.id, rich.id, poor.id])
    await page.get_by_label("Owner").fill("ada")
    await expect(names).to_have_text([rich.id, poor.id])
    await page.get_by_label("Reward from").fill("0.5")
    await expect(names).to_have_text([rich.id])
    await page.wait_for_url("**?environment=counter&owner=ada&min_reward=0.5")
    await page.reload()
    await expect(names).to_have_text([rich.id])
    await page.get_by_label("Reward from").fill("")
    await page.get_by_label("Reward to").fill("0.5")
    await expect(names).to_have_text([poor.id])
    await page.get_by_label("Environment").select_option("refund")
    await expect(page.get_by_text("No sessions match these filters.")).to_be_visible()


async def test_the_keyboard_reaches_every_session(open_page: OpenPage, studio: Served) -> None:
    older, newer = await seed(studio), await seed(studio)
    page = await open_page()
    await expect(page.get_by_role("row", selected=True)).to_contain_text(newer)
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_contain_text("Next session")
    await page.keyboard.press("Escape")
    await page.keyboard.press("j")
    await expect(page.get_by_role("row", selected=True)).to_contain_text(older)
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/studio/sessions/{older}")


@pytest.mark.more("time")
async def test_a_list_of_many_sessions_has_few_rows_in_the_page(open_page: OpenPage, studio: Served) -> None:
    now = time.time()
    for number in range(MANY):
        await studio.services.store.create(Head(f"s{number:06}", "counter", "", now - number, now + 1e6, 0))
    page = await open_page()
    await page.get_by_role("grid").focus()
    await page.keyboard.press("End")
    await expect(page.get_by_role("row", selected=True)).to_contain_text(f"s{MANY - 1:06}")
    assert await page.get_by_role("row").count() <= 200
    await page.keyboard.press("Home")
    await expect(page.get_by_role("row", selected=True)).to_contain_text("s000000")
    assert await page.get_by_role("row").count() <= 200
