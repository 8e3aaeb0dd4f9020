"""Conversations that a served model keeps, as OpenAI's own client uses them, with and without `await`."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from stateroom import Sessions, open_store
from stateroom.gallery import CounterEnvironment
from stateroom.model import Model, ModelSource
from stateroom.server import Limits, ModelApplication
from tests.patience import PATIENCE
from tests.server.conftest import running
from tests.server.serving_models import Served, serving
from tests.server.test_model_serve_faults import Failing, Waiting

ECHO = f"{Path(__file__).with_name('thread_models.py')}:Echo"
TOOLS: Any = CounterEnvironment().tool_definitions()


def saying(words: str) -> Any:
    return {"role": "user", "content": words}


HELLO = saying("hello")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(ECHO, tmp_path_factory.mktemp("served")) as started:
        yield started


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url, api_key="none", max_retries=0) as client:
        yield client


def texts(client: openai.OpenAI, conversation: str, **options: Any) -> list[str]:
    """The texts of a conversation, from all pages."""
    items: Any = client.conversations.items.list(conversation, **options)
    return [item.content[0].text for item in items]


def test_a_conversation_is_created_shown_updated_and_deleted(client: openai.OpenAI) -> None:
    made = client.conversations.create(metadata={"topic": "ships"})
    assert (made.object, made.metadata, made.id[:5]) == ("conversation", {"topic": "ships"}, "conv_")
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"topic": "boats", "by": "ann"})
    assert changed.metadata == {"topic": "boats", "by": "ann"}
    assert client.conversations.update(made.id, metadata=None).metadata == {}
    gone = client.conversations.delete(made.id)
    assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)


def test_the_model_answers_in_a_conversation_and_only_what_is_new_is_sent(
    client: openai.OpenAI, served: Served
) -> None:
    made = client.conversations.create(items=[{"role": "system", "content": "Be brief."}])
    first = client.responses.create(model=served.name, input="hello", conversation=made.id, store=True)
    assert (first.output_text, first.conversation and first.conversation.id) == ("2: hello", made.id)
    second = client.responses.create(model=served.name, input=[HELLO], conversation={"id": made.id})
    assert second.output_text == "4: hello"
    assert texts(client, made.id, order="asc") == ["Be brief.", "hello", "2: hello", "hello", "4: hello"]
    [newest] = client.conversations.items.list(made.id, limit=1).data
    assert newest.id == second.output[0].id
    assert first.id != second.id


def test_a_streamed_response_is_part_of_the_conversation(client: openai.OpenAI, served: Served) -> None:
    made = client.conversations.create()
    with client.responses.stream(model=served.name, input="hello", conversation=made.id) as stream:
        types = [event.type for event in stream]
        done = stream.get_final_response()
    assert (types[0], types[-1], done.output_text) == ("response.created", "response.completed", "1: hello")
    output: Any = done.output[0]
    item = client.conversations.items.retrieve(output.id, conversation_id=made.id)
    assert (item.type, item.id, done.conversation and done.conversation.id) == ("message", output.id, made.id)
    assert texts(client, made.id) == ["1: hello", "hello"]


def test_items_are_added_without_an_answer_and_answered_later(client: openai.OpenAI, served: Served) -> None:
    made = client.conversations.create(items=[HELLO])
    added = client.conversations.items.create(made.id, items=[HELLO, saying("good bye")])
    assert (added.object, len(added.data), added.has_more) == ("list", 2, False)
    assert (added.first_id, added.last_id) == (added.data[0].id, added.data[1].id)
    assert client.responses.create(model=served.name, conversation=made.id).output_text == "3: good bye"
    assert [item.id for item in client.conversations.items.list(made.id, order="asc").data][1:3] == [
        *(added.first_id, added.last_id),
    ]


def test_a_client_carries_out_tool_calls_over_several_requests(tmp_path: Path) -> None:
    add: Any = "Use the tools to change the counter: add 5, then add 2. Then read it and tell me its value."
    with serving("reference:counter", tmp_path) as served, openai.OpenAI(base_url=served.url, api_key="x") as client:
        made, given, value = client.conversations.create(), add, 0
        while True:
            response = client.responses.create(
                model=served.name, conversation=made.id, input=given, tools=TOOLS, max_output_tokens=100
            )
            calls: Any = [item for item in response.output if item.type == "function_call"]
            if not calls:
                break
            given = []
            for call in calls:
                value += json.loads(call.arguments).get("count", 0)
                output = '{"success": true}' if call.name == "increment_counter" else json.dumps({"count": value})
                given.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
        assert response.output_text == "The counter is at 7."
        kinds = [item.type for item in client.conversations.items.list(made.id, order="asc")]
        assert kinds == ["message", *["function_call", "function_call_output"] * 3, "message"]


def test_items_come_in_pages_in_either_order(client: openai.OpenAI) -> None:
    made = client.conversations.create()
    for number in range(0, 24, 4):
        words = [saying(str(each)) for each in range(number, number + 4)]
        client.conversations.items.create(made.id, items=words)
    numbers = [str(number) for number in range(24)]
    assert texts(client, made.id, order="asc", limit=5) == numbers
    assert texts(client, made.id, limit=5) == numbers[::-1]
    page = client.conversations.items.list(made.id)
    assert (len(page.data), page.has_more, page.last_id) == (20, True, page.data[-1].id)
    rest = page.get_next_page()
    assert (len(rest.data), rest.has_more) == (4, False)
    assert client.conversations.items.list(made.id, after=str(rest.data[-1].id)).data == []


def test_a_deleted_item_is_shown_to_nobody(client: openai.OpenAI, served: Served) -> None:
    made = client.conversations.create(metadata={"a": "b"}, items=[HELLO, saying("secret")])
    secret = client.conversations.items.list(made.id, limit=1).data[0].id
    assert secret is not None
    assert client.conversations.items.delete(secret, conversation_id=made.id) == made
    assert texts(client, made.id) == ["hello"]
    for work in (client.conversations.items.retrieve, client.conversations.items.delete):
        with pytest.raises(openai.NotFoundError, match="unknown item"):
            work(secret, conversation_id=made.id)
    assert client.responses.create(model=served.name, conversation=made.id).output_text == "1: hello"


def test_an_unknown_conversation_is_an_error_in_openais_format(client: openai.OpenAI, served: Served) -> None:
    items = client.conversations.items
    for unknown in ("conv_0123", "0123", "conv_"):
        for work in (
            lambda: client.conversations.retrieve(unknown),  # noqa: B023
            lambda: client.conversations.update(unknown, metadata={}),  # noqa: B023
            lambda: client.conversations.delete(unknown),  # noqa: B023
            lambda: items.create(unknown, items=[HELLO]),  # noqa: B023
            lambda: items.list(unknown),  # noqa: B023
            lambda: items.retrieve("msg_1", conversation_id=unknown),  # noqa: B023
            lambda: items.delete("msg_1", conversation_id=unknown),  # noqa: B023
            lambda: client.responses.create(model=served.name, input="x", conversation=unknown),  # noqa: B023
        ):
            with pytest.raises(openai.NotFoundError) as refused:
                work()
            body: Any = refused.value.body
            assert (body["type"], body["code"]) == ("invalid_request_error", "not_found")
            assert f"unknown conversation '{unknown}'" in body["message"]


def test_what_is_wrong_is_told_by_its_field(client: openai.OpenAI, served: Served) -> None:
    made = client.conversations.create()
    wrong: Any = [
        (lambda: client.conversations.create(metadata={"a": "x" * 513}), "metadata"),
        (lambda: client.conversations.create(items=[{"role": "user"}]), "items[0]"),  # type: ignore[list-item]
        (lambda: client.conversations.items.create(made.id, items=[]), "items"),
        (lambda: client.conversations.items.list(made.id, limit=0), "limit"),
        (lambda: client.conversations.items.list(made.id, after="msg_1"), "after"),
        (lambda: client.responses.create(model=served.name, conversation=made.id), "input"),
        (lambda: client.responses.create(model=served.name, conversation=3, input="x"), "conversation"),  # type: ignore[call-overload]
    ]
    for work, field in wrong:
        with pytest.raises(openai.BadRequestError) as refused:
            work()
        assert refused.value.param == field
    assert texts(client, made.id) == []


@asynccontextmanager
async def talking(model: Model, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a model that is served in this process, as `m`."""
    app = ModelApplication(ModelSource("m", lambda seed: model), Limits(), **options)
    async with (
        running(app) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


async def test_two_conversations_at_once_and_one_request_in_each() -> None:
    gate = Waiting()
    async with talking(gate) as client:
        one, two = [await client.conversations.create() for _ in range(2)]

        def ask(conversation: str) -> Any:
            return asyncio.ensure_future(client.responses.create(model="m", input="x", conversation=conversation))

        first, other = ask(one.id), ask(two.id)
        await asyncio.wait_for(gate.asked.wait(), PATIENCE)
        with pytest.raises(openai.ConflictError) as refused:
            await ask(one.id)
        assert (refused.value.status_code, refused.value.code) == (409, "conversation_locked")
        with pytest.raises(openai.ConflictError):
            await client.conversations.items.create(one.id, items=[HELLO])
        assert (await client.conversations.items.list(one.id)).data == []
        await client.conversations.delete(two.id)  # while it is answered
        gate.release.set()
        assert (await first).output_text == "1"
        with pytest.raises(openai.NotFoundError):
            await other
        assert (await ask(one.id)).output_text == "3"


async def test_a_failed_answer_leaves_the_conversation_as_it_was() -> None:
    async with talking(Failing(ValueError("no"))) as client:
        made = await client.conversations.create(items=[HELLO])
        with pytest.raises(openai.InternalServerError):
            await client.responses.create(model="m", input="x", conversation=made.id)
        assert [item.type async for item in await client.conversations.items.list(made.id)] == ["message"]


async def test_a_session_that_is_no_conversation_is_unknown(shared_url: str) -> None:
    async with open_store(shared_url) as store:
        other = await Sessions(CounterEnvironment(), store).seed({"initial_count": 0, "expected_count": 1})
    async with talking(Failing(ValueError("no")), store=shared_url) as client:
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(f"conv_{other.id}")


def test_a_conversation_goes_on_after_a_restart(tmp_path: Path, shared_url: str) -> None:
    store = ("--store", shared_url)
    with serving(ECHO, tmp_path, *store) as served, openai.OpenAI(base_url=served.url, api_key="x") as client:
        made = client.conversations.create(metadata={"topic": "ships"})
        answer = client.responses.create(model=served.name, input="hello", conversation=made.id)
        gone = client.conversations.items.create(made.id, items=[HELLO]).first_id
        client.conversations.items.delete(gone, conversation_id=made.id)
        served.process.kill()
    with serving(ECHO, tmp_path, *store) as served, openai.OpenAI(base_url=served.url, api_key="x") as client:
        assert client.conversations.retrieve(made.id) == made
        assert client.conversations.items.list(made.id, limit=1).data[0].id == answer.output[0].id
        again = client.responses.create(model=served.name, input="still there?", conversation=made.id)
        assert again.output_text == "3: still there?"
