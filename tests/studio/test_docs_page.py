"""The page at `/docs` in a browser: Swagger UI on the server's own document, from the server's own files."""

from playwright.async_api import Locator, Page, expect

from tests.server.test_description import FarmEnvironment
from tests.studio.conftest import BROWSER, OpenPage, OpenStudio

pytestmark = BROWSER


def operation_of(page: Page, path: str) -> Locator:
    return page.locator(f'.opblock:has([data-path="{path}"])')


async def test_it_shows_every_tool_with_what_it_takes(open_studio: OpenStudio, open_page: OpenPage) -> None:
    served = await open_studio(FarmEnvironment())
    page = await open_page("/docs", served.url)
    await expect(page.get_by_role("heading", name="farm", level=1)).to_be_visible()
    for name in ("pet", "follow", "call", "stack", "rest"):
        await expect(operation_of(page, f"/{name}")).to_be_visible()
    tool = operation_of(page, "/pet")
    await tool.locator(".opblock-summary-control").click()
    await expect(tool.get_by_text("x-stateroom-effect")).to_be_visible()
    await expect(tool.get_by_text("Idempotency-Key", exact=True)).to_be_visible()


async def test_it_sends_requests(open_studio: OpenStudio, open_page: OpenPage) -> None:
    served = await open_studio()
    page = await open_page("/docs", served.url)
    operation = operation_of(page, "/reverify_mode")
    await operation.locator(".opblock-summary-control").click()
    await operation.get_by_role("button", name="Try it out").click()
    await operation.get_by_role("button", name="Execute").click()
    await expect(operation.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
    await expect(operation.locator(".live-responses-table")).to_contain_text("unsupported")


async def test_what_authors_wrote_runs_nothing(open_studio: OpenStudio, open_page: OpenPage) -> None:
    served = await open_studio(FarmEnvironment())
    page = await open_page("/docs", served.url)
    opened: list[str] = []
    page.on("dialog", lambda dialog: opened.append(dialog.message))
    for operation in await page.locator("[id^=operations-farm] .opblock-summary-control").all():
        await operation.click()
    await expect(page.get_by_text("Pet an animal").first).to_be_visible()
    assert await page.locator("script:not([src])").count() == 0
    assert opened == []
