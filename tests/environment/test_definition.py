"""Defining an environment: what is read from a class, and what is refused with words that help."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable  # noqa: F401 - annotations name these
from datetime import datetime  # noqa: F401
from enum import Enum
from random import Random  # noqa: F401
from types import new_class
from typing import Annotated, Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, Field

from stateroom import Ask, Clock, Environment, Session, SessionInfo, State, Task, Verdict, tool  # noqa: F401
from stateroom.errors import DefinitionError
from tests.environments import Unjudged
from tests.messages import raises


class Counter(State):
    value: int = 0


class Other(State):
    name: str


class CounterTask(Task):
    start: int


class Base(Environment[Counter]):
    """Counts."""

    @tool
    def increment(self, state: Counter, count: int) -> int:
        """Add `count`."""
        state.value += count
        return state.value

    @tool(effect="read")
    async def get(self, state: Counter) -> int:
        """The value."""
        return state.value

    def verify(self, state: Counter, episode) -> float:
        return 1.0


def test_an_environment_is_read_from_its_class() -> None:
    environment = Base()
    assert (environment.name, environment.state_type, environment.task_type) == ("base", Counter, Task)
    assert list(environment.tools) == ["increment", "get"]
    increment, get = environment.tools.values()
    assert (increment.effect, increment.procedure.is_async, increment.retries_unknown) == ("write", False, False)
    assert (get.effect, get.procedure.is_async, get.procedure.needs) == ("read", True, frozenset({"state"}))


def test_two_types_are_a_state_and_a_task() -> None:
    class Both(Environment[Counter, CounterTask]):
        """Both."""

        async def seed(self, task: CounterTask) -> Counter:
            return Counter(value=task.start)

    assert (Both.state_type, Both.task_type, Both().seed_function.is_async) == (Counter, CounterTask, True)


@pytest.mark.parametrize(
    ("class_name", "name"),
    [("CounterEnvironment", "counter"), ("ToyShopEnv", "toy_shop"), ("Game2048", "game2048"), ("Env", "env")],
)
def test_the_name_follows_from_the_class(class_name: str, name: str) -> None:
    made: Any = type(class_name, (Environment,), {})
    assert made.name == name


def test_types_defined_inside_a_function_are_found() -> None:
    class Local(State):
        size: int = 0

    class Colour(Enum):
        RED = "red"

    class Inside(Unjudged[Local], ABC):
        """Inside, and with a metaclass of its own."""

        class Shape(BaseModel):
            sides: int

        @tool
        def paint(self, state: Local, colour: Colour, shape: Shape) -> str:
            """Paint a shape."""
            return colour.value

    bound = Inside().tools["paint"].bind({"colour": "red", "shape": {"sides": 3}})
    assert bound == {"colour": Colour.RED, "shape": Inside.Shape(sides=3)}


def test_a_tool_may_be_named_like_a_type() -> None:
    class Lists(Unjudged[Counter]):
        """Has a tool named list."""

        @tool
        def list(self, state: Counter) -> list[str]:
            """List."""
            return []

        @tool
        def add(self, state: Counter, names: list[str]) -> None:  # type: ignore[valid-type]
            """Add."""

    assert Lists().tools["add"].bind({"names": ["a"]}) == {"names": ["a"]}


def test_tools_are_inherited_and_overridden() -> None:
    class Child(Base):
        """Counts double."""

        @tool(timeout=3)
        async def increment(self, state: Counter, count: int, twice: bool = True) -> int:  # type: ignore[override]
            """Add `count` twice."""
            state.value += 2 * count
            return state.value

        @tool
        def reset_all(self, state: Counter) -> None:
            """Start again."""
            state.value = 0

    tools = Child().tools
    assert set(tools) == {"increment", "get", "reset_all"}
    assert tools["increment"].definition["description"] == "Add `count` twice."
    assert (tools["increment"].procedure.is_async, tools["increment"].procedure.timeout) == (True, 3)
    assert isinstance(getattr(tools["get"].procedure.function, "__self__", None), Child)
    assert Child.state_type is Counter
    assert set(Base().tools) == {"increment", "get"}


def test_an_override_must_say_that_it_is_a_tool() -> None:
    with raises(DefinitionError):

        class Child(Base):
            """Forgets the mark."""

            def increment(self, state: Counter, count: int) -> int:
                """Add."""
                return 0


def test_a_tool_can_be_taken_away() -> None:
    class Child(Base):
        """Has fewer tools."""

        get = None  # type: ignore[assignment]

    assert set(Child().tools) == {"increment"}


def test_tools_come_from_mixins_too() -> None:
    class Resetting:
        @tool
        def reset_all(self, state: Counter) -> None:
            """Start again."""

    class Mixed(Resetting, Base):
        """Mixed."""

    assert set(Mixed().tools) == {"increment", "get", "reset_all"}


def test_a_template_is_checked_when_its_types_are_known() -> None:
    S = TypeVar("S", bound=State)

    class Template(Unjudged[S], Generic[S]):
        """For any state."""

        @tool
        def look(self, state: S) -> str:
            """Look."""
            return str(state)

    class Filled(Template[Counter]):
        """For a counter."""

    assert (Filled.state_type, set(Filled().tools)) == (Counter, {"look"})


def refused(body: dict[str, Any], base: Any = Environment) -> None:
    """Define class `Shop` with this body; it must be refused, in the words that are recorded for the test."""
    with raises(DefinitionError) as caught:
        types_made(base, {"verify": lambda self: 0.0, **body})
    assert "Shop" in str(caught.value)


def types_made(base: Any, members: dict[str, Any]) -> Any:
    return new_class("Shop", (base,), {}, lambda namespace: namespace.update(members))


def no_docstring(self, count: int):
    pass


def only_arguments(self, count: int):
    """

    Args:
        count: how many
    """  # noqa: D205, D400, D415


def twice(self, who: Annotated[str, Field(alias="user")], whom: Annotated[str, Field(alias="user")]):
    """Doc."""


def yields(self, count: int):
    """Doc."""
    yield count


async def yields_async(self, count: int):
    """Doc."""
    yield count


def method_with(parameters: str) -> Any:
    """A method with these parameters."""
    members: dict[str, Any] = {}
    exec(compile(f"def buy({parameters}):\n    'Buy.'", __file__, "exec"), globals(), members)
    return members["buy"]


@pytest.mark.parametrize("method", [no_docstring, only_arguments, twice, yields, yields_async])
def test_a_method_that_is_no_tool_is_refused(method: Any) -> None:
    refused({method.__name__: tool(method)})


@pytest.mark.parametrize(
    "parameters",
    [
        *("", "count: int", "state, count: int"),
        *("self, count", "self, *counts: int", "self, **counts: int", "self, count: int, /"),
        *("self, user: str", "self, ask: float", "self, state: Counter"),
    ],
)
def test_parameters_that_no_tool_can_have_are_refused(parameters: str) -> None:
    refused({"buy": tool(method_with(parameters))})


@pytest.mark.parametrize("hint", ["Nonsense", "Callable[[], int]", "int[str]"])
def test_a_type_that_the_model_cannot_be_told_is_refused(hint: str) -> None:
    with pytest.raises(DefinitionError, match=r"Shop\.buy"):
        types_made(Environment, {"verify": lambda self: 0.0, "buy": tool(method_with(f"self, count: {hint}"))})


@pytest.mark.parametrize(
    "parameters",
    [
        *("state, ask: float", "state, ask: Random", "state, clock: datetime", "state, clock: float | None"),
        *("state, rng: int", "state, session: Session", "state, new_id: str", "state, user: BaseModel"),
        *("state, app: list[str]", "state: str"),
    ],
)
def test_an_injected_name_with_another_annotation_is_refused(parameters: str) -> None:
    body = method_with(f"self, {parameters}")
    if not any(each in parameters for each in ("ask", "user", "app")):
        refused({"verify": body}, Environment[Counter])
    refused({"look": tool(body)}, Environment[Counter])
    refused({"look": tool(body)})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        *(("ask", "Ask"), ("ask", "Callable[[str], Any]"), ("ask", "Any")),
        *(("clock", "Clock"), ("clock", "object"), ("clock", "Clock | None"), ("rng", "Random")),
        *(("session", "SessionInfo"), ("user", "Counter"), ("app", "Counter")),
        *(("new_id", "Callable[[], str]"), ("new_id", "Annotated[Callable[..., str], 'ids']")),
    ],
)
def test_an_injected_name_with_its_own_annotation_is_injected(name: str, hint: str) -> None:
    body = method_with(f"self, state, {name}: {hint}")
    made = types_made(Environment[Counter], {"look": tool(body), "verify": lambda self: 0.0})
    assert made().tools["look"].procedure.needs == {"state", name}


@pytest.mark.parametrize("hint", ["Counter", "State"])
def test_a_state_under_another_name_is_refused(hint: str) -> None:
    refused({"look": tool(method_with(f"self, counter: {hint}"))}, Environment[Counter])


def test_an_effect_needs_its_name() -> None:
    with raises(DefinitionError):
        tool("read")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "name",
    ["verify", "close", "step", "seed_session", "metrics", "seed", "tools", "name", "parse_task", "_hidden", "x" * 65],
)
def test_a_name_that_is_not_free_is_refused(name: str) -> None:
    def method(self) -> None:
        """Doc."""

    method.__name__ = name
    refused({name: tool(method)})


@pytest.mark.parametrize("wrapper", [staticmethod, classmethod])
def test_a_tool_is_a_plain_method(wrapper: Any) -> None:
    def method(self) -> None:
        """Doc."""

    refused({"method": wrapper(tool(method))})
    refused({"seed": wrapper(lambda task: Counter())}, Environment[Counter])
    refused({"verify": wrapper(lambda episode: 1.0)})


def test_tools_need_a_verifier() -> None:
    def hello(self) -> None:
        """Doc."""

    with raises(DefinitionError):
        types_made(Environment, {"hello": tool(hello)})


@pytest.mark.parametrize("hint", ["Other", "int", "list[Counter]", "Counter | None", "BaseModel | int"])
def test_a_wrong_state_annotation_is_refused(hint: str) -> None:
    look = method_with(f"self, state: {hint}")
    refused({"verify": look}, Environment[Counter])
    refused({"look": tool(look)}, Environment[Counter])


@pytest.mark.parametrize("hint", ["Counter", "State", "BaseModel", "Any", "object"])
def test_a_state_annotation_may_be_wider(hint: str) -> None:
    look = method_with(f"self, state: {hint}")
    assert types_made(Environment[Counter], {"verify": look}).state_type is Counter
    assert types_made(Environment[Counter], {"look": tool(look), "verify": lambda self: 0.0}).state_type is Counter


def test_a_state_without_defaults_needs_a_seed() -> None:
    refused({}, Environment[Other])


@pytest.mark.parametrize(
    ("body", "base"),
    [
        ({"seed": lambda self, task, size: 0}, Environment[Counter]),
        ({"seed": lambda self, state: 0}, Environment[Counter]),
        ({"verify": lambda self, state, answer: 0}, Environment[Counter]),
        ({"verify": lambda self, *args: 0}, Environment),
        ({"verify": lambda self, **more: 0}, Environment),
        ({"verify": lambda self, state: 0}, Environment),
        ({"seed": lambda self, task: 0}, Environment),
        ({"reply": lambda self, task: "no"}, Environment),
    ],
)
def test_hooks_may_ask_for_known_things_only(body: dict[str, Any], base: Any) -> None:
    refused(body, base)


def test_a_task_type_is_said_in_the_bases() -> None:
    def seed(self, task: CounterTask) -> Counter:
        return Counter()

    refused({"seed": seed}, Environment[Counter])
    assert types_made(Environment[Counter, CounterTask], {"seed": seed}).task_type is CounterTask


@pytest.mark.parametrize("types", [int, (Counter, int), "Counter"])
def test_what_is_neither_a_state_nor_a_task_is_refused(types: Any) -> None:
    with raises(DefinitionError):
        types_made(Environment[types], {})


@pytest.mark.parametrize(
    "options", [{"effect": "delete"}, {"timeout": 0}, {"timeout": -1}, {"timeout": float("nan")}, {"on_unknown": "ask"}]
)
def test_options_of_a_tool_are_checked(options: dict[str, Any]) -> None:
    with raises(DefinitionError):
        tool(**options)
