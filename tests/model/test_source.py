"""Models by what a user typed."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stateroom.errors import InvalidModel, ModelFailed, NotFound
from stateroom.model import (
    Answer,
    Item,
    Model,
    ModelLimits,
    Policy,
    Request,
    answer_of,
    input_items,
    message,
    open_model,
    text_of,
)
from tests.messages import raises
from tests.model.endpoints import Server, says
from tests.patience import PATIENCE


class Says(Policy):
    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        return [message(f"seed {self.seed}")]


class Broken(Policy):
    def __init__(self, seed: int = 0) -> None:
        raise ValueError("no such seed")

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        return []


class Plain(Model):
    async def answer(self, request: Request) -> Answer:
        return Answer([message("plain")])


OWN = {"reference": Says, "broken": Broken, "plain": Plain}
HELLO = Request(input_items("Hello."))


async def test_a_policy_by_its_name_is_a_new_one_for_each_episode() -> None:
    async with open_model("reference", OWN) as source:
        one, two = source.for_episode(1), source.for_episode(2)
        assert source.name == "reference"
        assert one is not two
        assert [text_of((await answer_of(model, HELLO)).items[0]) for model in (one, two)] == ["seed 1", "seed 2"]


async def test_a_model_class_of_the_environment_is_one_model_for_all_episodes() -> None:
    async with open_model("plain", OWN) as source:
        assert source.for_episode(0) is source.for_episode(1)


PROGRAM = """
from stateroom.model import Answer, Model, Policy, message

class Mine(Policy):
    def respond(self, conversation, tools):
        return [message("mine")]

class Shared(Model):
    async def answer(self, request):
        return Answer([message("shared")])

class Choosy(Model):
    def __init__(self, size):
        pass
    async def answer(self, request):
        return Answer([])

class Unfinished(Policy):
    pass

number = 7
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(PROGRAM)
    return path


async def test_a_policy_and_a_model_of_the_user(program: Path) -> None:
    for name, shared in (("Mine", False), ("Shared", True)):
        async with open_model(f"{program}:{name}", {}) as source:
            one, two = source.for_episode(1), source.for_episode(2)
            assert (one is two) is shared
            assert text_of((await answer_of(one, HELLO)).items[0]) == name.lower()


@pytest.mark.parametrize("name", ["number", "Unfinished", "Choosy", "Other"])
def test_what_cannot_act_is_refused(program: Path, name: str) -> None:
    with raises(NotFound if name == "Other" else InvalidModel):
        open_model(f"{program}:{name}", {})


@pytest.mark.parametrize("spec", ["nobody", "openai:", "openai", "chat:", "replay:", "local:", ""])
def test_an_unknown_name_is_told_what_there_is(spec: str) -> None:
    with raises(NotFound):
        open_model(spec, OWN)
    with raises(NotFound):
        open_model(spec, {})


@pytest.mark.parametrize("spec", ["chat:llama", "responses:llama@", "chat:@http://h/v1", "chat:m@ftp://h/v1"])
def test_an_endpoint_needs_a_name_and_an_address(spec: str) -> None:
    with raises(InvalidModel):
        open_model(spec, {})


def test_openai_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with raises(InvalidModel):
        open_model("openai:gpt-x", {})


async def test_openai_is_where_its_variable_says(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/")
    server.replies = [says("responses", "Hi.")]
    async with open_model("openai:gpt-x", {}) as source:
        await answer_of(source.for_episode(3), HELLO)
    (asked,) = server.asked
    assert asked.body["model"] == "gpt-x"
    assert asked.path.endswith("/v1/responses")
    assert "metadata" not in asked.body


async def test_an_endpoint_is_shared_by_all_episodes(server: Server, kind: str) -> None:
    server.replies = [says(kind, "Hi.")]
    async with open_model(f"{kind}:org/m@v2@{server.url}", {}) as source:
        assert source.for_episode(1) is source.for_episode(2)
        await answer_of(source.for_episode(1), HELLO)
    assert server.asked[0].body["model"] == "org/m@v2"


def test_a_policy_that_cannot_be_made_is_a_failure_of_the_episode() -> None:
    with raises(ModelFailed):
        open_model("broken", OWN).for_episode(1)


WITHOUT_SDK = """
import sys
from stateroom.errors import NotFound
from stateroom.model import open_model
assert "openai" not in sys.modules
sys.modules["openai"] = None
try:
    open_model("chat:m@http://h/v1", {})
except NotFound as error:
    print(error)
"""


def test_the_sdk_is_loaded_only_when_it_is_needed_and_then_named_if_it_is_missing() -> None:
    command = [sys.executable, "-c", WITHOUT_SDK]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout == "a remote model needs openai: pip install 'stateroom[openai]'\n"


@pytest.mark.parametrize("spec", ["replay:x.jsonl", "local", "reference", "gold"])
@pytest.mark.parametrize("option", [{"limits": ModelLimits()}, {"api_key_env": "LAB_KEY"}], ids=["limits", "key"])
def test_a_model_without_a_server_takes_neither_limits_nor_a_key(spec: str, option: dict[str, Any]) -> None:
    with raises(InvalidModel):
        open_model(spec, OWN, **option)


def test_a_model_that_is_made_already_takes_no_limits() -> None:
    with raises(InvalidModel):
        open_model(Says(), {}, limits=ModelLimits())
