"""`Environment`: the base class of an author's environment."""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar as TypingTypeVar, get_args, get_origin, get_type_hints

from typing_extensions import TypeVar

from stateroom.environment.task import Task, missing_fields, validated, validated_without
from stateroom.environment.tools import (
    RESERVED,
    Hook,
    Injectable,
    Marked,
    Tool,
    check_injected,
    check_method,
    clash,
    make_tool,
    misfit,
    type_name,
)
from stateroom.errors import BadTask, DefinitionError, NotFound
from stateroom.session import INJECTED, SHARED, STANDARD, Lifecycle, Procedure, Resource, check_resource
from stateroom.state import State, merge_rules, shape_of

if TYPE_CHECKING:
    from stateroom.session import Verdict

logger = logging.getLogger(__name__)

SEED_INJECTED = frozenset({"task", "rng", "clock", "new_id"})
VERIFY_INJECTED = frozenset({"episode", *INJECTED}) - {"ask"}
INSTRUCTIONS_INJECTED = frozenset({"task", *INJECTED}) - {"ask"}
REPLY_INJECTED = INSTRUCTIONS_INJECTED | {"message"}
TAKEN = frozenset({"self", "task", "message", "ask"}) | VERIFY_INJECTED
"""Names that no resource can have."""

ENV_ARGS = "env_args"
"""The field of a task row with constructor arguments: the task runs in an instance that has them."""

SERVING = frozenset(
    {"tools", "world_function", "seed_function", "verify_function", "reply_tool", "instructions_tool"}
    | {"shared_seed_functions"}
)
"""Cached properties that sessions ask for: an instance that has one is in use."""


S = TypeVar("S", bound=State | None, default=None)
T = TypeVar("T", bound=Task, default=Task)


class Environment(Generic[S, T]):
    """Tools, a state and a verifier.

    `Environment[Counter]` keeps a `Counter` for every session, `Environment[Counter, CounterTask]` also declares the
    fields of its tasks, and a plain `Environment` is stateless. The model can call the methods marked with `@tool`.
    `seed(self, task)` returns a session's first state, and `verify(self, state, episode)` its reward: a number, or a
    `Verdict`. If all sessions start from the same large state, `world(self)` makes it once, and `seed(self, state,
    task)` changes it for the task. `reply(self, state, message)` lets a simulated user answer the agent, and
    `instructions(self, state)` returns what the agent should know now.

    Each method may be sync or async. Parameters are injected by name: `state`, `session`, `rng`, `clock` and `new_id`;
    `user: Profile`, the state of the task's user, which outlives the session; `app: Stock`, the state that all sessions
    share; `ask`, which puts a question to a person; and the names in `resources`, such as a folder.

    One instance serves all sessions: keep the data of an episode in its state, not on `self`.
    """

    name: ClassVar[str]
    """The name in logs and files; by default the class name in snake_case."""

    examples: ClassVar[str | None] = None
    """A JSONL file of example tasks, next to the module of the class."""

    policies: ClassVar[Mapping[str, type]] = {}
    """Scripted policies by name, such as `reference` and `noisy`."""

    resources: ClassVar[Mapping[str, Resource[Any]]] = {}
    """The resources of each session, by the name of the injected parameter."""

    lifecycle: ClassVar[Lifecycle] = STANDARD
    """The phases and events of its agents."""

    state_type: ClassVar[type[State] | None] = None
    task_type: ClassVar[type[Task]] = Task
    shared_types: ClassVar[Mapping[str, type[State]]] = {}
    """The types of the shared states: `user` and `app`."""
    _blueprints: ClassVar[dict[str, Tool]] = {}

    made_with: Mapping[str, Any] | None = None
    """The constructor arguments, if it was made from a name or a class, as `stateroom run` does."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = _snake_case(cls.__name__)
        cls._read_type_arguments()
        if cls.__parameters__:  # type: ignore[attr-defined]  # a template is checked when its types are known
            return
        scope = _scope()
        cls._check_resources()
        injectable = Injectable(cls.state_type, frozenset(cls.resources))
        cls._blueprints = {
            name: make_tool(f"{cls.__name__}.{name}", name, method, cls._hints(name, method, scope), injectable)
            for name, method in cls._marked().items()
        }
        cls.shared_types = cls._find_shared(scope)
        cls._check_hooks(scope)

    @classmethod
    def _marked(cls) -> dict[str, Any]:
        """The methods that are tools, by name."""
        members: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            for name, member in vars(base).items():
                marked = member.__func__ if isinstance(member, staticmethod | classmethod) else member
                if isinstance(getattr(marked, "__stateroom_tool__", None), Marked):
                    if (hasattr(Environment, name) or name == "name") and name not in RESERVED:
                        why = f"the name {name!r} clashes with `Environment.{name}`; rename the tool"
                        raise misfit(f"{cls.__name__}.{name}", marked, why)
                    members[name] = member
                elif name in members and member is None:
                    del members[name]
                elif name in members:
                    why = "it overrides a tool; mark it with @tool too, or set it to None to remove the tool"
                    raise misfit(f"{cls.__name__}.{name}", member, why)
        return members

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
                    if argument is not Task:  # which also stands for none: then it is that of the base class
                        cls.task_type = argument
                elif argument is not type(None) and not hasattr(argument, "__bound__"):
                    raise DefinitionError(
                        f"{cls.__name__}: {type_name(argument)} is not a State or a Task; "
                        "write Environment[YourState] or Environment[YourState, YourTask]"
                    )

    @classmethod
    def _hints(cls, name: str, method: Any, scope: dict[str, Any]) -> dict[str, Any]:
        members = {key: value for key, value in vars(cls).items() if not inspect.isroutine(value)}
        try:
            hints = get_type_hints(method, localns={**scope, **members}, include_extras=True)
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            raise misfit(f"{cls.__name__}.{name}", method, f"cannot read its annotations: {error}") from None
        given = hints.get("state", Any)
        if cls.state_type is not None and not _accepts(given, cls.state_type):
            raise clash(f"{cls.__name__}.{name}", method, "state", given, f"write `state: {cls.state_type.__name__}`")
        return hints

    @classmethod
    def _find_shared(cls, scope: dict[str, Any]) -> dict[str, type[State]]:
        """The types of the shared states, as the tools and the verifier annotate them."""
        types: dict[str, type[State]] = {}
        hooks = {name: inspect.getattr_static(cls, name) for name in ("verify", "reply", "instructions")}
        for name, method in {**cls._marked(), **hooks}.items():
            if not inspect.isfunction(method) or method is getattr(Environment, name, None):
                continue  # _check_hooks refuses the first
            hints = cls._hints(name, method, scope)
            for shared in sorted(SHARED & frozenset(_parameters(method))):
                where, given = f"{cls.__name__}.{name}", hints.get(shared)
                if not (isinstance(given, type) and issubclass(given, State)):
                    why = f"annotate `{shared}` with a State, such as `{shared}: Profile`"
                    raise misfit(where, method, why)
                if types.setdefault(shared, given) is not given:
                    other = types[shared].__name__
                    why = f"`{shared}` is {given.__name__} here, and {other} elsewhere; use one type"
                    raise misfit(where, method, why)
                shape_of(given)
                merge_rules(given)
                if given.__appliers__:
                    why = f"`{shared}` cannot have @applies methods; only the session's state can"
                    raise misfit(where, method, why)
        return types

    @classmethod
    def _check_resources(cls) -> None:
        for name, resource in cls.resources.items():
            where = f"{cls.__name__}.resources[{name!r}]"
            if not name.isidentifier() or name in TAKEN:
                taken = ", ".join(sorted(TAKEN))
                raise DefinitionError(f"{where}: this name cannot be a parameter; choose another one, except {taken}")
            check_resource(where, resource)
            if cls.state_type is None and resource.kind != "stateless":
                raise DefinitionError(
                    f"{where} is {resource.kind}, which needs an environment with a state; write Environment[YourState]"
                )

    @classmethod
    def _check_hooks(cls, scope: dict[str, Any]) -> None:
        if cls._blueprints and cls.verify is Environment.verify:
            raise DefinitionError(f"{cls.__name__} needs a verify method that returns the reward of an episode")
        if cls.state_type is None and cls.seed is not Environment.seed:
            raise DefinitionError(
                f"{cls.__name__}.seed needs an environment with a state; write Environment[YourState]"
            )
        has_world = cls._has_world()
        if has_world and cls.state_type is None:
            raise DefinitionError(
                f"{cls.__name__}.world needs an environment with a state; write Environment[YourState]"
            )
        if has_world and cls.seed is not Environment.seed and "state" not in _parameters(cls.seed):
            raise DefinitionError(
                f"{cls.__name__}.seed needs the parameter `state`, because the environment has a world; add it"
            )
        resources = cls.resources.keys()
        hooks = {
            "world": frozenset[str](),
            "seed": SEED_INJECTED | {"state"} if has_world else SEED_INJECTED,
            "verify": VERIFY_INJECTED | resources,
            "reply": REPLY_INJECTED | resources,
            "instructions": INSTRUCTIONS_INJECTED,
        }
        for hook, known in hooks.items():
            cls._check_hook(hook, known, scope)
        kept = {"seed": cls.state_type} if cls.state_type and not has_world else {}
        kept.update({f"seed_{name}": kind for name, kind in cls.shared_types.items()})
        for hook, kind in kept.items():
            required = [name for name, field in kind.model_fields.items() if field.is_required()]
            if required and getattr(cls, hook) is getattr(Environment, hook):
                missing = f"{kind.__name__} has no default for {', '.join(required)}"
                raise DefinitionError(f"{cls.__name__} needs a {hook} method: {missing}")

    @classmethod
    def _check_hook(cls, hook: str, known: frozenset[str], scope: dict[str, Any]) -> None:
        where, method = f"{cls.__name__}.{hook}", inspect.getattr_static(cls, hook)
        if method is getattr(Environment, hook):
            return
        check_method(where, method)
        hints = cls._hints(hook, method, scope)
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        for parameter in list(inspect.signature(method).parameters.values())[1:]:
            if parameter.name not in known or parameter.kind not in named:
                available = ", ".join(sorted(known)) or "none"
                raise misfit(where, method, f"`{parameter}` cannot be injected; available: {available}")
            needs_state = {"state", *SHARED}
            if hook in ("reply", "instructions"):  # no server keeps a task alone
                needs_state |= {"task"}
            if parameter.name in needs_state and cls.state_type is None:
                why = f"`{parameter.name}` needs an environment with a state; write Environment[YourState]"
                raise misfit(where, method, why)
            check_injected(where, method, parameter.name, hints)
        given = hints.get("task", Any)
        if not _accepts(given, cls.task_type):
            bases = f"Environment[{cls.state_type.__name__ if cls.state_type else None}, {type_name(given)}]"
            raise misfit(where, method, f"`task` has the type {cls.task_type.__name__} here; write {bases}")

    def __setattr__(self, name: str, value: Any) -> None:
        if not vars(self).keys().isdisjoint(SERVING) and name not in self._warned_of:
            self._warned_of.add(name)
            logger.warning(
                "%s.%s was set while the environment is in use, but one instance serves all sessions: keep the data "
                "of an episode in its state, and set other attributes in __init__",
                type(self).__name__,
                name,
            )
        super().__setattr__(name, value)

    @cached_property
    def _warned_of(self) -> set[str]:
        """The attributes with a warning in the log."""
        return set()

    # What an author may override.

    def world(self) -> Any:
        """Return the state that all sessions start from; they share its unchanged parts.

        It is made once per process and stored once per store, so it may be large. Return the same state each time: a
        different one is another world, and is stored separately.
        """
        raise NotImplementedError

    def seed(self, *args: Any, **kwargs: Any) -> Any:
        """Return a session's first state; by default the defaults of the state type.

        With a `world`, change the world's `state` for the task; by default nothing changes.
        """
        return self.state_type() if self.state_type is not None and self.world_function is None else None

    def user_of(self, task: Any) -> str:
        """The user of a task, for the state of that user; by default the task's `user`."""
        user = getattr(task, "user", None)
        if not isinstance(user, str) or not user:
            raise BadTask(f"user: {self.name} keeps a state per user, so a task needs the field `user`")
        return user

    def seed_user(self, task: Any) -> Any:
        """Return the first state of a user; by default the defaults of its type."""
        return self.shared_types["user"]()

    def seed_app(self) -> Any:
        """Return the first state that all sessions share; by default the defaults of its type."""
        return self.shared_types["app"]()

    def verify(self, *args: Any, **kwargs: Any) -> float | Verdict | Awaitable[float | Verdict]:
        """Return the reward of an episode."""
        raise NotImplementedError

    def reply(self, *args: Any, **kwargs: Any) -> str | Awaitable[str | None] | None:
        """Return the user's answer to a `message` of the agent; None ends the conversation.

        An environment with a `reply` is multi-turn: the agent continues with the answer. `reply` may change the state.
        Without a `reply`, a message without tool calls ends the episode.
        """
        raise NotImplementedError

    def instructions(self, *args: Any, **kwargs: Any) -> str | Awaitable[str | None] | None:
        """Return instructions for the agent, which follow its own.

        They are computed before each request to the model, from the current state, the user and so on. The method may
        only read.
        """
        raise NotImplementedError

    @classmethod
    def generate(cls, rng: Random) -> dict[str, Any]:
        """Return a new task row; take all randomness from `rng`."""
        raise NotFound(f"{cls.name} cannot generate tasks")

    # For sessions.

    @cached_property
    def tools(self) -> Mapping[str, Tool]:
        """The tools by name."""
        return {name: blueprint.bound_to(self) for name, blueprint in self._blueprints.items()}

    @classmethod
    def _has_world(cls) -> bool:
        return cls.world is not Environment.world

    def _procedure(self, hook: str) -> Procedure:
        needs = frozenset(_parameters(getattr(type(self), hook))) - {"message"}
        return Procedure(getattr(self, hook), needs, resources=needs & self.resources.keys())

    @cached_property
    def world_function(self) -> Procedure | None:
        return self._procedure("world") if self._has_world() else None

    @cached_property
    def seed_function(self) -> Procedure:
        return self._procedure("seed")

    @cached_property
    def verify_function(self) -> Procedure:
        return self._procedure("verify")

    @cached_property
    def reply_tool(self) -> Hook | None:
        if type(self).reply is Environment.reply:
            return None
        takes = frozenset({"message"}.intersection(_parameters(type(self).reply)))
        return Hook("reply", "write", self._procedure("reply"), takes)

    @cached_property
    def user_opens(self) -> bool:
        """Whether the user speaks first if the task has no user message: `reply` does not require a message."""
        message = inspect.signature(type(self).reply).parameters.get("message")
        return message is not None and message.default is not inspect.Parameter.empty

    @cached_property
    def instructions_tool(self) -> Hook | None:
        if type(self).instructions is Environment.instructions:
            return None
        return Hook("instructions", "read", self._procedure("instructions"))

    @cached_property
    def shared_seed_functions(self) -> Mapping[str, Procedure]:
        hooks: dict[str, Callable[..., Any]] = {"user": self.seed_user, "app": self.seed_app}
        return {
            name: Procedure(hooks[name], frozenset({"task"} if name == "user" else ())) for name in self.shared_types
        }

    def parse_task(self, row: Any) -> T:
        """Validate a task row. Raises `BadTask`, which names the wrong fields."""
        if isinstance(row, self.task_type):
            return row  # type: ignore[return-value]
        if type(row) is dict and ENV_ARGS in row:
            self._ensure_own_arguments(row)
        return validated(self.task_type, row)  # type: ignore[return-value]

    def parse_incomplete_task(self, row: Any) -> T:
        """Like `parse_task`, for a row that may lack required fields; reading a missing one raises `MissingField`."""
        self._ensure_own_arguments(row)
        return validated_without(self.task_type, row)  # type: ignore[return-value]

    def missing_fields(self, row: Any) -> list[str]:
        """The required fields that a row lacks."""
        return missing_fields(self.task_type, row)

    def _ensure_own_arguments(self, row: Any) -> None:
        """Raise `BadTask` if a row asks for an instance with other constructor arguments."""
        given = self.arguments_of(row)
        made = self.made_with or {}
        if any(name not in made or made[name] != given[name] for name in given):
            problem = f"{ENV_ARGS}: this instance of {self.name} was made with other arguments"
            raise BadTask(f"{problem}; use `stateroom run` in one process, or give them as `env_args`")

    @classmethod
    def arguments_of(cls, row: Any) -> Mapping[str, Any]:
        """The constructor arguments that a task row asks for."""
        given = row.get(ENV_ARGS) if isinstance(row, Mapping) and ENV_ARGS not in cls.task_type.model_fields else None
        if given is not None and not isinstance(given, Mapping):
            raise BadTask(f"{ENV_ARGS}: should be an object with constructor arguments by name")
        return given or {}

    @cached_property
    def variants(self) -> dict[str, Environment[S, T]]:
        """Instances with other constructor arguments, for task rows."""
        return {}

    def tool_definitions(self) -> list[dict[str, Any]]:
        """The tools as OpenAI functions."""
        return [tool.definition for tool in self.tools.values()]


def _parameters(method: Any) -> list[str]:
    return [
        parameter.name
        for parameter in list(inspect.signature(method).parameters.values())[1:]
        if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]


def _scope() -> dict[str, Any]:
    """The local names where a class is defined, which may be inside a function."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name in (
        "__new__",
        "__init_subclass__",
    ):  # of a metaclass or this
        frame = frame.f_back
    return frame.f_locals if frame is not None else {}


def _accepts(hint: Any, given: type) -> bool:
    """Whether a parameter with this annotation takes an instance of the type."""
    return hint is Any or isinstance(hint, TypingTypeVar) or (isinstance(hint, type) and issubclass(given, hint))


def _snake_case(name: str) -> str:
    stem = re.sub(r"(Environment|Env)$", "", name) or name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
