"""Playing by hand in a real browser."""

from typing import Any

from playwright.async_api import Page, expect

from stateroom.gallery import RefundEnvironment
from tests.server.conftest import Served
from tests.studio.conftest import BROWSER, OpenPage, OpenStudio, button, named
from tests.studio.test_actions import PostEnvironment
from tests.studio.test_sessions import act, log, seed

pytestmark = BROWSER

TOOL = "?tool=increment_counter"


async def click(page: Page, x: float, y: float) -> None:
    """Click a place of the page with the mouse, and nothing else."""
    await page.mouse.move(x, y)
    await page.mouse.click(x, y)


async def click_on(page: Page, role: Any, name: str) -> None:
    box = await page.get_by_role(role, name=name, exact=True).bounding_box()
    assert box is not None
    await click(page, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


async def test_the_counter_is_solved_by_mouse_alone(open_page: OpenPage, studio: Served, storage: Any) -> None:
    page = await open_page("/studio/play", storage_state=storage)
    rows = (await studio.get("/studio/api/environments"))[1]["environments"][0]["examples"]
    [number, *_] = [at for at, row in enumerate(rows, 1) if row["expected_count"] - row["initial_count"] == 1]
    await expect(page.get_by_role("button", name="Play example 1", exact=True)).to_be_visible()
    await click_on(page, "button", f"Play example {number}")
    await page.get_by_text("increment_counter", exact=True).click()
    field = await page.get_by_label("count").bounding_box()
    assert field is not None
    await click(page, field["x"] + field["width"] - 15, field["y"] + field["height"] / 3)  # the arrow up
    await expect(page.get_by_label("count")).to_have_value("1")
    await click_on(page, "button", "Call increment_counter")
    await expect(page.get_by_text('{"success":true}')).to_be_visible()
    await click_on(page, "button", "Verify")
    await page.get_by_role("dialog").get_by_role("button", name="Verify").click()
    await expect(page.get_by_role("heading", name="Reward 1")).to_be_visible()
    await click_on(page, "button", "Close")
    await expect(page.get_by_text("reward 1")).to_be_visible()


async def test_the_counter_is_solved_by_keyboard_alone(open_page: OpenPage, studio: Served, storage: Any) -> None:
    session = await seed(studio)
    page = await open_page(f"/studio/sessions/{session}/play", storage_state=storage)
    await expect(page.get_by_text("increment_counter", exact=True)).to_be_visible()
    for key in ("t", "1"):
        await page.keyboard.press(key)
    await expect(page.get_by_label("count")).to_be_focused()
    for key in ("2", "Enter"):
        await page.keyboard.press(key)
    await expect(page.get_by_text('{"success":true}')).to_be_visible()
    for key in ("Tab", "v"):
        await page.keyboard.press(key)
    await expect(page.get_by_role("dialog", name="Verify")).to_be_visible()
    for key in ("Tab", "Enter"):
        await page.keyboard.press(key)
    await expect(page.get_by_role("heading", name="Reward 1")).to_be_visible()


async def test_a_double_click_is_one_call(open_page: OpenPage, studio: Served, storage: Any) -> None:
    session = await seed(studio)
    page = await open_page(f"/studio/sessions/{session}/play{TOOL}", storage_state=storage)
    await page.get_by_label("count").fill("1")
    await page.get_by_role("button", name="Call increment_counter").dblclick(delay=50)
    await expect(page.get_by_text('{"success":true}')).to_be_visible()
    await page.get_by_text("get_counter_value", exact=True).click()
    await button(page, "Call get_counter_value")
    await expect(page.get_by_text('{"count":4}')).to_be_visible()
    assert [each["kind"] for each in await log(studio, f"/sessions/{session}")] == ["seed", "call"]


async def test_a_call_that_is_sent_again_after_a_lost_answer_runs_once(
    open_page: OpenPage, studio: Served, storage: Any, problems: list[str]
) -> None:
    session = await seed(studio)
    page = await open_page(f"/studio/sessions/{session}/play{TOOL}", storage_state=storage)
    await page.get_by_label("count").fill("1")

    async def lose(route: Any) -> None:
        await route.fetch()
        await route.abort()

    await page.route("**/call", lose, times=1)
    await button(page, "Call increment_counter")
    await expect(page.get_by_role("alert")).to_contain_text("does not answer")
    await button(page, "Call increment_counter")
    await expect(page.get_by_text('{"success":true}')).to_be_visible()
    assert [each["kind"] for each in await log(studio, f"/sessions/{session}")] == ["seed", "call"]
    problems.clear()


async def test_two_tabs_play_two_sessions(open_page: OpenPage, studio: Served, storage: Any) -> None:
    first = await open_page("/studio/play", storage_state=storage)
    second = await first.context.new_page()
    await second.goto("/studio/play")
    for page, count in ((first, "1"), (second, "2")):
        await button(page, "Play example 1")
        await page.get_by_text("increment_counter", exact=True).click()
        await page.get_by_label("count").fill(count)
    for page in (first, second):
        await button(page, "Call increment_counter")
        await expect(page.get_by_text('{"success":true}')).to_be_visible()
    start = (await studio.get("/studio/api/environments"))[1]["environments"][0]["examples"][0]["initial_count"]
    for page, number in ((first, 1), (second, 2)):
        place = page.url.partition("?")[0].removeprefix(studio.url).replace("/studio/", "/studio/api/")
        _, state = await studio.get(place.replace("/play", "/state"))
        assert state["state"] == {"value": start + number}
        await expect(page.get_by_role("row", name=f"value {start + number}")).to_be_visible()


async def test_a_failed_call_shows_what_the_model_would_read(open_page: OpenPage, studio: Served, storage: Any) -> None:
    session = await seed(studio)
    page = await open_page(f"/studio/sessions/{session}/play{TOOL}", storage_state=storage)
    await button(page, "Call increment_counter")
    await expect(page.get_by_text("The call failed. The model reads:")).to_be_visible()
    read = await act(studio, f"/sessions/{session}/call", name="increment_counter", arguments={})
    assert await page.evaluate("JSON.parse(document.querySelector('.result').textContent)") == read["output"]


async def test_the_state_shows_what_the_last_call_changed_and_a_reload_shows_the_same(
    open_page: OpenPage, studio: Served, storage: Any
) -> None:
    session = await seed(studio)
    page = await open_page(f"/studio/sessions/{session}/play{TOOL}", storage_state=storage)
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    await act(studio, f"/sessions/{session}/call", name="increment_counter", arguments={"count": 4})
    for _ in range(2):
        await expect(page.locator(".row.changed")).to_have_text("value7")
        await expect(page.get_by_label("count")).to_be_visible()
        await expect(page.get_by_label("Conversation").get_by_text("increment_counter")).to_have_count(1)
        await page.reload()


async def test_a_tool_that_acts_outside_asks_first(open_page: OpenPage, open_studio: OpenStudio) -> None:
    environment = PostEnvironment()
    environment.arrives.set()
    served = await open_studio(environment)
    session = (await act(served, "/sessions", environment="post", row={}))["id"]
    page = await open_page(f"/studio/sessions/{session}/play?tool=send", served.url, storage_state=named(served.url))
    await expect(page.get_by_text("external", exact=True)).to_be_visible()
    await button(page, "Call send")
    await expect(page.get_by_role("dialog")).to_contain_text("cannot be undone")
    await button(page, "Close")
    assert [each["kind"] for each in await log(served, f"/sessions/{session}")] == ["seed"]
    await button(page, "Call send")
    await button(page, "Call")
    await expect(page.locator(".result")).to_have_text("sent")


async def test_the_user_of_the_environment_replies(open_page: OpenPage, open_studio: OpenStudio) -> None:
    served = await open_studio(RefundEnvironment())
    page = await open_page("/studio/play", served.url, storage_state=named(served.url))
    await button(page, "Play example 1")
    await page.get_by_label("message").fill("Which item is it about?")
    await button(page, "Say it to the user")
    await expect(page.get_by_text("It is the lamp.").first).to_be_visible()


async def test_a_task_is_given_by_a_form_or_as_json(
    open_page: OpenPage, studio: Served, storage: Any, problems: list[str]
) -> None:
    page = await open_page("/studio/play?task=Form&example=0", storage_state=storage)
    await page.get_by_label("initial_count").fill("")
    await button(page, "Play")
    await expect(page.get_by_role("alert")).to_contain_text("initial_count")
    await page.get_by_label("initial_count").fill("9")
    await button(page, "Play")
    await expect(page.get_by_role("row", name="value 9")).to_be_visible()
    await page.goto("/studio/play?task=JSON")
    await page.get_by_label("Task").fill('{"initial_count": 8, "expected_count": 9}')
    await button(page, "Play")
    await expect(page.get_by_role("row", name="value 8")).to_be_visible()
    assert all("422" in each for each in problems)
    problems.clear()
