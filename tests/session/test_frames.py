"""A call's way is short: what a warm write call passes in our code, function by function."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import stateroom
from stateroom import Sessions, open_store
from stateroom.gallery.counter import CounterEnvironment

HOME = str(Path(stateroom.__file__).parent)


def passed(frames: list[tuple[str, str]]) -> Callable[[FrameType, str, Any], None]:
    """A profiler that notes the file and the name of each function of ours that is entered, or gone on with."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(HOME):
            frames.append((file.removeprefix(HOME), frame.f_code.co_qualname))

    return note


async def test_a_write_call_in_process_passes_few_functions(tmp_path: Path) -> None:
    walks: list[list[tuple[str, str]]] = []
    async with open_store(f"sqlite:///{tmp_path}/sessions.db") as store:
        session = await Sessions(CounterEnvironment(), store).seed({"initial_count": 0, "expected_count": 1})
        for number in range(110):
            if number >= 100:
                walks.append([])
                sys.setprofile(passed(walks[-1]))
            try:
                await session.call("increment_counter", {"count": 1})
            finally:
                sys.setprofile(None)
    shortest = min(walks, key=len)  # a pause of the machine can add a step
    listed = "\n".join(f"{file}: {name}" for file, name in shortest)
    assert len(shortest) <= 34, listed
    assert len({file for file, _ in shortest}) <= 13, listed
