"""The built site: strictly, without a network, and with a search that finds what people look for."""

import json
import os
import re
import subprocess
import sys
from fcntl import LOCK_EX, flock
from functools import cache
from pathlib import Path

import pytest

from tests.site_search import SiteSearch

ROOT = Path(__file__).parents[1]
FIRST = 5
"""Results that people look at."""

STATE = "state.html"
SESSIONS = "sessions.html"
STEPS = "tutorial/steps.html"
TOPICS = {
    "stateless or stateful": STATE,
    "storage decision tree": "stores.html",
    "five patterns": STATE,
    "session id cookie": "serving.html",
    "seed again re-seeding": "tutorial/state.html",
    "missing state": STATE,
    "testing checklist": "tutorial/verifier.html",
    "stops after the first call": STEPS,
    "wrong order": STEPS,
    "steps not verified": STEPS,
    "LLM as judge": "judges.html",
    "conversation task user state": STATE,
    "lifecycle": "agents.html",
    "bounded state": STATE,
    "distributed state locks expiry": SESSIONS,
    "versions rollback": "time-travel.html",
    "threads memory frameworks": "adapters.html",
    "anti-patterns": STATE,
    "migration schema": "schemas.html",
    "conflicts": SESSIONS,
    "comparison verifiers OpenEnv": "why.html",
    "windows": "quickstart.html",
}
"""What people look for, and the page that says it, or PAGE#SECTION."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, which the processes of a test run share."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, building = shared / "site", shared / "site-building"
    with (shared / "site.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not folder.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(building)]
            quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
            done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            building.rename(folder)
    return folder


search_of = cache(SiteSearch)


@pytest.mark.more("time")
def test_the_site_builds_strictly_and_fetches_nothing_from_elsewhere(site: Path) -> None:
    """Strictly means: each page is in the menu, and each link and heading that is linked to is there."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").rglob("*.md")))
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|link|img|iframe)\b[^>]*https?://[^>]*>", html), page
        assert "doc-symbol-module" not in html, f"{page}: where a module has the name of what is in it, say MODULE.NAME"


@pytest.mark.more("time")
@pytest.mark.parametrize(("query", "place"), TOPICS.items(), ids=TOPICS)
def test_the_search_finds_a_topic_on_its_page(site: Path, query: str, place: str) -> None:
    results = search_of(site).results(query)[:FIRST]
    assert any(found == place or found.partition("#")[0] == place for sections in results for found in sections), (
        results
    )


def test_the_search_ranks_as_the_page_does(tmp_path: Path) -> None:
    """Titles before texts, all words before some of them, whole words and their beginnings, and pages as one result."""
    sections = [
        ("tea.html", "Tea", "Leaves and water."),
        ("tea.html#cups", "<code>Cups</code>", "A cup of tea, or two."),
        ("coffee.html", "Coffee", "Unlike tea, it needs beans."),
        ("api.html", "Tea", "A class."),
        ("water.html", "Water", "It boils."),
    ]
    boosts = {"api.html": 0.3}
    written = {
        "config": {"separator": r"[\s\-]+", "fields": {"title": {"boost": 1000.0}, "text": {"boost": 1.0}}},
        "docs": [
            {"location": location, "title": title, "text": text, "boost": boosts.get(location, 1)}
            for location, title, text in sections
        ],
    }
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "search_index.json").write_text(json.dumps(written), encoding="utf-8")
    search = SiteSearch(tmp_path)
    assert search.results("tea") == [["tea.html", "tea.html#cups"], ["api.html"], ["coffee.html"]]
    assert search.results("cup") == [["tea.html#cups"]]
    assert search.results("coffee-beans")[0] == ["coffee.html"]
    assert search.results("milk") == []
