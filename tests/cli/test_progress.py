"""Progress is shown before anything is done, if that takes long."""

import asyncio
from pathlib import Path

import pytest

from stateroom.cli import run as command
from stateroom.gallery.counter import CounterEnvironment
from stateroom.model import Answer, Model, ModelSource, Request, message
from stateroom.rollout import Run, RunFiles, generate_tasks
from tests.patience import PATIENCE


def test_a_first_episode_that_takes_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bar, shown = command.new_bar(), asyncio.Event()
    monkeypatch.setattr(bar, "start", shown.set)
    monkeypatch.setattr(command, "new_bar", lambda: bar)
    monkeypatch.setattr(command, "SOON", 0.0)

    class Patient(Model):
        """Answers once progress is shown."""

        async def answer(self, request: Request) -> Answer:
            await asyncio.wait_for(shown.wait(), PATIENCE)
            return Answer([message("Done.")])

    plan = Run(
        environment=CounterEnvironment(),
        model=ModelSource("patient", lambda seed: Patient()),
        tasks=generate_tasks(CounterEnvironment, 1, 0),
        files=RunFiles(tmp_path / "out.jsonl"),
        store="memory://",
    )
    assert command.collect(plan).failed == 0
