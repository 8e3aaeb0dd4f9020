"""The page in a real browser: what it loads, and what it cannot do."""

from urllib.parse import quote

import pytest
from playwright.async_api import Page, expect

from stateroom.studio import Studio
from tests.server.conftest import Served
from tests.studio.conftest import BROWSER, OpenPage, OpenStudio, button

pytestmark = BROWSER

TOKEN = "good for tests: 100%&+"
KEPT = "[{...sessionStorage}, {...localStorage}, document.cookie, location.hash]"


async def test_the_page_loads_with_its_own_files_only(page: Page) -> None:
    await page.get_by_role("heading", name="Sessions").wait_for()
    assert await page.title() == "Sessions · Stateroom Studio"


async def test_a_deep_path_is_the_same_page(open_page: OpenPage) -> None:
    page = await open_page("/studio/nowhere/some%2Fid?at=5")
    await page.get_by_text("There is no view at /nowhere/some%2Fid.").wait_for()


async def test_another_origin_is_refused_and_noticed(page: Page, studio: Served, problems: list[str]) -> None:
    port = int(studio.url.rpartition(":")[2])
    refused = await page.evaluate(f"fetch('http://localhost:{port}/health').then(() => false, () => true)")
    assert refused
    assert any("Content Security Policy" in each for each in problems)
    problems.clear()


@pytest.mark.parametrize(
    "change",
    [
        "document.body.innerHTML = '<b>x</b>'",
        "document.body.setAttribute('onclick', 'alert(1)')",
        "document.createElement('script').textContent = 'alert(1)'",
    ],
)
async def test_text_becomes_neither_html_nor_script(page: Page, problems: list[str], change: str) -> None:
    assert await page.evaluate(f"() => {{ try {{ {change} }} catch (error) {{ return error.name }} }}") == "TypeError"
    assert any("Trusted" in each for each in problems)
    problems.clear()


async def test_a_token_goes_from_the_url_to_its_tab_alone(
    open_studio: OpenStudio, open_page: OpenPage, problems: list[str]
) -> None:
    served = await open_studio(studio=Studio(token=TOKEN))
    page = await open_page(f"/studio/sessions#token={quote(TOKEN, safe='')}", served.url)
    for _ in range(2):
        await expect(page.get_by_text("There are no sessions yet.")).to_be_visible()
        assert await page.evaluate(KEPT) == [{"stateroom-studio-token": TOKEN}, {}, "", ""]
        assert await page.context.cookies() == []
        async with page.expect_request("**/studio/api/sessions?*") as asked:
            await page.reload()
        assert (await asked.value).headers["authorization"] == f"Bearer {TOKEN}"
    other = await page.context.new_page()
    await other.goto("/studio/sessions")
    await expect(other.get_by_role("dialog", name="Token")).to_be_visible()
    assert problems == []


async def test_a_wrong_token_makes_the_page_ask(
    open_studio: OpenStudio, open_page: OpenPage, problems: list[str]
) -> None:
    served = await open_studio(studio=Studio(token=TOKEN))
    page = await open_page("/studio/sessions#token=wrong", served.url)
    await page.get_by_role("textbox", name="Token").fill(TOKEN)
    await button(page, "Save")
    await expect(page.get_by_text("There are no sessions yet.")).to_be_visible()
    assert all("401" in each for each in problems)
    problems.clear()


async def test_a_token_that_is_pasted_into_an_open_tab_is_taken(
    open_studio: OpenStudio, open_page: OpenPage, problems: list[str]
) -> None:
    served = await open_studio(studio=Studio(token=TOKEN))
    page = await open_page("/studio/sessions", served.url)
    await expect(page.get_by_role("dialog", name="Token")).to_be_visible()
    await page.goto(f"/studio/sessions#token={quote(TOKEN, safe='')}")
    await expect(page.get_by_text("There are no sessions yet.")).to_be_visible()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert await page.evaluate(KEPT) == [{"stateroom-studio-token": TOKEN}, {}, "", ""]
    assert all("401" in each for each in problems)
    problems.clear()
