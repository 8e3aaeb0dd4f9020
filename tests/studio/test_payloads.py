"""What models, tools and files wrote is only text, on every screen of a real browser."""

import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Locator, Page, expect

from tests.server.conftest import Served
from tests.studio.conftest import BROWSER, OpenPage
from tests.studio.hostile import FIELDS, IMAGE, patterns, views

pytestmark = [*BROWSER, pytest.mark.more("time")]

FAULTS = r"""() => {
  const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/u;
  const faults = window.pwned ? ["something was executed"] : [];
  if (Object.keys(Object.prototype).length) faults.push("all objects have a new property");
  if (hidden.test(document.title)) faults.push(`title: ${document.title}`);
  for (const one of document.body.querySelectorAll("*")) {
    if (one.matches("img, iframe, object, embed, script, style, svg, base")) faults.push(one.outerHTML);
    for (const { name, value } of one.attributes) {
      const isCode = name.startsWith("on") || name === "srcdoc";
      const isLink = /href|src|action/.test(name);
      const isHidden = hidden.test(value) && name !== "value"; // what a person edits is as it is
      if (isCode || isHidden || (isLink && !/^(\/studio\/|#main$|https?:)/.test(value))) faults.push(one.outerHTML);
    }
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) if (hidden.test(texts.currentNode.data)) faults.push(`text: ${texts.currentNode.data}`);
  return faults.map((fault) => fault.slice(0, 200));
}"""

UNFOLD = """() => {
  for (const one of document.querySelectorAll("details")) one.open = true;
  const closed = [...document.querySelectorAll(".twisty")].filter((one) => one.textContent.includes("▸"));
  for (const one of closed.slice(0, 20)) one.click();
  return closed.length;
}"""

DIALOGS = ("Show all", "Edit and fork", "Verify", "Checkpoint", "Continue with a model", "Keys")


async def texts_of(page: Page) -> str:
    """All that a page shows, after a check that it is text."""
    assert await page.evaluate(FAULTS) == []
    return await page.locator("body").inner_text()


async def unfold(page: Page) -> None:
    """Open what folds, until nothing is closed."""
    for _ in range(5):
        if not await page.evaluate(UNFOLD):
            break


async def texts_of_tabs(page: Page) -> AsyncIterator[str]:
    """What a page shows in each of its tabs, if it has some."""
    tabs: list[Locator | None] = [*await page.get_by_role("tab").all()]
    for tab in tabs or [None]:
        if tab:
            await tab.click()
            await expect(page.get_by_role("tabpanel").get_by_text("Loading…")).to_have_count(0)
        yield await texts_of(page)
        await unfold(page)
        yield await texts_of(page)


async def texts_of_dialogs(page: Page) -> AsyncIterator[str]:
    for name in DIALOGS:
        button = page.get_by_role("button", name=name, exact=True)
        if await button.count():
            await button.first.click()
            await expect(page.get_by_role("dialog")).to_be_visible()
            yield await texts_of(page)
            await page.keyboard.press("Escape")
            await expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize("pattern", patterns())
async def test_a_payload_is_only_text(open_page: OpenPage, house: Served, pattern: str) -> None:
    texts = ""
    for view, field in views(pattern).items():
        page = await open_page(view, house.url)
        await expect(page.locator("main")).to_contain_text(f"§{field}§")
        texts += "".join([text async for text in texts_of_tabs(page)])
    texts += "".join([text async for text in texts_of_dialogs(page)])
    assert {*FIELDS[pattern].split()} - {*re.findall("§([a-z]+)§", texts)} == set()
    assert IMAGE in texts
    assert "⟨U+202E⟩" in texts
