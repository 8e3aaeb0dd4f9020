"""What a person does with a session at a revision, in a real browser: fork, edit and fork, continue with a model."""

import asyncio
import re
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from playwright.async_api import Page, expect
from pydantic import JsonValue

from stateroom import Environment, State, Verdict, tool
from tests.server.conftest import Served
from tests.server.test_admin_log import NotesEnvironment
from tests.studio.conftest import BROWSER, OpenPage, OpenStudio, axe, button, named, until
from tests.studio.test_sessions import MODELS, act, is_idle, log, seed

pytestmark = BROWSER


async def written(served: Served, session: str) -> bytes:
    """The log of a session as it is."""
    async with served.client.get(f"{served.url}/studio/api/sessions/{session}/log") as reply:
        return await reply.read()


async def gone_to_fork(page: Page, parent: str, below: str = "") -> str:
    """The fork that a page has gone to."""
    await page.wait_for_url(lambda url: parent not in url and url.endswith(below))
    return re.findall(r"/sessions/([^/?]+)", page.url)[0]


async def played(served: Served) -> str:
    """A session with one call."""
    session = await seed(served)
    await act(served, f"/sessions/{session}/call", name="increment_counter", arguments={"count": 1})
    return session


async def test_a_fork_leaves_its_parent_as_it_was_and_links_back(
    open_page: OpenPage, studio: Served, storage: Any
) -> None:
    parent = await played(studio)
    before = await written(studio, parent)
    page = await open_page(f"/studio/sessions/{parent}?at=1", storage_state=storage)
    await button(page, "Fork")
    fork = await gone_to_fork(page, parent)
    await expect(page.get_by_role("link", name=parent)).to_have_attribute("href", f"/studio/sessions/{parent}?at=1")
    _, found = await studio.get(f"/studio/api/sessions/{fork}")
    assert found["parent"] == {"session": parent, "revision": 1}
    assert await written(studio, parent) == before
    assert [(each["kind"], each["by"]) for each in await log(studio, f"/sessions/{fork}")][1:] == [("fork", "ada")]


async def test_a_state_is_edited_in_a_fork_and_an_error_is_at_its_field(
    open_page: OpenPage, studio: Served, storage: Any, problems: list[str]
) -> None:
    parent = await played(studio)
    before = await written(studio, parent)
    page = await open_page(f"/studio/sessions/{parent}?at=1", storage_state=storage)
    await button(page, "Edit and fork")
    await expect(page.get_by_label("value")).to_have_value("3")
    await page.get_by_label("value").fill("")
    await button(page, "Fork with these changes")
    await expect(page.get_by_label("value")).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_label("value")).to_have_accessible_description(re.compile("cannot be deleted"))
    await button(page, "JSON")
    await page.get_by_label("state").fill('{"value": "much"}')
    await button(page, "Fork with these changes")
    await expect(page.get_by_label("state")).to_have_accessible_description(re.compile("valid integer"))
    assert (await studio.get(f"/studio/api/sessions/{parent}"))[1]["children"] == []
    await page.get_by_label("state").fill('{"value": 40}')
    await button(page, "Form")
    await expect(page.get_by_label("value")).to_have_value("40")
    await page.get_by_label("reason").fill("what if")
    await button(page, "Fork with these changes")
    fork = await gone_to_fork(page, parent)
    *_, edit = await log(studio, f"/sessions/{fork}")
    assert (edit["kind"], edit["by"], edit["reason"]) == ("edit", "ada", "what if")
    assert [each["text"] for each in edit["changes"]] == ["value: 3 → 40"]
    assert await written(studio, parent) == before
    assert all("422" in each for each in problems)
    problems.clear()


async def test_a_large_state_is_edited_by_a_list_of_changes(open_page: OpenPage, open_studio: OpenStudio) -> None:
    served = await open_studio(NotesEnvironment())
    session = (await act(served, "/sessions", environment="notes", row={}))["id"]
    for title in ("a", "b"):
        await act(served, f"/sessions/{session}/call", name="write", arguments={"title": title, "text": "x" * 100_000})
    page = await open_page(f"/studio/sessions/{session}", served.url, storage_state=named(served.url))
    await button(page, "Edit and fork")
    await page.get_by_role("textbox", name="changes").fill('[{"place": ["pages", "b"], "value": "short"}]')
    await button(page, "Fork with these changes")
    fork = await gone_to_fork(page, session)
    _, found = await served.get(f"/studio/api/sessions/{fork}/state")
    assert found["state"]["pages"] == {"a": "x" * 100_000, "b": "short"}


class Basket(State):
    prices: list[int] = [1, 2, 3]
    stock: dict[str, int] = {"lamp": 4}
    notes: list[JsonValue] = [{"n": 1}, {"n": 2}, {"n": 3}]
    serial: int = 2**60 + 1


class BasketEnvironment(Environment[Basket]):
    """Keep lists."""

    @tool
    def count(self, state: Basket, serial: int) -> int:
        """Set the serial number."""
        state.serial = serial
        return serial

    def verify(self, state: Basket) -> float:
        return 0.99999


@pytest.fixture
def open_basket(open_page: OpenPage, open_studio: OpenStudio) -> Any:
    """Opens the dialog to edit a new session of the basket."""

    async def start(query: str = "") -> tuple[Page, Served, str]:
        served = await open_studio(BasketEnvironment())
        session = (await act(served, "/sessions", environment="basket", row={}))["id"]
        page = await open_page(f"/studio/sessions/{session}{query}", served.url, storage_state=named(served.url))
        await button(page, "Edit and fork")
        await expect(page.get_by_role("group", name="prices")).to_be_visible()
        return page, served, session

    return start


async def forked(page: Page, served: Served, session: str) -> Any:
    """The state of the fork that a page makes."""
    await button(page, "Fork with these changes")
    fork = await gone_to_fork(page, session)
    return (await served.get(f"/studio/api/sessions/{fork}/state"))[1]["state"]


async def test_a_number_that_is_cleared_stays_in_its_list_until_it_is_removed(open_basket: Any) -> None:
    page, served, session = await open_basket()
    for name, key in (("prices", "1"), ("stock", "lamp")):
        items = page.get_by_role("group", name=name)
        await items.get_by_label(key, exact=True).fill("")
        await expect(items.get_by_role("spinbutton")).to_have_count(3 if name == "prices" else 1)
    await button(page, "Fork with these changes")
    for key in ("1", "lamp"):
        field = page.get_by_role("spinbutton", name=key, exact=True)
        await expect(field).to_have_accessible_description("a number is needed")
    await page.get_by_role("group", name="prices").get_by_role("button", name="Remove 1").click()
    await page.get_by_role("group", name="stock").get_by_label("lamp", exact=True).fill("5")
    state = await forked(page, served, session)
    assert (state["prices"], state["stock"]) == ([1, 3], {"lamp": 5})


async def test_the_item_that_is_removed_from_a_list_is_the_one_that_goes(open_basket: Any) -> None:
    page, served, session = await open_basket()
    items = page.get_by_role("group", name="notes")
    await items.get_by_label("1", exact=True).fill("{")
    await items.get_by_role("button", name="Remove 0").click()
    shown = await items.get_by_role("textbox").evaluate_all("all => all.map(one => one.value.replace(/\\s/g, ''))")
    assert shown == ["{", '{"n":3}']
    await items.get_by_role("button", name="Remove 0").click()
    assert (await forked(page, served, session))["notes"] == [{"n": 3}]


async def test_integers_of_any_size_are_shown_and_edited_as_they_are(open_basket: Any) -> None:
    page, served, session = await open_basket()
    field = page.get_by_label("serial")
    await expect(field).to_have_value(str(2**60 + 1))
    await page.get_by_role("group", name="stock").get_by_label("lamp", exact=True).fill("5")
    assert (await forked(page, served, session))["serial"] == 2**60 + 1
    await page.goto(f"/studio/sessions/{session}/play?tool=count")
    await page.get_by_label("serial").fill(str(2**60 + 3))
    await button(page, "Call count")
    await expect(page.locator(".result")).to_have_text(str(2**60 + 3))
    await expect(page.get_by_role("row", name=f"serial {2**60 + 3}")).to_be_visible()
    for tab, texts in (("changes", [f"{2**60 + 1}", f"{2**60 + 3}"]), ("raw", [f'"serial": {2**60 + 3}'])):
        await page.goto(f"/studio/sessions/{session}?tab={tab}")
        for text in texts:
            await expect(page.get_by_role("tabpanel")).to_contain_text(text)
    await page.goto(f"/studio/sessions/{session}/compare")
    await expect(page.get_by_role("listitem")).to_contain_text(f"{2**60 + 3}")


async def test_a_reward_has_its_exact_value_in_its_title(open_page: OpenPage, open_studio: OpenStudio) -> None:
    served = await open_studio(BasketEnvironment())
    session = (await act(served, "/sessions", environment="basket", row={}))["id"]
    await act(served, f"/sessions/{session}/verify")
    for view in ("", f"/{session}", f"/{session}/play"):
        page = await open_page(f"/studio/sessions{view}", served.url)
        await expect(page.get_by_title("0.99999").first).to_have_text("1")


class Post(State):
    sent: int = 0


class PostEnvironment(Environment[Post]):
    """Send letters."""

    def __init__(self) -> None:
        self.arrives = Event()

    @tool(effect="external")
    async def send(self, state: Post) -> str:
        """Send a letter."""
        await asyncio.to_thread(self.arrives.wait)
        state.sent += 1
        return "sent"

    def verify(self, state: Post) -> Verdict:
        return Verdict(reward=0.5, components={"sent": float(state.sent), "neat": 0.25}, reason="one letter")


async def test_why_a_session_cannot_be_forked_is_shown_as_the_server_says_it(
    open_page: OpenPage, open_studio: OpenStudio, problems: list[str]
) -> None:
    environment = PostEnvironment()
    served = await open_studio(environment, timeout=0.1)
    session = (await act(served, "/sessions", environment="post", row={}))["id"]
    assert not (await act(served, f"/sessions/{session}/call", name="send", call_id="letter"))["ok"]
    environment.arrives.set()
    page = await open_page(f"/studio/sessions/{session}?at=2", served.url, storage_state=named(served.url))
    await button(page, "Fork")
    await expect(page.get_by_role("alert")).to_contain_text("the outcome of call 'letter' is unknown")
    await expect(page.get_by_role("alert")).to_contain_text("cannot_fork")
    assert (await served.get(f"/studio/api/sessions/{session}"))[1]["children"] == []
    assert all("409" in each for each in problems)
    problems.clear()


async def test_an_older_revision_is_verified_on_a_fork_with_its_components(
    open_page: OpenPage, open_studio: OpenStudio
) -> None:
    environment = PostEnvironment()
    environment.arrives.set()
    served = await open_studio(environment)
    session = (await act(served, "/sessions", environment="post", row={}))["id"]
    await act(served, f"/sessions/{session}/call", name="send")
    page = await open_page(f"/studio/sessions/{session}?at=1", served.url, storage_state=named(served.url))
    await button(page, "Verify")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("on a fork at revision 1")
    await dialog.get_by_role("button", name="Verify").click()
    await expect(dialog.get_by_role("heading", name="Reward 0.5")).to_be_visible()
    for row in ("sent 0", "neat 0.25"):
        await expect(dialog.get_by_role("row", name=row)).to_be_visible()
    found = (await served.get(f"/studio/api/sessions/{session}"))[1]
    assert (found["verdict"], len(found["children"])) == (None, 1)


async def test_every_action_has_a_key(open_page: OpenPage, studio: Served, storage: Any) -> None:
    session = await played(studio)
    page = await open_page(f"/studio/sessions/{session}", storage_state=storage)
    await expect(page.get_by_role("toolbar")).to_be_visible()
    for key, title in {"e": "Edit revision 2 and fork", "c": "Continue with a model", "v": "Verify"}.items():
        await page.keyboard.press(key)
        await expect(page.get_by_role("dialog", name=title)).to_be_visible()
        await page.keyboard.press("Escape")
    await page.keyboard.press("b")
    await page.get_by_label("name").fill("here")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert (await log(studio, f"/sessions/{session}"))[-1]["name"] == "here"
    await page.keyboard.press("p")
    await page.wait_for_url(f"**/sessions/{session}/play")
    await expect(page.get_by_role("toolbar")).to_be_visible()
    await page.keyboard.press("F")
    await gone_to_fork(page, session)


async def test_a_reload_while_a_model_continues_asks_and_shows_nothing_twice(
    open_page: OpenPage, open_studio: OpenStudio, folder: Path
) -> None:
    served = await open_studio(model=f"{MODELS}:Waits")
    session = await seed(served)
    page = await open_page(f"/studio/sessions/{session}/play", served.url, storage_state=named(served.url))
    await button(page, "Continue with a model")
    await button(page, "Continue")
    await until((folder / "asked-0").exists)
    (folder / "answer-0").touch()
    calls = page.get_by_label("Conversation").get_by_text("increment_counter")
    await expect(calls).to_have_count(1)
    await until((folder / "asked-1").exists)
    await page.reload()
    await expect(page.get_by_role("button", name="Stop")).to_be_visible()
    await expect(calls).to_have_count(1)
    for number in (1, 2):
        (folder / f"answer-{number}").touch()
    await expect(page.get_by_text("Done.")).to_have_count(1)
    await expect(calls).to_have_count(2)
    await expect(page.get_by_role("button", name="Continue with a model")).to_be_visible()
    kinds = [entry["kind"] for entry in await log(served, f"/sessions/{session}")]
    assert (kinds.count("call"), kinds.count("message"), kinds.count("checkpoint")) == (2, 3, 1)


async def test_a_model_continues_an_older_revision_on_a_fork_and_is_stopped(
    open_page: OpenPage, open_studio: OpenStudio, folder: Path
) -> None:
    served = await open_studio(model=f"{MODELS}:Waits")
    parent = await played(served)
    before = await written(served, parent)
    page = await open_page(f"/studio/sessions/{parent}?at=1", served.url, storage_state=named(served.url))
    await button(page, "Continue with a model")
    await expect(page.get_by_role("dialog")).to_contain_text("on a fork at revision 1")
    await button(page, "Continue")
    fork = await gone_to_fork(page, parent)
    await until((folder / "asked-0").exists)
    await button(page, "Stop")
    await expect(page.get_by_role("button", name="Continue with a model")).to_be_visible()
    assert await is_idle(served, fork)
    (folder / "answer-0").touch()
    await page.reload()
    assert (await served.get(f"/studio/api/sessions/{fork}"))[1]["phase"] == "cancelled"
    assert await written(served, parent) == before


async def test_why_a_model_stopped_is_shown_also_after_a_reload(open_page: OpenPage, open_studio: OpenStudio) -> None:
    served = await open_studio(model=f"{MODELS}:Fails")
    session = await seed(served)
    page = await open_page(f"/studio/sessions/{session}/play", served.url, storage_state=named(served.url))
    await button(page, "Continue with a model")
    await button(page, "Continue")
    for _ in range(2):
        await expect(page.get_by_role("alert")).to_contain_text("out of order")
        await page.reload()


async def test_the_dialogs_are_accessible_in_light_and_dark(open_page: OpenPage, studio: Served) -> None:
    session = await played(studio)
    for scheme in ("light", "dark"):
        page = await open_page(f"/studio/sessions/{session}?at=1", color_scheme=scheme)
        await button(page, "Edit and fork")
        await expect(page.get_by_label("value")).to_be_visible()
        await axe(page)
