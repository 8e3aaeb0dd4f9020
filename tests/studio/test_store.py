"""The store as a whole: its numbers are those of the command, and nothing waits for a large one."""

import asyncio
import json
from pathlib import Path

import pytest
from playwright.async_api import expect

from stateroom.store import Store
from tests.studio.conftest import BROWSER, OpenPage, OpenStudio, stateroom
from tests.studio.test_sessions import act, seed

pytestmark = BROWSER


async def test_its_numbers_are_those_of_the_command(
    open_studio: OpenStudio,
    open_page: OpenPage,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"sqlite:///{tmp_path}/rooms.db"
    served = await open_studio(store=url)
    session, other = await seed(served), await seed(served)
    for _ in range(3):
        await act(served, f"/sessions/{session}/call", name="increment_counter", arguments={"count": 1})
    await act(served, f"/sessions/{other}/close")
    _, found = await served.get("/studio/api/store")
    await asyncio.to_thread(stateroom, "store", "stats", "--store", url, "--json")
    told = json.loads(capsys.readouterr().out)
    assert (found["complete"], found["live"], found["url"]) == (True, 1, url)
    assert found["sessions"] == {"counter": {"live": 1, "closed": 1}}
    assert told["sessions"] == {"counter": {"live": 1, "closed": 1, "expired": 0}}
    assert found["largest"] == [
        {"id": each["id"], "environment": "counter", "rows": each["entries"], "bytes": each["bytes"]}
        for each in told["largest"]
    ]
    assert {kind: found["sizes"][kind] for kind in ("sessions", "entries")} == {
        kind: told["sizes"][kind] for kind in ("sessions", "entries")
    }
    page = await open_page("/studio/store", served.url)
    await expect(page.get_by_text("ready", exact=True)).to_be_visible()
    counts = page.get_by_role("table", name="Sessions", exact=True).get_by_role("row").nth(1).get_by_role("cell")
    await expect(counts).to_have_text(["1", "1", "0"])
    names = await page.get_by_role("button").all_inner_texts()
    assert [name for name in names if name not in ("Your name", "?")] == ["Measure again"]
    await page.get_by_role("table", name="Largest sessions").get_by_role("link").first.click()
    await page.wait_for_url(f"**/studio/sessions/{told['largest'][0]['id']}")


async def test_it_is_measured_again_at_once(open_studio: OpenStudio, open_page: OpenPage) -> None:
    served = await open_studio()
    await seed(served)
    page = await open_page("/studio/store", served.url)
    counts = page.get_by_role("table", name="Sessions", exact=True).get_by_role("row").nth(1).get_by_role("cell")
    await expect(counts.first).to_have_text("1")
    await seed(served)
    await page.get_by_role("button", name="Measure again").click()
    await expect(counts.first).to_have_text("2")


async def test_a_large_store_is_measured_in_the_background(
    open_studio: OpenStudio, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await open_studio()
    await seed(served)
    go_on, size = asyncio.Event(), type(served.services.store).size

    async def wait(store: Store, session: str) -> object:
        await go_on.wait()
        return await size(store, session)

    monkeypatch.setattr(type(served.services.store), "size", wait)
    page = await open_page("/studio/store", served.url)
    await expect(page.get_by_text("Measuring: 0 sessions so far")).to_be_visible()
    _, found = await served.get("/studio/api/store")
    assert (found["complete"], found["live"], "sessions" in found) == (False, 1, False)
    go_on.set()
    await expect(page.get_by_role("table", name="Sessions", exact=True)).to_contain_text("counter")
