"""The page's files: how they are served, how large they are, and that the wheel has them."""

import gzip
import re
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from yarl import URL

from stateroom.studio import Studio
from stateroom.studio.assets import Assets, without_documentation
from tests.server.conftest import Served
from tests.studio.conftest import OpenStudio

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src" / "stateroom" / "studio" / "static"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "font-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
FILES = [each.relative_to(STATIC).as_posix() for each in STATIC.rglob("*") if each.is_file()]

pytestmark = pytest.mark.asyncio(loop_scope="session")


def served_as(name: str) -> bytes:
    body = (STATIC / name).read_bytes()
    return without_documentation(body) if name.endswith(".js") else body


async def page_of(served: Served, path: str = "/studio/") -> str:
    async with served.client.get(f"{served.url}{path}") as reply:
        assert reply.status == 200
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        return await reply.text()


async def test_the_page_has_strict_headers(studio: Served) -> None:
    async with studio.client.get(f"{studio.url}/studio/") as reply:
        headers = reply.headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cache-control"] == "no-cache"
    assert "set-cookie" not in headers


async def test_a_policy_that_counts_over_tls_only_is_sent_there_and_on_this_machine(open_studio: OpenStudio) -> None:
    served = await open_studio(studio=Studio(token="good for tests"), hosts=None)
    for headers, sent in (
        ({"host": "rooms.example"}, False),
        ({"host": "rooms.example", "x-forwarded-proto": "https"}, True),
        ({"host": "localhost:8008"}, True),
        ({"host": "[::1]:8008"}, True),
    ):
        async with served.client.get(f"{served.url}/studio/", headers=headers) as reply:
            assert (reply.status, "cross-origin-opener-policy" in reply.headers) == (200, sent), headers


@pytest.mark.parametrize(
    "path", ["/studio", "/studio/sessions", "/studio/sessions/a%2Fb?at=5&tab=state", "/studio/x.js"]
)
async def test_every_place_below_is_the_page(studio: Served, path: str) -> None:
    assert await page_of(studio, path) == await page_of(studio)


async def test_the_page_is_compressed_for_those_who_take_it(studio: Served) -> None:
    for accepted, encoding in {"br, gzip": "gzip", "gzip;q=0": None, "identity": None}.items():
        async with studio.client.get(f"{studio.url}/studio/", headers={"accept-encoding": accepted}) as reply:
            assert (reply.headers.get("content-encoding"), reply.headers["vary"]) == (encoding, "accept-encoding")
            assert await reply.text() == await page_of(studio)


async def test_all_modules_are_loaded_at_once(studio: Served) -> None:
    links = re.findall(r'<link rel="modulepreload" href="/studio/[0-9a-f]{16}/(.+?)">', await page_of(studio))
    assert sorted(links) == sorted(name for name in FILES if name.endswith(".js"))


async def test_files_are_cached_for_ever(studio: Served) -> None:
    places = re.findall(r'(?:href|src)="(/studio/[0-9a-f]{16}/.+?)"', await page_of(studio))
    assert places
    for place in places:
        async with studio.client.get(f"{studio.url}{place}") as reply:
            assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert await reply.read() == served_as(place.split("/", 3)[3])


async def test_an_unknown_file_or_one_of_another_release_is_not_the_page(studio: Served) -> None:
    [folder] = {*re.findall(r"/studio/([0-9a-f]{16})/", await page_of(studio))}
    for place in (f"{folder}/nothing.js", f"{folder}/../app.py", f"{folder}/%2e%2e/app.py", "0123456789abcdef/main.js"):
        async with studio.client.get(URL(f"{studio.url}/studio/{place}", encoded=True)) as reply:
            assert reply.status == 404


async def test_another_content_has_another_address(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("{{base}} {{preload}}")
    (tmp_path / "main.js").write_text("one")
    first = Assets("/studio", tmp_path).folder
    (tmp_path / "main.js").write_text("two")
    assert Assets("/studio", tmp_path).folder != first


async def test_the_wheel_has_the_page() -> None:
    builder = WheelBuilder(str(ROOT))
    held = {each.distribution_path for each in builder.recurse_included_files()}
    assert {f"stateroom/studio/static/{name}" for name in FILES} <= held


async def test_modules_are_sent_without_their_documentation() -> None:
    module = b"/** What it is. */\nimport x;\n\n  /**\n   * More.\n   */\nconst a = /** @type {any} */ (1); // one\n"
    assert without_documentation(module) == b"\nimport x;\n\n\n\n\nconst a = (1); // one\n"
    vendored = [STATIC / name for name in FILES if name.startswith("vendor/") and name.endswith(".js")]
    assert all(without_documentation(each.read_bytes()) == each.read_bytes() for each in vendored)


async def test_the_page_is_small() -> None:
    """At most 90 kB of scripts and styles go over the wire, and at most 400 kB are in the wheel."""
    files = [STATIC / name for name in FILES]
    code = [served_as(name) for name in FILES if name.endswith((".js", ".css"))]
    assert sum(len(gzip.compress(each)) for each in code) <= 90_000
    assert sum(each.stat().st_size for each in files) <= 400_000
