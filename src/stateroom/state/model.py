"""`State`: what an author declares."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from stateroom.errors import DefinitionError
from stateroom.state.compiler import shape_of_model
from stateroom.state.shape import ModelShape


class State(BaseModel):
    """The typed state of an environment: a pydantic model that Stateroom keeps, versions and forks.

    A field of a type that cannot be kept fails when the class is defined, with the field's name.

    Where sessions share a state (of a user, of the app) and two of them change it at once, `class Profile(State,
    conflict="reject")` refuses the later call; by default, `"retry"`, its tool runs again on what the other has made of
    it. Fields with a `Merge` rule need neither.
    """

    on_conflict: ClassVar[Literal["retry", "reject"]] = "retry"

    # A type that pydantic does not know reaches the check below, which names the field.
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__()  # pydantic gives the class's keywords to the method below too

    @classmethod
    def __pydantic_init_subclass__(cls, conflict: Literal["retry", "reject"] | None = None, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if conflict is not None:
            if conflict not in ("retry", "reject"):
                raise DefinitionError(f"{cls.__name__}: conflict is 'retry' or 'reject', not {conflict!r}")
            cls.on_conflict = conflict
        # A name that is not defined yet, or a type variable: the check waits for the first use.
        if cls.__pydantic_complete__ and not cls.__pydantic_generic_metadata__["parameters"]:
            shape_of_model(cls)


def shape_of(state: type[State]) -> ModelShape:
    """The compiled shape of a state class."""
    return shape_of_model(state)
