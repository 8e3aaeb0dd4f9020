"""`Environment`: what authors write."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from functools import cached_property
from random import Random
from typing import Any, ClassVar, Generic, get_args, get_origin, get_type_hints

from pydantic import ValidationError
from typing_extensions import TypeVar

from stateroom.environment.task import Task
from stateroom.environment.tool import Tool, make_tool, procedure_of
from stateroom.errors import BadTask, DefinitionError, NotFound
from stateroom.session.program import INJECTED, Procedure, Verdict
from stateroom.state import State, shape_of

S = TypeVar("S", bound=State | None, default=None)
T = TypeVar("T", bound=Task, default=Task)

SEED_INJECTED = frozenset({"task", "rng", "clock", "new_id"})
VERIFY_INJECTED = frozenset({"episode", *INJECTED})


class Environment(Generic[S, T]):
    """Tools, a state and a verifier.

    `Environment[Counter]` keeps a `Counter` for every session, `Environment[Counter, CounterTask]` also declares the
    fields of its tasks, and a plain `Environment` is stateless. Methods marked with `@tool` can be called by the model.
    `seed(self, task)` gives a session's first state, and `verify(self, state, episode)` its reward: a number, or a
    `Verdict`. Each method may be sync or async, and gets what it asks for by name: `state`, `session`, `rng`, `clock`
    and `new_id`.

    One instance serves all sessions: keep what belongs to an episode in the state, not on `self`.
    """

    name: ClassVar[str]
    """How the environment is called in logs and files; the class's name in snake_case, unless set."""

    examples: ClassVar[str | None] = None
    """A JSONL file of example tasks, beside the module of the class."""

    policies: ClassVar[Mapping[str, type]] = {}
    """Scripted policies by name, such as `reference` and `faltering`."""

    state_type: ClassVar[type[State] | None] = None
    task_type: ClassVar[type[Task]] = Task
    _blueprints: ClassVar[dict[str, Tool]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = _snake_case(cls.__name__)
        cls._read_type_arguments()
        scope = sys._getframe(1).f_locals  # the names of a function in which the class may be defined
        marked = {
            name: method
            for base in reversed(cls.__mro__)
            for name, method in vars(base).items()
            if hasattr(method, "__stateroom_tool__")
        }
        cls._blueprints = {
            name: make_tool(f"{cls.__name__}.{name}", method, cls._hints(name, method, scope), cls.state_type is None)
            for name, method in marked.items()
        }
        cls._check_hooks(scope)

    @classmethod
    def _read_type_arguments(cls) -> None:
        for base in getattr(cls, "__orig_bases__", ()):
            if not (isinstance(get_origin(base), type) and issubclass(get_origin(base), Environment)):
                continue
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, State):
                    shape_of(argument)
                    cls.state_type = argument
                elif isinstance(argument, type) and issubclass(argument, Task):
                    cls.task_type = argument
                elif argument is not type(None) and not hasattr(argument, "__bound__"):
                    raise DefinitionError(f"{cls.__name__}: {argument} is neither a State nor a Task")

    @classmethod
    def _hints(cls, name: str, method: Any, scope: dict[str, Any]) -> dict[str, Any]:
        try:
            hints = get_type_hints(method, localns={**scope, **vars(cls)}, include_extras=True)
        except NameError as error:
            raise DefinitionError(f"{cls.__name__}.{name}: {error}") from None
        given = hints.get("state")
        if isinstance(given, type) and given not in (Any, cls.state_type):
            expected = cls.state_type.__name__ if cls.state_type else "none"
            raise DefinitionError(f"{cls.__name__}.{name}: `state` is {expected}, not {given.__name__}")
        return hints

    @classmethod
    def _check_hooks(cls, scope: dict[str, Any]) -> None:
        if cls._blueprints and cls.verify is Environment.verify:
            raise DefinitionError(f"{cls.__name__} needs a verify method: it gives an episode its reward")
        for hook, known in (("seed", SEED_INJECTED), ("verify", VERIFY_INJECTED)):
            method = getattr(cls, hook)
            hints = cls._hints(hook, method, scope)
            for parameter in _parameters(method):
                if parameter not in known:
                    raise DefinitionError(
                        f"{cls.__name__}.{hook} asks for {parameter!r}; it can have {', '.join(sorted(known))}"
                    )
            given = hints.get("task")
            if isinstance(given, type) and given not in (Any, cls.task_type):
                raise DefinitionError(
                    f"{cls.__name__}.seed takes a {given.__name__}: say so in the class's bases, "
                    f"Environment[{cls.state_type.__name__ if cls.state_type else None}, {given.__name__}]"
                )
        if cls.state_type is not None and cls.seed is Environment.seed:
            required = [name for name, field in cls.state_type.model_fields.items() if field.is_required()]
            if required:
                missing = f"{cls.state_type.__name__} has no default for {', '.join(required)}"
                raise DefinitionError(f"{cls.__name__} needs a seed method: {missing}")

    # What an author may override.

    def seed(self, task: Any) -> Any:
        """A session's first state; the state type's defaults, unless overridden."""
        return self.state_type() if self.state_type is not None else None

    def verify(self, *args: Any, **kwargs: Any) -> float | Verdict:
        """The reward of an episode."""
        raise NotImplementedError

    @classmethod
    def generate(cls, rng: Random) -> dict[str, Any]:
        """A new task row; all its chance comes from `rng`."""
        raise NotFound(f"{cls.name} has no generator of tasks")

    # What a session needs.

    @cached_property
    def tools(self) -> Mapping[str, Tool]:
        """The tools by name."""
        return {name: blueprint.bound_to(self) for name, blueprint in self._blueprints.items()}

    @cached_property
    def seeding(self) -> Procedure:
        return procedure_of(self.seed, frozenset(_parameters(type(self).seed)))

    @cached_property
    def verifying(self) -> Procedure:
        return procedure_of(self.verify, frozenset(_parameters(type(self).verify)))

    def parse_task(self, row: Any) -> T:
        """The typed task of a row; `BadTask` says which field is wrong, and how."""
        if isinstance(row, self.task_type):
            return row  # type: ignore[return-value]
        try:
            return self.task_type.model_validate(row)  # type: ignore[return-value]
        except ValidationError as error:
            complaints = (
                f"{'.'.join(map(str, found['loc'])) or 'the row'}: {found['msg']}"
                for found in error.errors(include_url=False, include_context=False)
            )
            raise BadTask("; ".join(complaints)) from None

    def tool_definitions(self) -> list[dict[str, Any]]:
        """The tools as OpenAI functions."""
        return [tool.definition for tool in self.tools.values()]


def _parameters(method: Any) -> list[str]:
    return [
        parameter.name
        for parameter in list(inspect.signature(method).parameters.values())[1:]
        if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]


def _snake_case(name: str) -> str:
    stem = re.sub(r"(Environment|Env)$", "", name) or name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
