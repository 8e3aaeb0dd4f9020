"""The key is sent to the endpoint, and is seen nowhere else."""

import logging
import traceback
from collections.abc import Callable

import pytest

from stateroom.errors import InvalidModel, ModelUnavailable, NotFound, StateroomError
from stateroom.model import Judge, ModelLimits, answer_of, open_model, text_of
from stateroom.model.address import key_variable
from tests.messages import raises
from tests.model.endpoints import (
    HELLO,
    KEY,
    Asked,
    Hang,
    ModelAddress,
    Reply,
    Server,
    answered,
    answered_by,
    asking,
    says,
)

HERE = "API_KEY_127_0_0_1"


def echo(asked: Asked) -> str:
    """What the server was sent as its key."""
    return asked.headers["authorization"]


FAULTS: dict[str, Reply | Hang | Callable[[Asked], Reply]] = {
    "refused": lambda asked: Reply({"error": {"message": f"Incorrect API key provided: {echo(asked)}."}}, 401),
    "refused at length": lambda asked: Reply({"error": {"message": "x" * 975 + echo(asked)}}, 403),
    "busy": lambda asked: Reply({"error": {"message": f"{echo(asked)} is over its limit"}}, 429),
    "broken": lambda asked: Reply(f"Traceback: {echo(asked)}", 500),
    "no JSON": lambda asked: Reply(f"your key is {echo(asked)}"),
    "wrong shape": lambda asked: Reply({"choices": echo(asked), "output": echo(asked)}),
    "failed": lambda asked: Reply({"status": "failed", "error": {"message": echo(asked)}, "choices": [echo(asked)]}),
    "hangs": Hang(),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_error_and_no_log_has_the_key(
    server: Server, kind: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.replies = [FAULTS[fault]]
    caplog.set_level(logging.DEBUG)
    async with asking(kind, server.url, ModelLimits(attempts=2, timeout=0.2 if fault == "hangs" else 30)) as model:
        with pytest.raises(StateroomError) as caught:
            await answer_of(model, HELLO)
        seen = [repr(model), model.name, repr(caught.value), *map(repr, caught.value.args)]
    seen += traceback.format_exception(caught.value)
    seen += traceback.format_exception(caught.value.__context__) if caught.value.__context__ else []
    seen += [caplog.text, *(str(record.__dict__) for record in caplog.records)]
    assert echo(server.asked[0]) == f"Bearer {KEY}"
    assert KEY[:12] not in "\n".join(seen)


async def test_nobody_there_is_unavailable_and_does_not_show_the_key(kind: str) -> None:
    async with asking(kind, "http://127.0.0.1:1/v1", ModelLimits(attempts=3)) as model:
        with raises(ModelUnavailable) as caught:
            await answer_of(model, HELLO)
    assert KEY not in "".join(traceback.format_exception(caught.value))


async def test_an_answer_that_repeats_the_key_is_kept_without_it(server: Server, kind: str) -> None:
    server.replies = [lambda asked: says(kind, f"I was sent {echo(asked)}.")]
    answer = await answered(kind, server)
    assert "I was sent Bearer ***." in str(answer.items)
    assert KEY not in str(answer)


@pytest.mark.parametrize(("key", "said"), [("ollama", "Install ollama."), ("1", "It is 1.")])
async def test_a_key_that_is_only_a_word_leaves_answers_as_they_are(
    server: Server, kind: str, key: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HERE, key)
    server.replies = [says(kind, said)]
    answer = await answered_by(f"{kind}:m@{server.url}")
    assert text_of(answer.items[0]) == said


async def test_names_have_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv(HERE, KEY)
    for spec in ("openai:gpt-x", "responses:m@http://127.0.0.1:1/v1", "chat:m@http://127.0.0.1:1/v1"):
        async with open_model(spec, {}) as source:
            model = source.for_episode(0)
            assert source.name == model.name == spec
            assert KEY not in f"{source!r} {model!r} {source.name}"
    assert KEY not in repr(ModelAddress("m", "http://h/v1", KEY))


@pytest.mark.parametrize(
    "spec",
    [
        "chat:m@http://user:hunter2@host/v1",
        "chat:m@http://hunter2@host/v1",
        "chat:m@http://host/v1?key=hunter2",
        "chat:m@http://host/v1#hunter2",
        "chat:m@http://user:hunter2@[host/v1",
        "chat:m@http://user:hunter2@host:port/v1",
        "chat:m@http://host/v1,http://user:hunter2@other/v1",
        "chat:m@http://host/v1,user:hunter2@other/v1",
        "chatt:m@http://user:hunter2@host:80/v1",
        "http://user:hunter2@host:80/v1",
    ],
)
def test_an_address_with_a_secret_is_refused_and_not_shown(spec: str) -> None:
    with pytest.raises((InvalidModel, NotFound)) as caught:
        open_model(spec, {})
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_so_is_one_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "https://user:hunter2@host/v1")
    with raises(InvalidModel) as caught:
        open_model("openai:gpt-x", {})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["sk-\nhunter2", "sk-é-hunter2", "sk hunter2"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HERE, key)
    with raises(InvalidModel) as caught:
        open_model("chat:m@http://127.0.0.1:1/v1", {})
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


async def test_a_key_with_a_line_end_after_it_is_good(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HERE, f"{KEY}\n")
    server.replies = [says("chat", "Hi.")]
    await answered_by(f"chat:m@{server.url}")
    assert echo(server.asked[0]) == f"Bearer {KEY}"


async def test_the_key_of_openai_goes_to_no_other_host(
    server: Server, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.replies = [Reply({"error": {"message": "who are you?"}}, 401)]
    with pytest.raises(StateroomError):
        await answered_by(f"{kind}:m@{server.url}")
    assert echo(server.asked[0]) == "Bearer none"


async def test_a_judge_sends_its_own_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai-0123456789")
    monkeypatch.setenv(HERE, KEY)
    server.replies = [says("chat", '{"score": 1, "reason": "good"}')]
    await Judge(f"chat:m@{server.url}", "Is it good?").score(question="?", answer="!")
    assert echo(server.asked[0]) == f"Bearer {KEY}"


async def test_a_named_variable_has_the_key(server: Server, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HERE, "sk-of-this-host-0123456789")
    with raises(InvalidModel):
        open_model(f"{kind}:m@{server.url}", {}, api_key_env="LAB_KEY")
    monkeypatch.setenv("LAB_KEY", KEY)
    server.replies = [says(kind, "Hi.")]
    await answered_by(f"{kind}:m@{server.url}", api_key_env="LAB_KEY")
    assert echo(server.asked[0]) == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("https://api.openai.com/v1", "OPENAI_API_KEY"),
        ("https://API.openai.com:443/v1", "OPENAI_API_KEY"),
        ("https://api.openai.com.evil.example/v1", "API_KEY_API_OPENAI_COM_EVIL_EXAMPLE"),
        ("https://my-lab.example:8443/v1", "API_KEY_MY_LAB_EXAMPLE"),
        ("http://[::1]:8000/v1", "API_KEY___1"),
    ],
)
def test_each_host_has_its_own_variable(url: str, variable: str) -> None:
    assert key_variable(url) == variable
