"""The runs in a real browser: all of them, one with its figures, and a row without a session."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, Request, expect

from stateroom.rollout import RunFiles
from stateroom.studio import Studio
from tests.rows import write_rows
from tests.server.conftest import Served
from tests.studio.conftest import BROWSER, OpenPage, OpenStudio, stateroom

pytestmark = BROWSER

COUNTER, GROWING = "/studio/runs/counter", f"/studio/runs/{quote('a/growing', safe='')}"


def row(task: int, rollout: int, **fields: Any) -> dict[str, Any]:
    said = [{"type": "message", "role": "assistant", "content": f"I did task {task}."}]
    response = {"model": "m", "output": said}
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, "response": response, **fields}


@pytest.fixture(scope="session")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a run of the counter that has ended."""
    folder = tmp_path_factory.mktemp("runs")
    stateroom("run", "counter", "--model", "noisy", "--repeats", "4", "--output", f"{folder}/counter.jsonl")
    return folder


@pytest.fixture
def growing(tmp_path: Path) -> RunFiles:
    """A run under way, whose last line is cut short, in a folder of its own."""
    files = RunFiles(tmp_path / "a" / "growing.jsonl")
    files.rollouts.parent.mkdir()
    write_rows(files.rollouts, [row(task, rollout, reward=task / 4) for task in range(4) for rollout in range(2)])
    write_rows(
        files.inputs, [{"_ng_task_index": task, "_ng_rollout_index": each} for task in range(5) for each in (0, 1)]
    )
    write_rows(files.failures, [row(4, 0, _ng_failure_class="timeout", error="the model took <b>too long</b>")])
    write_rows(files.tool_failures, [row(1, 1, tool="pay")])
    with files.rollouts.open("a") as file:
        file.write('{"_ng_task_index": 4, "rew')
    return files


@pytest_asyncio.fixture(loop_scope="session")
async def served(open_studio: OpenStudio, counter: Path) -> Served:
    return await open_studio(studio=Studio(runs=counter))


@pytest_asyncio.fixture(loop_scope="session")
async def server_of_growing(open_studio: OpenStudio, growing: RunFiles, tmp_path: Path) -> Served:
    return await open_studio(studio=Studio(runs=tmp_path))


def figure(page: Page, title: str) -> Locator:
    """The values of a figure, each with all digits in its title."""
    return page.locator(".figures > div").filter(has=page.get_by_text(title, exact=True)).locator("[title]")


async def episodes(page: Page, count: int) -> None:
    told = f"{count} episode{'' if count == 1 else 's'}"
    await expect(page.get_by_role("status").filter(has_text=re.compile(f"^{told}$"))).to_be_visible()


async def test_numbers_equal_the_aggregate_metrics_file(served: Served, open_page: OpenPage, counter: Path) -> None:
    [told] = json.loads(RunFiles(counter / "counter.jsonl").metrics.read_bytes())
    metrics = told["agent_metrics"]
    page = await open_page("/studio/runs", served.url)
    shown = page.get_by_role("gridcell").locator("[title]")
    await expect(page.get_by_role("link", name="counter")).to_be_visible()
    values = [float(each) for each in await shown.evaluate_all("all => all.map(one => one.title)") if each[:1] != "2"]
    assert values == pytest.approx([metrics[name] for name in ("mean/reward", "stderr/reward", "pass@1")], abs=1e-12)
    await page.get_by_role("link", name="counter").click()
    for title, name in {"Mean reward": "reward", "Mean tool calls": "tool_calls"}.items():
        await expect(figure(page, title)).to_have_count(2)
        found = await figure(page, title).evaluate_all("all => all.map(one => Number(one.title))")
        assert found == pytest.approx([metrics[f"mean/{name}"], metrics[f"stderr/{name}"]], abs=1e-12)
    for k in (1, 2, 4):
        value = await figure(page, f"pass@{k}").first.get_attribute("title")
        assert float(value or "nan") == pytest.approx(metrics[f"pass@{k}"], abs=1e-12)
    await page.get_by_role("button", name="Metrics").click()
    await expect(page.get_by_role("row")).to_have_count(len(metrics))
    cells = await page.get_by_role("row").evaluate_all(
        "all => all.map(one => [one.cells[0].textContent, Number(one.querySelector('[title]').title)])"
    )
    assert dict(cells) == pytest.approx(metrics, rel=1e-12, abs=1e-12)


async def test_a_growing_run_is_followed(server_of_growing: Served, growing: RunFiles, open_page: OpenPage) -> None:
    page = await open_page("/studio/runs", server_of_growing.url)
    line = page.get_by_role("row").filter(has_text="a/growing")
    await expect(line).to_contain_text("8/10")
    await expect(line).to_contain_text("growing")
    await page.get_by_role("link", name="a/growing").click()
    await episodes(page, 9)
    await expect(page.get_by_text("growing.jsonl: line 9 is incomplete and was skipped")).to_be_visible()
    with growing.rollouts.open("a") as file:
        file.write('ard": 1.0, "_ng_rollout_index": 1}\n')
    await episodes(page, 10)
    await expect(page.get_by_text("9/10")).to_be_visible()
    await expect(page.get_by_text("is is incomplete and was skipped")).to_have_count(0)
    await expect(page.get_by_role("row").filter(has_text="timeout")).to_be_visible()


async def test_a_brush_over_the_rewards_filters_the_episodes(server_of_growing: Served, open_page: OpenPage) -> None:
    page = await open_page(GROWING, server_of_growing.url)
    await episodes(page, 9)
    await expect(page.get_by_role("link", name="pay")).to_be_visible()  # all is there, so that nothing moves
    bars = page.get_by_role("group", name="Histogram of rewards").get_by_role("button")
    box = await page.locator(".histogram .bars").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    for start, end, count, query in ((0.42, 0.99, 4, "low=0.3&high=0.75"), (0.02, 0.48, 4, "low=0&below=0.375")):
        await page.mouse.move(box["x"] + box["width"] * start, middle)
        await page.mouse.down()
        await page.mouse.move(box["x"] + box["width"] * start, box["y"] - 60)  # a hand that drags leaves the bars
        await page.mouse.move(box["x"] + box["width"] * end, box["y"] - 60, steps=4)
        await page.mouse.up()
        await page.wait_for_url(f"**{GROWING}?{query}")
        await episodes(page, count)
    await page.reload()
    await episodes(page, 4)
    await expect(page.get_by_label("below")).to_have_value("0.375")
    await expect(page.get_by_role("link", name="pay")).to_be_visible()
    assert [await bars.nth(place).get_attribute("aria-pressed") for place in (0, 9, 10)] == ["true", "true", "false"]
    await bars.first.click()
    await page.wait_for_url(f"**{GROWING}?low=0&below=0.0375")
    await expect(bars.nth(1)).to_have_attribute("aria-pressed", "false")
    await bars.first.press("Enter")  # the same again: all of them
    await episodes(page, 9)
    await page.wait_for_url(f"**{GROWING}")


async def test_bars_and_cells_lead_to_their_episodes(
    server_of_growing: Served, served: Served, open_page: OpenPage, counter: Path
) -> None:
    page = await open_page(GROWING, server_of_growing.url)
    await page.get_by_role("link", name="pay").click()
    await episodes(page, 1)
    await expect(page.get_by_role("row", selected=True)).to_contain_text("0.25")
    await page.go_back()
    await page.get_by_role("link", name="timeout").click()
    await episodes(page, 1)
    await page.get_by_role("button", name="Tasks").click()
    await page.get_by_role("link", name="Task 4, rollout 0: failed, timeout").click()
    await page.wait_for_url(f"**{GROWING}/rollouts/1?file=failures")
    await expect(page.get_by_text("the model took <b>too long</b>").first).to_be_visible()
    await expect(page.get_by_text("I did task 4.")).to_be_visible()
    first = json.loads((counter / "counter.jsonl").read_text().splitlines()[0])
    page = await open_page(f"{COUNTER}?tab=tasks", served.url)
    await page.get_by_role(
        "link", name=f"Task {first['_ng_task_index']}, rollout {first['_ng_rollout_index']}:"
    ).click()
    await page.wait_for_url(f"**{COUNTER}/sessions/{first['_stateroom_session']}")


async def test_the_list_of_episodes_sorts_and_opens_by_keyboard(server_of_growing: Served, open_page: OpenPage) -> None:
    page = await open_page(GROWING, server_of_growing.url)
    await page.get_by_role("button", name="Reward").click()
    await page.get_by_role("button", name="Reward").click()
    await page.wait_for_url(f"**{GROWING}?sort=-reward")
    await expect(page.get_by_role("row", selected=True)).to_contain_text("0.75")
    await page.reload()
    await expect(page.get_by_role("columnheader", name="Reward")).to_have_attribute("aria-sort", "descending")
    await expect(page.get_by_role("row", selected=True)).to_contain_text("0.75")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**{GROWING}/rollouts/8")
    await expect(page.get_by_text("I did task 3.")).to_be_visible()
    await page.keyboard.press("u")
    await page.wait_for_url(f"**{GROWING}")


async def test_an_unknown_run_is_told_once(served: Served, open_page: OpenPage, problems: list[str]) -> None:
    asked: list[str] = []

    def note(request: Request) -> None:
        if "/nothing" in request.url:
            asked.append(request.url)

    page = await open_page("/studio/", served.url)
    page.on("request", note)
    await page.clock.install()
    await page.goto("/studio/runs/nothing")
    await expect(page.get_by_role("alert")).to_have_count(1)
    await expect(page.get_by_role("alert")).to_contain_text("nothing")
    before = len(asked)
    await page.clock.run_for(60_000)
    assert len(asked) == before
    assert all("404" in each for each in problems)
    problems.clear()


async def test_without_a_folder_the_page_says_how_to_give_one(open_page: OpenPage) -> None:
    page = await open_page("/studio/runs")
    await expect(page.get_by_text("stateroom studio --runs DIR")).to_be_visible()
