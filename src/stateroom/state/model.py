"""`State`: the base class of an author's state."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from stateroom.errors import DefinitionError, ReadOnlyState
from stateroom.state.compiler import shape_of
from stateroom.state.draft_context import DraftContext
from stateroom.state.events import Appliers, Event, find_appliers
from stateroom.state.schema import Migrations, Schema, Versioned, read_schema


class State(Versioned, BaseModel):
    """The typed state of an environment: a pydantic model that Stateroom keeps, versions and forks.

    Defining a class with a field that cannot be stored raises a `DefinitionError` that names the field.

    If two sessions change a shared state (of a user or the app) at the same time, the later call's tool runs again on
    the new state. With `class Profile(State, conflict="reject")` that call fails instead. Changes to fields with a
    `Merge` rule are merged.

    When you change the fields of a class, give it a new version, `class Cart(State, version=2)`, and a migration from
    the previous one, to read states that older code has stored. Only the state has a version; the models in it do not.

    A class with methods marked `@applies(SomeEvent)` can only change by events, which a tool emits: `state.emit(…)`.
    """

    on_conflict: ClassVar[Literal["retry", "reject"]] = "retry"
    __migrations__ = Migrations("State", 1)
    __appliers__: ClassVar[Appliers] = {}

    # A type that pydantic does not know reaches the check below, which names the field.
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__()  # pydantic gives the class's keywords to the method below too

    @classmethod
    def __pydantic_init_subclass__(
        cls, conflict: Literal["retry", "reject"] | None = None, version: int | None = None, **kwargs: Any
    ) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.__migrations__ = Migrations(cls.__name__, version, cls.__migrations__)
        cls.__appliers__ = find_appliers(cls)
        if conflict is not None:
            if conflict not in ("retry", "reject"):
                raise DefinitionError(f"{cls.__name__}: conflict must be 'retry' or 'reject', not {conflict!r}")
            cls.on_conflict = conflict
        # A name that is not defined yet, or a type variable: the check waits for the first use.
        if cls.__pydantic_complete__ and not cls.__pydantic_generic_metadata__["parameters"]:
            shape_of(cls)

    def emit(self, event: Event) -> None:
        """Emit an event in a tool: it is applied to the state at once, and logged.

        If the method that applies it raises, the call fails; check the state before you emit.
        """
        context: DraftContext | None = getattr(self, "_draft_context", None)
        if context is None:
            raise ReadOnlyState(
                f"only tools can emit events; to apply events to your own {type(self).__name__}, use fold(…)"
            )
        context.emit(self, event)


def schema_of(state: type[State]) -> Schema:
    """The schema of a state class, read on first use and kept on the class."""
    known: Schema | None = state.__dict__.get("__stateroom_schema__")
    if known is None:
        known = read_schema(state.__migrations__.version, shape_of(state))
        state.__stateroom_schema__ = known  # type: ignore[attr-defined]
    return known
