"""The episodes of a model in training, collected without a trainer."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from stateroom import Environment, State, Task
from stateroom.model import BatchModel, GeneratedTokens, Item, Message, Prompt, Request
from stateroom.session import BackgroundLoop
from stateroom.training import Collector

END = 9


class Silent(BatchModel):
    """Ends each answer at once."""

    name = "silent"

    def __init__(self) -> None:
        super().__init__(most=8, length=100, ends={END})

    def render(self, request: Request) -> list[int]:
        return [1] * len(request.items)

    def render_reply(self, items: Sequence[Item]) -> list[int]:
        return [2]

    def parse(self, request: Request, prompt: Prompt, written: list[int]) -> Message:
        return {"content": "Done."}

    def generate(self, prompts: Sequence[Prompt]) -> Iterable[GeneratedTokens]:
        return [GeneratedTokens([END], [-1.0]) for _ in prompts]


class SeatTask(Task):
    taken: bool


class Seat(State):
    reserved: bool = False


class SeatEnvironment(Environment[Seat, SeatTask]):
    """Some seats are taken."""

    def seed(self, task: SeatTask) -> Seat:
        if task.taken:
            raise ValueError("the seat is taken")
        return Seat()

    def verify(self, state: Seat) -> float:
        return 1.0


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    with BackgroundLoop() as made:
        yield made


@pytest.mark.parametrize("how", ["vines", "trees"])
def test_a_tree_whose_task_cannot_be_seeded_keeps_no_other_waiting(
    how: str, loop: BackgroundLoop, tmp_path: Path
) -> None:
    model, tasks = Silent(), [{"taken": taken} for taken in (False, True, False)]
    collector = Collector(SeatEnvironment, {}, "memory://", model)
    collected = model.serve(loop, getattr(collector, how)(tasks, 1, tmp_path / "step.jsonl", seed=0))
    assert (collected.failed, collected.rewards) == (1, [1.0, 1.0])
    assert {rollout.row["_ng_task_index"] for rollout in collected.rollouts} == {0, 2}
