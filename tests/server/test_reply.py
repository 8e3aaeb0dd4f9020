"""A user who answers, over the wire: the endpoint, who may use it, and runs that are the same here and there."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stateroom import Environment, State, tool
from stateroom.agent import SimulatedUser, UserSide
from stateroom.errors import ModelFailed, ModelUnavailable
from stateroom.gallery import CounterEnvironment, RefundEnvironment
from stateroom.model import Item, Policy, Scripted, function_call, message, outputs_of
from stateroom.pauses import Pauses
from stateroom.rollout import RunPlan, generate_tasks, run
from stateroom.session import STANDARD, Lifecycle
from tests.messages import says
from tests.rows import rows
from tests.server.conftest import Connect, Served
from tests.server.here_and_there import plan, run_in_both, run_to_failure


class Talk(State):
    heard: list[str] = []
    side: UserSide = UserSide()


class TalkEnvironment(Environment[Talk]):
    """Answers, and remembers what it was told."""

    @tool(effect="read")
    def look(self, state: Talk) -> list[str]:
        """What was heard."""
        return list(state.heard)

    @tool
    def sign(self, state: Talk, ask: Callable[[str], Any]) -> str:
        """Have something signed."""
        return str(ask("Will you sign?"))

    def reply(self, state: Talk, message: str, rng: Random) -> str | None:
        if message == "break":
            state.heard.append(message)
            raise LookupError("a secret")
        state.heard.append(message)
        return f"You said {message!r}, and I rolled {rng.random()}." if len(state.heard) < 3 else None

    def verify(self, state: Talk) -> float:
        return float(len(state.heard))


class OracleEnvironment(Environment):
    """Answers, and remembers nothing."""

    @tool
    def roll(self, rng: Random) -> float:
        """Roll."""
        return rng.random()

    def reply(self, message: str, rng: Random) -> str | None:
        return None if message == "bye" else f"{message}? {rng.random()}"

    def verify(self) -> float:
        return 1.0


def key(name: str) -> dict[str, Any]:
    return {"headers": {"Idempotency-Key": name}}


async def seeded(served: Served) -> dict[str, Any]:
    found = await served.good("/seed_session", {})
    return dict(found)


@pytest.fixture
async def talk(serve: Any) -> Any:
    return await serve(TalkEnvironment())


# The endpoint.


async def test_a_message_is_answered_once_until_there_is_no_more_to_say(talk: Any) -> None:
    assert (await seeded(talk))["replies"] is True
    status, first = await talk.post("/reply", {"message": "hello"}, **key("1"))
    assert (status, first["reply"].startswith("You said 'hello'")) == (200, True)
    assert await talk.post("/reply", {"message": "hello"}, **key("1")) == (200, first)
    assert (await talk.post("/look"))[1] == ["hello"]
    await talk.post("/reply", {"message": "and?"}, **key("2"))
    assert await talk.post("/reply", {"message": "bye"}, **key("3")) == (200, {"reply": None})


async def test_without_an_id_the_header_is_asked_for_and_a_model_learns_that_this_is_no_tool(talk: Any) -> None:
    await seeded(talk)
    status, found = await talk.post("/reply", {"message": "hello"})
    assert (status, found["error"]["code"]) == (422, "invalid_arguments")
    says(found["error"]["message"])
    assert (await talk.post("/look"))[1] == []


async def test_an_environment_that_does_not_answer_has_no_such_endpoint(served: Any) -> None:
    _, found = await served.post("/seed_session", {"initial_count": 0, "expected_count": 0})
    assert "replies" not in found
    assert await served.refused("/reply", {"message": "hello"}, **key("1")) == (404, "unknown_tool")


@pytest.mark.parametrize(
    ("body", "name", "status", "code"),
    [
        ({}, "1", 422, "invalid_arguments"),
        ({"message": 1}, "1", 422, "invalid_arguments"),
        ({"message": None}, "1", 422, "invalid_arguments"),
        ({"message": "hello"}, "\x85", 422, "invalid_arguments"),
        ({"message": "break"}, "1", 500, "environment_error"),
    ],
)
async def test_what_is_wrong_is_told_and_changes_nothing(
    talk: Any, body: dict[str, Any], name: str, status: int, code: str
) -> None:
    await seeded(talk)
    got, found = await talk.post("/reply", body, **key(name))
    assert (got, found["error"]["code"]) == (status, code)
    assert "a secret" not in found["error"]["message"]
    assert (await talk.post("/look"))[1] == []


async def test_it_takes_the_session_of_the_cookie(talk: Any, connect: Connect) -> None:
    stranger = await connect(talk.url)
    assert await stranger.refused("/reply", {"message": "hello"}, **key("1")) == (401, "unauthorized")
    await seeded(talk)
    await talk.post("/verify", {"response": {"output": []}})
    assert await talk.refused("/reply", {"message": "hello"}, **key("1")) == (409, "session_sealed")


async def test_it_is_described_where_it_is(serve: Any) -> None:
    served = await serve(TalkEnvironment(), CounterEnvironment())
    _, document = await served.get("/openapi.json")
    operation = document["paths"]["/talk/reply"]["post"]
    assert operation["parameters"][0]["required"] is True
    assert "/counter/reply" not in document["paths"]
    assert "x-stateroom-effect" not in operation


async def test_it_is_no_tool_over_mcp(talk: Any) -> None:
    headers = (await seeded(talk))["mcp"]["headers"] | {"Accept": "application/json, text/event-stream"}
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    _, found = await talk.post("/mcp", listing, headers=headers)
    assert sorted(each["name"] for each in found["result"]["tools"]) == ["look", "sign"]
    call = {**listing, "method": "tools/call", "params": {"name": "reply", "arguments": {"message": "hello"}}}
    _, found = await talk.post("/mcp", call, headers=headers)
    assert "unknown tool 'reply'" in json.dumps(found)


# Runs.


class Talks(Policy):
    """Says something, looks twice at once, and says something more, for ever."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if not conversation or conversation[-1].get("role") == "user":
            return [function_call("look", "same"), function_call("look", "same")]
        return [message(f"message {len(conversation)}")]


class Rolls(Policy):
    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if len(conversation) > 5:
            return [message("bye")]
        return [function_call("roll", "r")] if len(conversation) % 2 else [message(f"{len(conversation)}")]


class Signs(Policy):
    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        return [message("done")] if outputs_of(conversation) else [function_call("sign", "s")]


@pytest.mark.parametrize("policy", ["reference", "noisy"])
async def test_refunds_are_the_same_here_and_there(serve: Any, tmp_path: Path, policy: str) -> None:
    served = await serve(RefundEnvironment())
    tasks = generate_tasks(RefundEnvironment, 8, seed=1)
    found = RefundEnvironment.policies[policy]
    report, there = await run_in_both(tmp_path, served.url, RefundEnvironment(), found, tasks=tasks)
    assert len(report.rows) == 24
    assert len(answers_of(there)) >= 24
    assert (report.metrics["agent_metrics"]["mean/reward"] == 1.0) == (policy == "reference")


def answers_of(made: RunPlan) -> list[str]:
    """What the user has said in all episodes."""
    items = [item for row in rows(made.files.rollouts) for item in row["response"]["output"]]
    return [item["content"] for item in items if item.get("role") == "user"]


class OpeningEnvironment(OracleEnvironment):
    """Speaks first."""

    def reply(self, rng: Random, message: str = "") -> str | None:
        return super().reply(message, rng)


class RollsBetween(Policy):
    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        assert conversation[0]["role"] == "user"
        if len(conversation) > 6:
            return [message("bye")]
        return [function_call("roll", "r")] if len(conversation) % 4 == 3 else [message(f"{len(conversation)}")]


@pytest.mark.parametrize(
    ("kind", "policy"), [(TalkEnvironment, Talks), (OracleEnvironment, Rolls), (OpeningEnvironment, RollsBetween)]
)
async def test_conversations_are_the_same_here_and_there_luck_included(
    serve: Any, tmp_path: Path, kind: type[Environment[Any, Any]], policy: type[Policy]
) -> None:
    served = await serve(kind())
    _, there = await run_in_both(tmp_path, served.url, kind(), policy, tasks=[{}, {}], seed=5, max_steps=40)
    assert len({*answers_of(there)}) >= 8


async def test_an_environments_own_lifecycle_holds_on_a_server_too(serve: Any, tmp_path: Path) -> None:
    class DeafEnvironment(TalkEnvironment):
        """Nobody is to hear an answer."""

        lifecycle = Lifecycle({move: to for move, to in STANDARD.table.items() if move[1] != "input_received"})

    served = await serve(DeafEnvironment())
    for name, server in (("here", None), ("there", served.url)):
        report = await run(plan(tmp_path, name, DeafEnvironment(), Talks, tasks=[{}], repeats=1, server=server))
        assert str(report.first_error).startswith("InvalidMove: ")


async def test_a_server_whose_environment_is_not_known_here_answers_too(serve: Any, tmp_path: Path) -> None:
    class Unknown(Environment):
        """Known elsewhere."""

    served = await serve(TalkEnvironment())
    tools = TalkEnvironment().tool_definitions()
    offered = [*tools, {**tools[0], "name": "reply"}]
    task = {"responses_create_params": {"input": "go", "tools": offered}}
    there = plan(tmp_path, "there", Unknown(), Talks, tasks=[task], repeats=1, server=served.url)
    report = await run(there)
    assert (report.first_error, report.rows[0]["reward"]) == (None, 3.0)


async def test_a_model_cannot_call_reply_by_way_of_our_runner(serve: Any, tmp_path: Path) -> None:
    class Cheats(Policy):
        def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
            if outputs_of(conversation):
                return [message("done")]
            return [function_call("reply", "r", message="hello")]

    served = await serve(TalkEnvironment())
    _, there = await run_in_both(tmp_path, served.url, TalkEnvironment(), Cheats, tasks=[{}], repeats=1)
    [output] = outputs_of(rows(there.files.rollouts)[0]["response"]["output"])
    assert output["error"]["code"] == "unknown_tool"


async def test_who_asks_a_person_on_a_server_cannot_wait_there(talk: Any, tmp_path: Path) -> None:
    says((await run_to_failure(tmp_path, talk.url, TalkEnvironment(), Signs, tasks=[{}]))["error"])


class PlayedEnvironment(TalkEnvironment):
    """Its user is played by a model."""

    def __init__(self, *answers: Any) -> None:
        self.user = SimulatedUser(Scripted(answers), "You are a user.")

    async def reply(self, state: Talk, message: str) -> str | None:
        return await self.user.reply(state.side, message)


@pytest.mark.parametrize(("error", "terminal"), [(ModelUnavailable("busy"), False), (ModelFailed("nonsense"), True)])
async def test_a_model_that_fails_as_a_user_fails_the_episode_for_now_or_for_good(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, terminal: bool
) -> None:
    monkeypatch.setattr("stateroom.rollout.client.PAUSES", Pauses(0.0, 0.0))
    monkeypatch.setattr("stateroom.rollout.client._retry_after", lambda reply: 0.0)
    served = await serve(PlayedEnvironment("Hello.", error))
    failed = await run_to_failure(tmp_path, served.url, TalkEnvironment(), Talks, tasks=[{}])
    says(failed["error"])
    assert failed["_ng_failure_terminal"] is terminal
