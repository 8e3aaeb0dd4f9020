"""The description of a run: what was run, how, and when, in a small file beside the rollouts."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import msgspec
from msgspec import structs
from pydantic_core import to_jsonable_python

from stateroom.environment import Environment, accepted_arguments, make_environment
from stateroom.errors import BadData, DefinitionError, InvalidOption
from stateroom.jsonl import open_regular, replace_lines
from stateroom.options import option_fields, stored_options
from stateroom.rollout.files import RunFiles
from stateroom.rollout.metrics import SOLVED, Price
from stateroom.rollout.plan import Plan
from stateroom.store import HIDDEN, hide_secrets, without_secrets

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class RunDescription(msgspec.Struct):
    """The description of a run, readable without its rows."""

    environment: str
    """The environment's name."""
    spec: str | None = None
    """The environment as the user named it: a registered name, `module:Class` or `path.py:Class`."""
    env_args: dict[str, Any] = {}
    """The constructor arguments, without secrets."""
    model: str | None = None
    store: str | None = None
    """The URL of the session store, without secrets; None for sessions on a server or without a state."""
    server: str | None = None
    """The URL of the server with the sessions."""
    seed: int = 0
    tasks: Count = 0
    episodes: Count = 0
    """The number of episodes or, in a run that branches, of tasks."""
    options: dict[str, Any] = {}
    """Other options, such as `repeats`, `max_steps` or `rule`."""
    solved_threshold: float = SOLVED
    """The lowest reward that counts as solved."""
    price: Price | None = None
    started: str | None = None
    """In UTC, as ISO 8601."""
    finished: str | None = None
    """None if the run was interrupted or is still running."""
    elapsed: float = 0.0
    """The total time of all processes of the run, except killed ones, in seconds."""
    versions: dict[str, str] = {}

    def __post_init__(self) -> None:
        for name, text in (("started", self.started), ("finished", self.finished)):
            if text is not None and datetime.fromisoformat(text).utcoffset() is None:
                raise ValueError(f"{name} must be a time with an offset from UTC, not {text!r}")

    @classmethod
    def read(cls, files: RunFiles) -> RunDescription | None:
        """Read the description of a run; None if the file does not exist. Raises `BadData` if it is invalid."""
        if not files.description.exists():
            return None
        try:
            with open_regular(files.description) as file:
                return msgspec.json.decode(file.read(), type=cls)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadData(f"{files.description} is not a valid run description; remove it: {error}") from None

    def option(self, name: str) -> Any:
        """The value of an option."""
        return getattr(self, name) if name in self.__struct_fields__ else self.options.get(name)

    @contextmanager
    def timed(self, files: RunFiles) -> Iterator[None]:
        """Write the description at the beginning and the end of work on a run, with the times."""
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
def described(plan: Plan, tasks: int, episodes: int, **more: Any) -> Iterator[None]:
    """Write the description of a run, with its options and `more`, at its beginning and end.

    A resumed run keeps its description and adds its time.
    """
    description = _describe(plan, more)
    before = RunDescription.read(plan.files)
    if before is not None:
        now = {"solved_threshold": description.solved_threshold, "price": description.price}
        description = structs.replace(before, **now, finished=None)
    else:
        description.tasks, description.episodes = tasks, episodes
    with description.timed(plan.files):
        yield


def ensure_same_run(plan: Plan) -> None:
    """Raise `InvalidOption` if existing files of a plan are from a run with other options that affect rows."""
    before = RunDescription.read(plan.files)
    if before is None:
        return
    now = _describe(plan, {})
    if (before.server is None) != (now.server is None):
        raise InvalidOption("server", f"the run {plan.files.rollouts} used {before.server or 'none'}; resume it there")
    for name, field in option_fields(type(plan.options)).items():
        if field.option.stored and not field.option.may_change and before.option(name) != now.option(name):
            values = f"{before.option(name)!r:.100}, not {now.option(name)!r:.100}"
            raise InvalidOption(name, f"the run {plan.files.rollouts} used {values}; resume it with the same value")


def environment_of_run(environment: str, files: RunFiles, given: Mapping[str, Any]) -> Environment[Any, Any]:
    """Create an environment with the constructor arguments of a run, unless others are `given`.

    Arguments of the run that this environment does not accept are ignored. Raises `DefinitionError` if one of them was
    not stored because it may be a secret.
    """
    before = RunDescription.read(files)
    recorded = {} if before is None else accepted_arguments(environment, before.env_args)
    for name, value in recorded.items():
        if name not in given and HIDDEN in str(value):
            raise DefinitionError(
                f"the run did not store the argument {name!r} of the environment, which may be a secret; give it again"
            )
    return make_environment(environment, {**recorded, **given})


def changed_arguments(environment: Environment[Any, Any], files: RunFiles) -> dict[str, tuple[Any, Any]]:
    """The constructor arguments of an environment that differ from a run, each with the run's value and its own."""
    before, now = RunDescription.read(files), arguments_of(environment)
    if before is None:
        return {}
    names = [name for name in {**before.env_args, **now} if before.env_args.get(name) != now.get(name)]
    return {name: (before.env_args.get(name), now.get(name)) for name in names}


def arguments_of(environment: Environment[Any, Any]) -> dict[str, Any]:
    """The constructor arguments of an environment as JSON data without secrets."""
    return hide_secrets(to_jsonable_python(environment.made_with or {}, fallback=repr))  # type: ignore[no-any-return]


def _describe(plan: Plan, more: Mapping[str, Any]) -> RunDescription:
    options, environment = plan.options, plan.environment
    keeps_sessions = options.server is None and environment.state_type is not None
    own: dict[str, Any] = {
        "environment": environment.name,
        "spec": options.environment if isinstance(options.environment, str) else None,
        "env_args": arguments_of(environment),
        "model": plan.model.name,
        "store": without_secrets(plan.store) if keeps_sessions else None,
        "server": None if options.server is None else without_secrets(options.server),
        "price": options.price,
    }
    others = {field.name: value for field, value in stored_options(options) if field.name not in own}
    others = hide_secrets(to_jsonable_python(others, fallback=repr))
    own |= {name: others.pop(name) for name in RunDescription.__struct_fields__ if name in others}
    return RunDescription(**own, options={**others, **more})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
