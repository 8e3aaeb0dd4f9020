"""The questions of agents that wait, in a real browser."""

from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.environments import PurseEnvironment
from tests.server.conftest import Served
from tests.studio.conftest import BROWSER, OpenPage, OpenStudio, button, named, until
from tests.studio.test_sessions import MODELS, act, is_idle, log

pytestmark = BROWSER


@pytest_asyncio.fixture(loop_scope="session")
async def purse(open_studio: OpenStudio) -> Served:
    return await open_studio(PurseEnvironment(), model=f"{MODELS}:Adds")


async def asks(served: Served, amounts: str) -> str:
    """A session whose agent asks whether it may spend the first amount above 1."""
    row = {"responses_create_params": {"input": amounts}}
    session = str((await act(served, "/sessions", environment="purse", row=row))["id"])
    await act(served, f"/sessions/{session}/continue")
    await until(lambda: is_idle(served, session))
    return session


async def spent(served: Served, session: str) -> int:
    return int((await served.get(f"/studio/api/sessions/{session}/state"))[1]["state"]["spent"])


@pytest.fixture
def open_inbox(open_page: OpenPage, purse: Served) -> Any:
    async def start(name: str = "ada", **options: Any) -> Page:
        return await open_page("/studio/inbox", purse.url, storage_state=named(purse.url, name), **options)

    return start


async def test_questions_are_answered_one_after_another_the_oldest_first(open_inbox: Any, purse: Served) -> None:
    first, second = await asks(purse, "1 5"), await asks(purse, "7")
    page = await open_inbox()
    await expect(page.get_by_role("heading", name="Spend 5?")).to_be_visible()
    await expect(page.get_by_role("listitem").filter(has_text="spent")).to_contain_text("1")
    await expect(page.get_by_role("textbox", name="Answer")).to_be_focused()
    await page.keyboard.type("yes")
    await page.keyboard.press("Control+Enter")
    await expect(page.get_by_role("heading", name="Spend 7?")).to_be_visible()
    await until(lambda: is_idle(purse, first))
    assert await spent(purse, first) == 6
    [answer] = [each for each in await log(purse, f"/sessions/{first}") if each.get("person")]
    assert (answer["person"], answer["agent"]["inputs"]) == ("ada", ["yes"])
    await page.reload()
    await expect(page.get_by_role("heading", name="Spend 7?")).to_be_visible()
    await page.get_by_role("textbox", name="Answer").fill("no")
    await button(page, "Answer")
    await expect(page.get_by_text("No open questions.")).to_be_visible()
    await until(lambda: is_idle(purse, second))
    assert await spent(purse, second) == 0


async def test_the_oldest_question_comes_first_not_that_of_the_oldest_session(
    open_studio: OpenStudio, open_page: OpenPage
) -> None:
    now = 1_800_000_000.0
    served = await open_studio(PurseEnvironment(), model=f"{MODELS}:Adds", now=lambda: now)
    older = await asks(served, "1")
    now += 3600
    first = await asks(served, "5")
    now += 3600
    await act(served, f"/sessions/{older}/continue", message="1 7")  # the first is done
    await until(lambda: is_idle(served, older))
    _, found = await served.get("/studio/api/inbox")
    assert [(each["id"], each["asked"]) for each in found["sessions"]] == [(first, now - 3600), (older, now)]
    page = await open_page("/studio/inbox", served.url)
    await expect(page.get_by_role("heading", name="Spend 5?")).to_be_visible()
    links = page.get_by_role("navigation", name="Sessions that wait").get_by_role("link")
    assert [text.partition("\n")[0] for text in await links.all_inner_texts()] == [first, older]


async def test_a_question_appears_when_it_is_asked(open_inbox: Any, purse: Served) -> None:
    page = await open_inbox()
    await expect(page.get_by_text("No open questions.")).to_be_visible()
    session = await asks(purse, "5")
    await expect(page.get_by_role("heading", name="Spend 5?")).to_be_visible()
    await expect(page.get_by_role("link", name=session)).to_have_count(2)


@pytest.mark.parametrize("amounts", ["5", "5 6"], ids=["done", "asks again"])
async def test_of_two_people_who_answer_the_second_sees_the_answer_of_the_first(
    open_inbox: Any, purse: Served, problems: list[str], amounts: str
) -> None:
    session = await asks(purse, amounts)
    first, second = await open_inbox("ada"), await open_inbox("bob")
    _, waiting = await purse.get("/studio/api/inbox")
    await second.route(
        "**/studio/api/inbox", lambda route: route.fulfill(json=waiting)
    )  # what the first did is not seen
    await second.get_by_role("textbox", name="Answer").fill("no")
    await first.get_by_role("textbox", name="Answer").fill("yes")
    await button(first, "Answer")
    await until(lambda: is_idle(purse, session))
    await button(second, "Answer")
    await expect(second.get_by_role("alert")).to_have_text("ada has answered already: yes. Your answer was not sent.")
    if amounts == "5 6":  # the second answer was none to this
        await expect(second.get_by_role("heading", name="Spend 6?")).to_be_visible()
    else:
        await expect(second.get_by_role("status").filter(has_text="ada has answered: yes")).to_be_visible()
    assert await spent(purse, session) == 5
    assert all("409" in each for each in problems)
    problems.clear()


async def test_a_person_who_only_looks_sees_the_answer_of_another(open_inbox: Any, purse: Served) -> None:
    session = await asks(purse, "5")
    page = await open_inbox()
    await expect(page.get_by_role("heading", name="Spend 5?")).to_be_visible()
    await act(purse, f"/sessions/{session}/answer", input="no")
    await expect(page.get_by_role("status").filter(has_text="ada has answered: no")).to_be_visible()
    await button(page, "Next")
    await expect(page.get_by_text("No open questions.")).to_be_visible()
