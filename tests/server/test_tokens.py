"""Session tokens, the cookie they travel in, and the secrets that sign them."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from stateroom.errors import CannotWrite, DefinitionError, Unauthorized
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment, WeatherEnvironment
from stateroom.server import find_secrets
from stateroom.server.tokens import Signer
from tests.messages import raises
from tests.server.test_protocol import post, read

ROW = {"initial_count": 3, "expected_count": 9}

SECRET, OTHER = "a secret that is only good for tests", "another secret that is for tests"

HOUR, DAY = 3600.0, 24 * 3600.0

GOOD = Signer((SECRET,), "counter", HOUR, lambda: 1e9).sign("5f0c" * 6)


def signer(*secrets: str, environment: str = "counter", now: float = 1e9, ttl: float = HOUR) -> Signer:
    return Signer(secrets or (SECRET,), environment, ttl, lambda: now)


@given(place=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255))
def test_a_token_altered_in_any_byte_is_refused(place: int, byte: int) -> None:
    altered = GOOD[:place] + bytes([byte]) + GOOD[place + 1 :]
    if altered != GOOD:
        with pytest.raises(Unauthorized):
            signer().read(altered)


@given(st.binary(max_size=100))
@example(b"")
@example(b".")
@example(b"..")
@example("é.5.ü".encode())
@example(b"a.zz." + b"0" * 40)
def test_what_was_not_signed_is_refused(token: bytes) -> None:
    with pytest.raises(Unauthorized):
        signer().read(token)


def test_keys_and_ids_are_no_tokens_and_do_not_follow_from_one() -> None:
    subject, _ = signer().read(GOOD)
    key = signer().seed_key(subject)
    assert key.encode() not in GOOD
    assert not signer().is_seed_key(subject, GOOD.rpartition(b".")[2].decode())
    with pytest.raises(Unauthorized):
        signer().read(GOOD.rpartition(b".")[0] + b"." + key.encode())
    assert signer().session_ids("one") != signer(environment="weather").session_ids("one")
    assert signer().session_ids("one") != signer(OTHER).session_ids("one")


@pytest.mark.parametrize("secrets", [(), ("",), ("fifteen letters",), (SECRET, "short")])
def test_nothing_is_signed_with_what_can_be_guessed(secrets: tuple[str, ...]) -> None:
    with raises(DefinitionError):
        Signer(secrets, "counter", HOUR)


async def posted(served: Any, path: str, token: str | None, name: str = "stateroom_counter") -> tuple[int, str, Any]:
    """Status, code and cookies of the reply to a client that has this token only."""
    served.client.cookie_jar.clear()
    headers = {} if token is None else {"Cookie": f"{name}={token}"}
    async with served.client.post(f"{served.url}{path}", json={}, headers=headers) as reply:
        body = await reply.json()
        return reply.status, body.get("error", {}).get("code", ""), reply.cookies


async def test_a_bad_token_gets_401_and_no_session(serve: Any) -> None:
    served = await serve(CounterEnvironment(), ExtractionEnvironment(), WeatherEnvironment())
    await served.post("/counter/seed_session", ROW)
    good = served.token
    subject, issued, signature = good.split(".")
    foreign = Signer((OTHER,), "counter", HOUR).sign(subject).decode()
    of_another = Signer((SECRET,), "extraction", HOUR).sign(subject).decode()
    altered = [f"{subject[:-1]}{'0' if subject[-1] != '0' else '1'}.{issued}.{signature}", f"{subject}.0.{signature}"]
    bad = ["", ".", "..", "abc", good[:-1], good + "0", f'"{good}"', foreign, of_another, *altered, "%00", "é"]
    for token in [*bad, None]:
        for path in ("get_counter_value", "verify", "step", "close"):
            status, code, cookies = await posted(served, f"/counter/{path}", token)
            assert (status, code, cookies) == (401, "unauthorized", {}), (token, path)
    assert len(await served.services.store.heads()) == 1
    for token in bad:
        status, code, _ = await posted(served, "/weather/get_weather", token, "stateroom_weather")
        assert (status, code) == (401, "unauthorized")
    assert (await posted(served, "/counter/get_counter_value", good))[0] == 200


async def test_cookies_of_others_do_no_harm(served: Any, wire: Any) -> None:
    await served.post("/seed_session", ROW)
    good = f"stateroom_counter={served.token}"
    reader, writer = await wire(served.port)  # a client would tidy them up
    for cookies in (
        [f"Cookie: a=b; {good}; c=d"],
        [f"Cookie: a=b;{good};c=d"],
        ["Cookie: a=b", f"Cookie: {good}", "Cookie: c=d"],
        [f"Cookie: xstateroom_counter=bad; stateroom_counter2=bad; =; ;; {good} "],
    ):
        writer.write(post("/get_counter_value", None, *cookies))
        answer = await read(reader)
        assert (answer.status, answer.json) == (200, {"count": 3})
        assert answer.headers["set-cookie"].startswith(f"{good};")


async def test_the_cookie_is_for_http_alone_and_secure_behind_tls(served: Any) -> None:
    await served.post("/seed_session", ROW)
    good = served.token
    for proto, secure in [("https", True), ("HTTPS, http", True), ("http", False), (None, False)]:
        headers = {"Cookie": f"stateroom_counter={good}"} | ({"X-Forwarded-Proto": proto} if proto else {})
        async with served.client.post(f"{served.url}/get_counter_value", headers=headers) as reply:
            [given] = reply.headers.getall("Set-Cookie")
            expected = f"stateroom_counter={good}; Path=/; HttpOnly; SameSite=Lax"
            assert given == (f"{expected}; Secure" if secure else expected)


async def test_tokens_expire_and_are_renewed_on_the_way(serve: Any) -> None:
    now = 1_000_000_000.0
    served = await serve(now=lambda: now, ttl=2 * DAY)
    await served.post("/seed_session", ROW)
    first = served.token
    now += DAY
    status, _, cookies = await posted(served, "/get_counter_value", first)
    renewed = cookies["stateroom_counter"].value
    assert (status, renewed == first) == (200, False)
    now += 2 * DAY + 1  # the session has had its time, and its token has not
    status, code, cookies = await posted(served, "/get_counter_value", renewed)
    assert (status, code) == (410, "session_expired")
    assert "stateroom_counter" in cookies
    assert (await posted(served, "/get_counter_value", first))[:2] == (401, "unauthorized")
    now += DAY
    assert (await posted(served, "/get_counter_value", renewed))[:2] == (401, "unauthorized")


async def test_a_token_of_an_older_secret_is_signed_anew(serve: Any, shared_url: str) -> None:
    before = await serve(store=shared_url, secrets=(SECRET,))
    await before.post("/seed_session", ROW)
    old = before.token
    after = await serve(store=shared_url, secrets=(OTHER, SECRET))
    status, _, cookies = await posted(after, "/get_counter_value", old)
    assert status == 200
    later = await serve(store=shared_url, secrets=(OTHER,))
    assert (await posted(later, "/get_counter_value", old))[:2] == (401, "unauthorized")
    assert (await posted(later, "/get_counter_value", cookies["stateroom_counter"].value))[0] == 200


@pytest.fixture
def secret_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("STATEROOM_SECRET", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "stateroom" / "secret"


def test_a_secret_is_made_on_first_use_and_kept(secret_file: Path) -> None:
    secrets, origin = find_secrets()
    assert (len(secrets), len(secrets[0]) >= 40, origin) == (1, True, str(secret_file))
    assert stat.S_IMODE(secret_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(secret_file.parent.stat().st_mode) == 0o700
    assert find_secrets() == (secrets, origin)
    assert list(secret_file.parent.iterdir()) == [secret_file]


def test_a_secret_made_meanwhile_is_taken(secret_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_too_late(draft: Path, path: Path) -> None:
        path.write_text("the secret of another process")
        path.chmod(0o600)
        link(draft, path)

    monkeypatch.setattr(os, "link", link_too_late)
    assert find_secrets()[0] == ["the secret of another process"]
    assert list(secret_file.parent.iterdir()) == [secret_file]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_secret_that_others_can_reach_is_refused(secret_file: Path, mode: int) -> None:
    find_secrets()
    secret_file.chmod(mode)
    with raises(DefinitionError):
        find_secrets()


def test_a_user_without_a_home_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("STATEROOM_SECRET", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with raises(CannotWrite):
        find_secrets()


def write(secret_file: Path, data: bytes) -> None:
    secret_file.parent.mkdir(parents=True)
    secret_file.write_bytes(data)
    secret_file.chmod(0o600)


@pytest.mark.parametrize("text", ["", "\n\n", "short", f"{SECRET}\nshort"])
def test_a_file_without_a_secret_is_named(secret_file: Path, text: str) -> None:
    write(secret_file, text.encode())
    with raises(DefinitionError):
        find_secrets()


def test_a_file_may_hold_any_bytes_and_many_secrets(secret_file: Path) -> None:
    write(secret_file, b"\xff" * 20 + b"\n" + SECRET.encode() + b"\n")
    secrets, _ = find_secrets()
    assert secrets[1] == SECRET
    assert signer(*secrets).read(GOOD)[0] == "5f0c" * 6


def test_the_variable_comes_first_and_names_many(secret_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEROOM_SECRET", f"{OTHER}, {SECRET},")
    assert find_secrets() == ([OTHER, SECRET], "STATEROOM_SECRET")
    assert not secret_file.exists()
    monkeypatch.setenv("STATEROOM_SECRET", f"{OTHER},short")
    with raises(DefinitionError):
        find_secrets()
