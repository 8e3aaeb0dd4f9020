"""Progress on standard error: a bar in a terminal or a notebook, else a line every few seconds."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from html import escape
from importlib import import_module
from threading import Event, Thread
from time import monotonic
from typing import Any, Protocol

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from stateroom.rollout.engines import Finished
from stateroom.rollout.plan import RunPlan
from stateroom.rollout.runner import Report, ResumePlan, run

BAR_DELAY_SECONDS = 2.0
"""The time after which progress is shown, in seconds."""

LINE_SECONDS = 5.0
"""The interval between lines without a bar, in seconds."""

REFRESH_SECONDS = 0.5
"""The interval between updates of a notebook's bar, in seconds."""


CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Control characters, line separators, and characters that reverse the direction of text."""

VISIBLE = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in CONTROLS if chr(code) not in "\t\n"}


def visible(text: str) -> str:
    """A text with control characters as escapes, except for line breaks and tabs."""
    return text.replace("\r\n", "\n").translate(VISIBLE)


class Terminal(Console):
    """A console for untrusted text: markup, emoji codes and control characters have no effect.

    All output goes through `render`, including the cells of tables.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(visible(text), **settings)  # before the layout, so it measures the escapes

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)


class ProgressBar:
    """Shows the progress of a piece of work, and the time taken at the end."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self._began = monotonic()
        self._display: _Display | None = None

    @property
    def seconds(self) -> float:
        """The time taken so far."""
        return monotonic() - self._began

    def start(self) -> None:
        """Show the bar, unless it is already shown."""
        if self._display is None:
            self._display = _display_of(self)
            self._display.start()

    def advance(self) -> None:
        """Count one step."""
        self.done += 1
        if self._display is not None:
            self._display.update()

    def stop(self) -> None:
        """Show the final state, if the bar was shown."""
        if self._display is not None:
            self._display.stop()
            self._display = None

    @property
    def line(self) -> str:
        """The progress as a line of text."""
        minutes, seconds = divmod(int(self.seconds), 60)
        of = "" if self.total is None else f"/{self.total}"
        return f"{self.what}: {self.done}{of}, {minutes // 60}:{minutes % 60:02}:{seconds:02}"


async def run_with_progress(plan: RunPlan, bar: ProgressBar) -> Report:
    """Run all episodes of a plan, and show their progress."""

    def begin(left: ResumePlan) -> None:
        bar.total, bar.done = left.episodes, left.over
        timers.append(
            asyncio.get_running_loop().call_later(BAR_DELAY_SECONDS, bar.start)
        )  # the first episode may take long

    def advance(_: Finished) -> None:
        bar.start()  # not earlier: a refused run shows no bar
        bar.advance()

    timers: list[asyncio.TimerHandle] = []
    try:
        return await run(plan, advance, begin)
    finally:
        for timer in timers:
            timer.cancel()
        bar.stop()


class _Display(Protocol):
    def start(self) -> None: ...
    def update(self) -> None: ...
    def stop(self) -> None: ...


def _display_of(bar: ProgressBar) -> _Display:
    if (show := _notebook_display(bar)) is not None:
        return _Repeated(show, REFRESH_SECONDS, at_once=True)
    console = Terminal(stderr=True)
    if console.is_terminal:
        return _Terminal(bar, console)
    return _Repeated(lambda: console.print(bar.line, soft_wrap=True), LINE_SECONDS)


class _Terminal:
    """A bar that stays visible at the end."""

    def __init__(self, bar: ProgressBar, console: Console) -> None:
        self._bar = bar
        time = TimeElapsedColumn() if bar.total is None else TimeRemainingColumn(elapsed_when_finished=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), time)
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task(bar.what)
        task = self._progress.tasks[0]
        task.start_time = task.get_time() - bar.seconds  # the bar appears after the work began
        self.update()

    def start(self) -> None:
        self._progress.start()

    def update(self) -> None:
        bar = self._bar
        self._progress.update(self._task, description=bar.what, total=bar.total, completed=bar.done)

    def stop(self) -> None:
        self.update()
        self._progress.stop()


class _Repeated:
    """Shows the progress periodically from a thread, because the event loop may be busy or a step may take long."""

    def __init__(self, show: Callable[[], None], every: float, *, at_once: bool = False) -> None:
        self._show = show
        self._every = every
        self._at_once = at_once
        self._stopped = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> None:
        if self._at_once:
            self._show()
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._every):
            self._show()

    def update(self) -> None:
        """Do nothing; the thread shows the progress."""

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._show()


def _notebook_display(bar: ProgressBar) -> Callable[[], None] | None:
    """A function that shows a bar under the current cell; None outside a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    display = import_module("IPython.display").display

    def bundle() -> dict[str, str]:
        limits = "" if bar.total is None else f' value="{bar.done}" max="{max(bar.total, 1)}"'
        return {"text/plain": bar.line, "text/html": f"<progress{limits}></progress> {escape(bar.line)}"}

    handle = display(bundle(), raw=True, display_id=True)
    return lambda: handle.update(bundle(), raw=True)
