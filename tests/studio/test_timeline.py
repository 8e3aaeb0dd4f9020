"""The timeline of a session in a real browser: its entries, its states, the scrubber and the live tail."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, Request, expect

from stateroom import Session
from stateroom.gallery import CounterEnvironment
from stateroom.session import Retention, RetentionPolicy, Sessions
from stateroom.store import open_store
from stateroom.studio import Studio
from tests.server.conftest import CONSOLE_SCRIPT, Command, Launch, Served
from tests.server.test_admin_log import NotesEnvironment
from tests.studio.conftest import BROWSER, OpenPage, OpenStudio

pytestmark = BROWSER

LONG = 10_000
SAID = {"input": "What is in the notes?", "instructions": "You keep notes."}


@pytest_asyncio.fixture(loop_scope="session")
async def served(open_studio: OpenStudio) -> Served:
    return await open_studio(NotesEnvironment())


async def noted(served: Served, number: int) -> Session[Any]:
    """A session with a number of notes: the text of note 3 is "text 3", at revision 5."""
    session = await served.services.environments["notes"].sessions.seed({"responses_create_params": SAID})
    for each in range(number):
        await write(session, each)
    return session


async def write(session: Session[Any], number: int) -> None:
    assert (await session.call("write", {"title": f"note {number}", "text": f"text {number}"})).ok


def place(session: Session[Any], query: str = "") -> str:
    return f"/studio/sessions/{session.id}{query}"


def rows(page: Page) -> Locator:
    return page.get_by_role("grid", name="Entries").get_by_role("row")


async def shows(page: Page, revision: int) -> None:
    """Wait until the page shows a revision, and has it in its URL."""
    await expect(page.get_by_role("heading", name=f"Revision {revision:,}", exact=True)).to_be_visible()


async def state_shown(page: Page, revision: int) -> dict[str, Any]:
    """The state in the tree, whose places are all open."""
    tree = page.get_by_role("treegrid", name=f"State at revision {revision}", exact=True)
    await expect(tree).to_be_visible()
    found: dict[str, Any] = {"pages": {}}
    for row in await tree.get_by_role("row").all():
        key, value = await row.get_by_role("gridcell").all_inner_texts()
        if key.strip().startswith(("▸", "▾")) or key.strip() == "pages":
            continue
        target = found if key.strip() == "written" else found["pages"]
        target[key.strip()] = json.loads(value)
    return found


async def test_the_state_shown_at_a_revision_is_that_of_the_api(open_page: OpenPage, served: Served) -> None:
    session = await noted(served, 6)
    page = await open_page(place(session, "?tab=state"), url=served.url)
    await page.get_by_role("tab", name="State").click()  # a button that has the focus leaves Enter to the sequence
    for revision in (7, 2, 1, 5):
        await page.keyboard.press("g")
        await page.keyboard.press(str(revision))
        await page.keyboard.press("Enter")
        await shows(page, revision)
        status, told = await served.get(f"/studio/api/sessions/{session.id}/state?at={revision}")
        assert (status, await state_shown(page, revision)) == (200, told["state"])
    await expect(page.get_by_text("2 changed")).to_be_visible()
    await page.get_by_role("button", name="Next").click()
    await expect(page.get_by_role("treegrid").get_by_role("row", selected=True)).to_contain_text("note 3")


@pytest.mark.usefixtures("snapshot_every_commit")
async def test_revisions_that_were_pruned_say_so(open_page: OpenPage, served: Served) -> None:
    session = await noted(served, 40)
    pruning = Retention(served.services.store, RetentionPolicy(keep=5), served.services.now)
    [(_, cut)] = [made async for made in pruning.carry_out()]
    assert cut is not None
    gone = f"Revisions 2 to {cut.below} were pruned."
    page = await open_page(place(session, "?at=1"), url=served.url)
    await expect(rows(page).nth(1)).to_contain_text(f"pruned revisions 2 to {cut.below}")
    await expect(rows(page).nth(2)).to_contain_text(f"{(cut.below or 0) + 1}")
    await rows(page).nth(1).click()
    for tab in ("Changes", "State", "Input and output", "Raw"):
        await page.get_by_role("tab", name=tab).click()
        await expect(page.get_by_text(gone)).to_be_visible()
    await page.goto(place(session, "?at=41&tab=state"))
    await expect(page.get_by_role("treegrid")).to_be_visible()


async def test_a_search_finds_text_in_rows_that_are_not_mounted(open_page: OpenPage, served: Served) -> None:
    session = await noted(served, 1500)
    page = await open_page(place(session), url=served.url)
    await shows(page, 1501)
    assert await rows(page).count() <= 200
    await expect(rows(page).filter(has_text="text 42")).to_have_count(0)
    await page.keyboard.press("/")
    await page.keyboard.type("TEXT 42")
    await expect(page.get_by_text("11 found")).to_be_visible()  # 42, and 420 to 429
    await expect(rows(page)).to_have_count(11)
    await rows(page).nth(0).click()
    await shows(page, 44)
    await page.wait_for_url("**?text=TEXT+42&at=44")
    await page.reload()
    await expect(rows(page)).to_have_count(11)
    await expect(page.get_by_role("row", selected=True)).to_contain_text("44")
    await shows(page, 44)


async def test_entries_are_filtered_by_kind(open_page: OpenPage, served: Served) -> None:
    session = await noted(served, 300)
    await session.checkpoint("halfway")
    assert not (await session.call("send", {})).ok
    await write(session, 300)
    await session.rewind("halfway")
    await session.edit([{"place": ["written"], "value": 9}], by="ada", reason="a miscount")
    page = await open_page(place(session), url=served.url)
    await page.get_by_role("button", name="failed").click()
    await page.get_by_role("button", name="edit 1").click()
    await expect(rows(page)).to_have_count(2)
    await expect(rows(page).nth(0)).to_contain_text("the printer is on fire")
    await expect(rows(page).nth(1)).to_contain_text("edit a miscount")
    await page.wait_for_url("**kinds=failed%2Cedit**")
    await page.reload()
    await expect(rows(page)).to_have_count(2)
    await page.go_back()
    await expect(rows(page)).to_have_count(1)
    await page.get_by_role("button", name="failed").click()
    await page.get_by_role("button", name="call").click()
    await expect(page.get_by_text("301 entries")).to_be_visible()
    await page.get_by_role("grid", name="Entries").focus()
    await page.keyboard.press("Home")
    await expect(page.get_by_role("row", selected=True)).to_contain_text("text 0")


async def test_keys_go_through_entries_and_tabs(open_page: OpenPage, served: Served) -> None:
    session = await noted(served, 3)
    page = await open_page(place(session, "?at=2"), url=served.url)
    await shows(page, 2)
    await expect(page.get_by_role("tabpanel")).to_contain_text('pages["note 0"]')
    await page.keyboard.press("j")
    await shows(page, 3)
    await page.keyboard.press("k")
    await shows(page, 2)
    for key, tab, says in (
        ("3", "Input and output", "note 0 is written"),
        ("4", "Conversation", "What is in the notes?"),
        ("5", "Raw", '"revision": 2'),
        ("1", "Changes", "new"),
    ):
        await page.keyboard.press(key)
        await expect(page.get_by_role("tab", name=tab, selected=True)).to_be_visible()
        await expect(page.get_by_role("tabpanel")).to_contain_text(says)
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_contain_text("Go to a revision")


async def test_the_scrubber_has_one_request_in_flight_and_the_last_position_wins(
    open_page: OpenPage, open_studio: OpenStudio
) -> None:
    served = await open_studio()
    row = {"initial_count": 0, "expected_count": 5}
    session = await served.services.environments["counter"].sessions.seed(row)
    for _ in range(LONG - 1):
        await session.call("increment_counter", {"count": 1})
    page = await open_page(place(session, "?tab=state"), url=served.url)
    await shows(page, LONG)
    flying: set[Request] = set()
    most, asked = 0, 0

    def start(request: Request) -> None:
        nonlocal most, asked
        if "/sessions/" in request.url:
            flying.add(request)
            most, asked = max(most, len(flying)), asked + 1

    def end(request: Request) -> None:
        flying.discard(request)

    page.on("request", start)
    page.on("requestfinished", end)
    page.on("requestfailed", end)
    slider = page.get_by_role("slider", name="Revision")
    box = await slider.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    await page.mouse.move(box["x"] + box["width"] - 2, middle)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 2, middle, steps=60)
    await page.mouse.move(box["x"] + box["width"] / 2, middle, steps=60)
    await page.mouse.up()
    at = int(await slider.get_attribute("aria-valuenow") or 0)
    assert abs(at - LONG / 2) < LONG / 100
    await shows(page, at)
    tree = page.get_by_role("treegrid", name=f"State at revision {at}", exact=True)
    await expect(tree.get_by_role("row")).to_contain_text(f"{at - 1}")
    await expect(page.get_by_role("row", selected=True).first).to_contain_text(f"{at:,}")
    assert (most, asked > 1) == (1, True)
    for key, revision in (("ArrowLeft", at - 1), ("End", LONG), ("Home", 1), ("PageUp", 501), ("PageDown", 1)):
        await slider.press(key)
        await shows(page, revision)
    assert most == 1


async def test_the_tail_follows_and_pauses_when_one_scrolls_up(open_page: OpenPage, served: Served) -> None:
    session = await noted(served, 60)
    page = await open_page(place(session), url=served.url)
    await expect(page.get_by_role("button", name="Following")).to_be_visible()
    await write(session, 60)
    await shows(page, 62)
    await expect(page.get_by_role("button", name="call 61", exact=True)).to_be_visible()
    await expect(rows(page).last).to_be_in_viewport()
    await page.get_by_role("grid", name="Entries").hover()
    await page.mouse.wheel(0, -600)
    await expect(page.get_by_role("button", name="Follow", exact=True)).to_be_visible()
    for number in (61, 62):
        await write(session, number)
    await page.get_by_role("button", name="2 new").click()
    await shows(page, 64)
    await expect(rows(page).last).to_contain_text("text 62")
    await expect(rows(page).last).to_be_in_viewport()
    await page.keyboard.press("f")
    await expect(page.get_by_role("button", name="Follow", exact=True)).to_be_visible()
    await session.verify()
    await page.get_by_role("button", name="1 new").click()
    await page.get_by_text("Reward 0.5", exact=True).click()
    await expect(page.get_by_text("it is short").first).to_be_visible()
    await expect(page.get_by_role("row", name="style")).to_contain_text("0.25")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("row", name="style")).to_be_hidden()


async def test_a_server_that_was_killed_leaves_no_gap_and_no_duplicate(
    open_page: OpenPage, launch: Launch, tmp_path: Path, problems: list[str]
) -> None:
    first = launch("counter", "--studio", "--store", f"sqlite:///{tmp_path / 'store.db'}")
    async with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        sessions = Sessions(CounterEnvironment(), store)
        session = await sessions.seed({"initial_count": 0, "expected_count": 5})
        page = await open_page(place(session), url=first.root)
        await expect(page.get_by_text("Live", exact=True)).to_be_visible()
        for _ in range(3):
            await session.call("increment_counter", {"count": 1})
        await shows(page, 4)
        first.kill()
        await expect(page.get_by_text("Reconnecting")).to_be_visible()
        for _ in range(3):
            await session.call("increment_counter", {"count": 1})
        port = ["--port", str(first.port)]
        second = Command(
            tmp_path,
            [*CONSOLE_SCRIPT, "serve", "counter", "--studio", "--store", f"sqlite:///{tmp_path / 'store.db'}", *port],
            {},
        )
        try:
            await shows(page, 7)
            await session.call("increment_counter", {"count": 1})
            await shows(page, 8)
            shown = [await row.get_by_role("gridcell").nth(1).inner_text() for row in await rows(page).all()]
            assert shown == [str(revision) for revision in range(1, 9)]
        finally:
            await page.close()
            second.kill()
            second.wait()
    assert all("ERR_" in each for each in problems), problems
    problems.clear()


async def test_forks_and_their_parents_are_links(open_page: OpenPage, served: Served) -> None:
    session = await noted(served, 5)
    child = await session.fork(at=3)
    grandchild = await child.fork()
    page = await open_page(place(session, "?at=3"), url=served.url)
    await expect(page.get_by_label("Revision").get_by_role("link", name=child.id)).to_be_visible()
    await page.get_by_text("2 forks").click()
    await page.get_by_role("link", name=grandchild.id).click()
    await page.wait_for_url(f"**/studio/sessions/{grandchild.id}")
    await page.get_by_role("link", name="Compare with parent").click()
    await page.wait_for_url(f"**/studio/sessions/{child.id}/compare?from=3&with={grandchild.id}")
    await page.go_back()
    await page.get_by_role("link", name=f"{session.id}@3").click()
    await page.wait_for_url(f"**/studio/sessions/{session.id}?at=3")
    await shows(page, 3)


async def test_a_session_of_a_run_is_read_and_followed_in_the_store_of_the_run(
    open_page: OpenPage, open_studio: OpenStudio, runs: Path
) -> None:
    served = await open_studio(studio=Studio(runs=runs))
    run = f"/runs/{quote('a/first', safe='')}"
    _, found = await served.get(f"/studio/api{run}/rollouts")
    path = f"{run}/sessions/{found['rollouts'][0]['session']}"
    _, forked = await served.post(f"/studio/api{path}/fork", {"at": 1, "by": "ada"})
    child = f"{run}/sessions/{forked['sessions'][0]['id']}"
    page = await open_page(f"/studio{path}?at=1&tab=chat", url=served.url)
    await expect(page.get_by_role("tabpanel")).to_contain_text("Use the tools to change the counter")
    await page.get_by_text("1 fork").click()
    await page.locator(".sheet").get_by_role("link").first.click()
    await page.wait_for_url(f"**/studio{child}")
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    _, told = await served.get(f"/studio/api{child}")
    given = {"name": "increment_counter", "arguments": {"count": 1}, "by": "ada"}
    assert (await served.post(f"/studio/api{child}/call", given))[0] == 200
    await shows(page, told["revision"] + 1)


async def test_the_tail_stays_at_its_end_when_there_is_less_room(open_page: OpenPage, served: Served) -> None:
    session = await noted(served, 60)
    page = await open_page(place(session), url=served.url)
    await expect(rows(page).last).to_be_in_viewport()
    for heights in ((500,), (900,), (600,), (500, 900, 600) * 5):  # at last faster than it is drawn
        for height in heights:
            await page.set_viewport_size({"width": 1280, "height": height})
        await expect(rows(page).last).to_contain_text("text 59")
        await expect(rows(page).last).to_be_in_viewport(ratio=0.9)
    await expect(page.get_by_role("button", name="Following")).to_be_visible()


@pytest.mark.parametrize("can_copy", [True, False])
async def test_the_path_of_a_place_in_the_state_is_copied(open_page: OpenPage, served: Served, can_copy: bool) -> None:
    session = await noted(served, 1)
    page = await open_page(
        place(session, "?tab=state"), url=served.url, permissions=["clipboard-read", "clipboard-write"]
    )
    if not can_copy:  # as over plain http at another address
        await page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        await page.reload()
    await page.get_by_role("treegrid").get_by_role("row").nth(1).click()
    await page.keyboard.press("?")
    for does in ("Copy the path of a row", "Close a row", "Let a model continue"):
        await expect(page.get_by_role("dialog")).to_contain_text(does)
    await page.keyboard.press("Escape")
    await page.keyboard.press("y")
    if can_copy:
        await expect(page.get_by_text("The path is copied.")).to_be_visible()
        assert await page.evaluate("navigator.clipboard.readText()") == 'pages["note 0"]'
    else:
        await expect(page.get_by_text("The browser does not allow this page to copy.")).to_be_visible()
    await page.get_by_role("treegrid").focus()
    await page.keyboard.press("c")
    await expect(page.get_by_role("dialog", name="Continue with a model")).to_be_visible()


async def test_odd_parameters_of_a_url_show_the_nearest_view(open_page: OpenPage, served: Served) -> None:
    session = await noted(served, 3)
    page = await open_page(place(session, "?at=2.5&tab=nonsense"), url=served.url)
    await shows(page, 2)
    await expect(page.get_by_role("tab", name="Changes", selected=True)).to_be_visible()
    await expect(page.get_by_role("tabpanel")).to_contain_text('pages["note 0"]')
    await page.get_by_role("tab", name="State").click()
    await expect(page.get_by_role("treegrid", name="State at revision 2")).to_be_visible()


async def test_a_search_in_the_state_is_in_the_url(open_page: OpenPage, served: Served) -> None:
    session = await noted(served, 3)
    page = await open_page(place(session, "?tab=state"), url=served.url)
    await page.get_by_label("Find in the state").fill("note 1")
    await page.wait_for_url("**find=note+1")
    await page.reload()
    await expect(page.get_by_label("Find in the state")).to_have_value("note 1")
    await expect(page.get_by_text("1 found")).to_be_visible()
