"""Threads as chats in a real browser."""

from pathlib import Path

from playwright.async_api import Page, expect

from stateroom.agent import Threads
from tests.server.conftest import Served
from tests.studio.conftest import BROWSER, OpenPage, OpenStudio, named, until
from tests.studio.test_sessions import MODELS, act, log, seed

pytestmark = BROWSER


async def new_thread(served: Served) -> str:
    return str((await act(served, "/sessions", environment="thread", row={}))["id"])


async def said(page: Page, *texts: str) -> None:
    """Wait until just these texts are in the conversation."""
    await expect(page.locator(".turn:not(details) > pre")).to_have_text([*texts])


async def test_a_new_thread_is_answered_and_a_reload_shows_the_same(
    open_studio: OpenStudio, open_page: OpenPage
) -> None:
    served = await open_studio(model=f"{MODELS}:Echo")
    page = await open_page("/studio/threads", served.url)
    await expect(page.get_by_text("There are no threads yet.")).to_be_visible()
    await page.get_by_role("button", name="New thread").click()
    await page.get_by_label("Name", exact=True).fill("ada")
    await page.get_by_role("button", name="Save").click()
    await page.wait_for_url("**/studio/threads/*")
    field = page.get_by_label("Message")
    await expect(field).to_be_visible()

    async def is_focused() -> bool:
        await page.keyboard.press("m")
        return bool(await field.evaluate("one => one === document.activeElement"))

    await until(is_focused)  # keys are bound after the field is shown
    await page.keyboard.type("Hello <b>there</b>")
    await page.keyboard.press("Control+Enter")
    await said(page, "Hello <b>there</b>", "1: Hello <b>there</b>")
    await expect(field).to_have_value("")
    await page.reload()
    await said(page, "Hello <b>there</b>", "1: Hello <b>there</b>")
    session = page.url.rpartition("/")[2]
    assert "ada" in [entry.get("by") for entry in await log(served, f"/sessions/{session}")]


async def test_what_is_said_elsewhere_appears_once(open_studio: OpenStudio, open_page: OpenPage) -> None:
    served = await open_studio(model=f"{MODELS}:Echo")
    thread = await new_thread(served)
    page = await open_page(f"/studio/threads/{thread}", served.url)
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    await act(served, f"/sessions/{thread}/continue", message="one")
    await said(page, "one", "1: one")
    [_, first, *_] = await log(served, f"/sessions/{thread}")
    await act(served, f"/sessions/{thread}/rewind", to=first["revision"])
    await said(page, "one")
    await page.reload()
    await said(page, "one")
    other = await new_thread(served)
    await expect(page.get_by_role("link", name=other)).to_be_visible()


async def test_a_thread_opens_at_its_end(open_studio: OpenStudio, open_page: OpenPage) -> None:
    served = await open_studio(model=f"{MODELS}:Echo")
    thread = await new_thread(served)
    threads = Threads(served.services.session_environments["thread"].sessions)
    for number in range(60):
        await threads.add(thread, f"message {number}")
    page = await open_page(f"/studio/threads/{thread}", served.url)
    await expect(page.get_by_text("message 59", exact=True)).to_be_in_viewport()


async def test_a_model_that_thinks_is_stopped_and_one_that_fails_says_why(
    open_studio: OpenStudio, open_page: OpenPage, folder: Path
) -> None:
    served = await open_studio(model=f"{MODELS}:Waits")
    page = await open_page(f"/studio/threads/{await new_thread(served)}", served.url, storage_state=named(served.url))
    await page.get_by_label("Message").fill("1")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_text("The model answers…")).to_be_visible()
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    (folder / "answer-0").touch()
    await said(page, "1")
    served = await open_studio(model=f"{MODELS}:Fails")
    page = await open_page(f"/studio/threads/{await new_thread(served)}", served.url, storage_state=named(served.url))
    await page.get_by_label("Message").fill("fail")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("alert")).to_contain_text("out of order")


async def test_sessions_with_a_conversation_are_listed_and_their_calls_unfold(
    open_studio: OpenStudio, open_page: OpenPage
) -> None:
    served = await open_studio(model=f"{MODELS}:Adds")
    session, silent = await seed(served), await seed(served)
    await act(served, f"/sessions/{session}/continue")
    page = await open_page("/studio/threads", served.url)
    await expect(page.get_by_text("There are no threads yet.")).to_be_visible()
    await page.get_by_label("Show").select_option("All conversations")
    await page.get_by_role("link", name=session).click()
    await page.wait_for_url(f"**/studio/threads/{session}?show=all")
    await expect(page.get_by_role("link", name=silent)).to_have_count(0)
    await said(page, "1 1", "Done.")
    output = page.get_by_text('"success": true')
    await expect(output.first).to_be_hidden()
    await page.get_by_text("increment_counter").first.click()
    await expect(output.first).to_be_visible()
