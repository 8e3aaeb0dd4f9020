"""The way of a call, counted in Python frames: another layer shows here."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import stateroom

ROOT = str(Path(stateroom.__file__).parent)


class Walk:
    """A profiler that notes each function of ours that is called or resumed in this thread."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            self.steps.append((code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname))

    @property
    def files(self) -> set[str]:
        """The names of the files that it passes."""
        return {Path(file).name for file, _ in self.steps}

    def __str__(self) -> str:
        listed = "\n".join(f"{number:3} {file}: {name}" for number, (file, name) in enumerate(self.steps, 1))
        return f"{len(self.steps)} frames in {len(self.files)} files:\n{listed}"


async def shortest_walk(call: Callable[[], Awaitable[object]]) -> Walk:
    """The walk of a call that has been made often, so that all there is to learn is learnt."""
    for _ in range(100):
        await call()
    walks = []
    for _ in range(10):  # on a busy machine the runner may take a call for a slow one
        walk, before = Walk(), sys.getprofile()
        sys.setprofile(walk)
        try:
            await call()
        finally:
            sys.setprofile(before)
        walks.append(walk)
    return min(walks, key=lambda walk: len(walk.steps))
