"""Models in this process, which answer many episodes at a time."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from stateroom.errors import ModelFailed
from stateroom.model import BatchModel, GeneratedTokens, Item, Message, Prompt, Request, message
from stateroom.session import BackgroundLoop
from tests.messages import raises

END = 99


class Echo(BatchModel):
    """Writes the seed of an episode; conversations have a token for each item."""

    name = "echo"

    def __init__(self, most: int = 10, length: int = 100, context: int = 1000) -> None:
        super().__init__(most, length, {END}, context)
        self.batches: list[list[tuple[int, int]]] = []

    def render(self, request: Request) -> list[int]:
        return [1] * len(request.items)

    def render_reply(self, items: Sequence[Item]) -> list[int]:
        return [2]

    def parse(self, request: Request, prompt: Prompt, written: list[int]) -> Message:
        return {"content": str(written)}

    def generate(self, prompts: Sequence[Prompt]) -> Iterable[GeneratedTokens]:
        self.batches.append([prompt[:2] for prompt in prompts])
        return [GeneratedTokens([prompt.seed, END], [-1.0, -2.0]) for prompt in prompts]


def asked(seed: int, step: int = 0, *, items: Sequence[Item] = (), **settings: Any) -> Request:
    return Request([message("Hi."), *items], settings=settings, seed=seed, step=step, tokens=True)


@pytest.fixture
def loop() -> Any:
    made = BackgroundLoop()
    yield made
    made.close()


def test_a_batch_has_what_all_running_episodes_ask(loop: BackgroundLoop) -> None:
    model = Echo()

    async def episode(seed: int, answers: int) -> None:
        for step in range(answers):
            await model.answer(asked(seed, step))
        model.end()

    async def episodes() -> None:
        await asyncio.gather(*(episode(seed, answers) for seed, answers in ((3, 1), (1, 2), (2, 3))))

    model.begin(3)
    model.serve(loop, episodes())
    assert model.batches == [[(1, 0), (2, 0), (3, 0)], [(1, 1), (2, 1)], [(2, 2)]]


def test_large_batches_are_generated_in_parts(loop: BackgroundLoop) -> None:
    model = Echo(most=2)

    async def episodes() -> list[Any]:
        return await asyncio.gather(*(model.answer(asked(seed)) for seed in range(5)))

    model.begin(5)
    answers = model.serve(loop, episodes())
    assert [len(batch) for batch in model.batches] == [2, 2, 1]
    assert [answer.items[-1]["generation_token_ids"] for answer in answers] == [[seed, END] for seed in range(5)]


def test_an_answer_continues_the_tokens_before(loop: BackgroundLoop) -> None:
    model = Echo()

    async def talk() -> Any:
        first = await model.answer(asked(7))
        items = [{**item, "prompt_is_delta": False} for item in first.items]
        return await model.answer(asked(7, 1, items=items))

    (item,) = model.serve(loop, talk()).items
    assert item["prompt_token_ids"] == [1, 7, END, 2]
    assert item["generation_log_probs"] == [-1.0, -2.0]


@pytest.mark.parametrize(
    ("model", "settings", "written"),
    [(Echo(length=1), {}, [7]), (Echo(context=2), {}, [7]), (Echo(), {"max_output_tokens": 1}, [7])],
)
def test_an_answer_ends_where_there_is_no_room(
    model: Echo, settings: Any, written: list[int], loop: BackgroundLoop
) -> None:
    answer = model.serve(loop, model.answer(asked(7, **settings)))
    assert answer.items[-1]["generation_token_ids"] == written
    assert answer.truncated


async def test_a_prompt_that_fills_the_context_is_refused() -> None:
    with raises(ModelFailed):
        await Echo(context=1).answer(asked(7))


def test_an_error_ends_all_episodes(loop: BackgroundLoop) -> None:
    class Broken(Echo):
        def generate(self, prompts: Sequence[Prompt]) -> Iterable[GeneratedTokens]:
            raise MemoryError("no room")

    model = Broken()
    errors: list[Any] = []

    async def episodes() -> None:
        errors.extend(await asyncio.gather(*(model.answer(asked(seed)) for seed in (1, 2)), return_exceptions=True))

    model.begin(2)
    with pytest.raises(MemoryError):
        model.serve(loop, episodes())
    assert [type(error) for error in errors] == [ModelFailed, ModelFailed]


def test_a_cancelled_request_is_not_generated(loop: BackgroundLoop) -> None:
    model = Echo()

    async def episodes() -> Any:
        model.begin(2)
        gone = asyncio.create_task(model.answer(asked(1)))
        await asyncio.sleep(0)  # it has asked
        gone.cancel()
        await asyncio.wait([gone])
        return await model.answer(asked(2))

    model.serve(loop, episodes())
    assert model.batches == [[(2, 0)]]
