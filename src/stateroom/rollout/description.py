"""A run's description: what was run, how, and when, in a small file beside the rollouts."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import msgspec
from msgspec import structs

from stateroom.errors import BadData
from stateroom.jsonl import open_regular, replace_lines
from stateroom.rollout.files import RunFiles
from stateroom.rollout.metrics import SOLVED, Price
from stateroom.rollout.plan import Plan
from stateroom.store import without_secrets

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class RunDescription(msgspec.Struct):
    """What is known of a run without reading its rows."""

    environment: str
    """The environment's name."""
    spec: str | None = None
    """The environment as the user named it: a registered name, `module:Class` or `path.py:Class`."""
    model: str | None = None
    store: str | None = None
    """The URL of the store of the sessions, without secrets; None if they are on a server, or without a state."""
    server: str | None = None
    """The URL of the server with the sessions."""
    seed: int = 0
    tasks: Count = 0
    episodes: Count = 0
    """Episodes that the run has; of a run that branches, its tasks."""
    settings: dict[str, Any] = {}
    """Options that only this kind of run has, such as `repeats`, `group` or `rule`."""
    solved_at: float = SOLVED
    """The reward from which an episode counts as solved."""
    price: Price | None = None
    started: str | None = None
    """In UTC, by ISO 8601."""
    finished: str | None = None
    """None if it was interrupted, or still runs."""
    elapsed: float = 0.0
    """Seconds of all processes that worked on it, except of those that were killed."""
    versions: dict[str, str] = {}

    def __post_init__(self) -> None:
        for name, text in (("started", self.started), ("finished", self.finished)):
            if text is not None and datetime.fromisoformat(text).utcoffset() is None:
                raise ValueError(f"{name} should be a time with its offset from UTC, not {text!r}")

    @classmethod
    def read(cls, files: RunFiles) -> RunDescription | None:
        """The description in a run's file; None if there is none. `BadData` if it cannot be read."""
        if not files.description.exists():
            return None
        try:
            with open_regular(files.description) as file:
                return msgspec.json.decode(file.read(), type=cls)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadData(f"{files.description} is not the description of a run; remove it: {error}") from None

    @contextmanager
    def timed(self, files: RunFiles) -> Iterator[None]:
        """Write the description at the beginning and at the end of work on a run, with the times of that."""
        self.started = self.started or _now()
        self.versions = {"stateroom": version("stateroom"), "python": platform.python_version()}
        self._write(files.description)
        start, earlier = monotonic(), self.elapsed
        try:
            yield
            self.finished = _now()
        finally:
            self.elapsed = round(earlier + monotonic() - start, 3)
            self._write(files.description)

    def _write(self, path: Path) -> None:
        text = json.dumps(msgspec.to_builtins(self), indent=2, ensure_ascii=False)
        replace_lines(path, [text.encode("utf-8", "backslashreplace"), b"\n"])


@contextmanager
def described(plan: Plan, tasks: int, episodes: int, **settings: Any) -> Iterator[None]:
    """Describe a run in its file while it runs; at its end the file says when that was.

    A run that is resumed keeps its description, and adds up its times.
    """
    keeps_sessions = plan.server is None and plan.environment.state_type is not None
    description = RunDescription(
        environment=plan.environment.name,
        spec=plan.spec,
        model=plan.model.name,
        store=without_secrets(plan.store) if keeps_sessions else None,
        server=None if plan.server is None else without_secrets(plan.server),
        seed=plan.seed,
        tasks=tasks,
        episodes=episodes,
        settings=settings,
        solved_at=plan.solved_at,
        price=plan.price,
    )
    before = RunDescription.read(plan.files)
    if before is not None:
        description = structs.replace(before, solved_at=plan.solved_at, price=plan.price, finished=None)
    with description.timed(plan.files):
        yield


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
