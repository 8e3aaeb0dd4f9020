"""Progress: a bar in a terminal, lines elsewhere, and the time taken at the end."""

import asyncio
from io import StringIO
from pathlib import Path
from threading import Event

import pytest
from rich.console import Console

from stateroom.cli import run as command
from stateroom.gallery import CounterEnvironment
from stateroom.model import Answer, Model, ModelSource, Request, message
from stateroom.rollout import ProgressBar, RunFiles, generate_tasks, progress
from tests.patience import PATIENCE
from tests.plans import make_run


def test_a_first_episode_that_takes_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = asyncio.Event()
    monkeypatch.setattr(ProgressBar, "start", lambda self: shown.set())
    monkeypatch.setattr(progress, "BAR_DELAY_SECONDS", 0.0)

    class Patient(Model):
        """Answers once progress is shown."""

        async def answer(self, request: Request) -> Answer:
            await asyncio.wait_for(shown.wait(), PATIENCE)
            return Answer([message("Done.")])

    plan = make_run(
        environment=CounterEnvironment(),
        model=ModelSource("patient", lambda seed: Patient()),
        tasks=generate_tasks(CounterEnvironment, 1, 0),
        files=RunFiles(tmp_path / "out.jsonl"),
        store="memory://",
    )
    assert command.collect(plan).failed == 0


def test_redirected_output_gets_lines_while_the_work_goes_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.001)
    third, line = Event(), ProgressBar.line.fget  # type: ignore[attr-defined]
    lines: list[str] = []

    def counted(bar: ProgressBar) -> str:
        lines.append(line(bar))
        if len(lines) == 3:
            third.set()
        return lines[-1]

    monkeypatch.setattr(ProgressBar, "line", property(counted))
    bar = ProgressBar("counter", 2)
    bar.start()
    assert third.wait(PATIENCE)
    bar.advance()
    bar.advance()
    bar.stop()
    assert lines[0] == "counter: 0/2, 0:00:00"
    assert lines[-1].startswith("counter: 2/2, 0:")
    assert capfd.readouterr().err.splitlines() == lines


def test_a_finished_bar_stays_and_shows_the_time_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(progress, "Terminal", lambda **_: terminal)
    monkeypatch.setattr(progress, "monotonic", lambda: 0.0)
    bar = ProgressBar("counter", 1)
    monkeypatch.setattr(progress, "monotonic", lambda: 3661.0)  # an hour later
    bar.start()
    bar.advance()
    bar.stop()
    last = terminal.file.getvalue().rpartition("counter")[2]  # type: ignore[attr-defined]
    assert "1/1" in last
    assert "1:01:01" in last
    assert "\x1b[2K" not in last  # nothing removes it
