"""`State`: what an author declares."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from stateroom.state.compiler import shape_of_model
from stateroom.state.shape import ModelShape


class State(BaseModel):
    """The typed state of an environment: a pydantic model that Stateroom keeps, versions and forks.

    A field of a type that cannot be kept fails when the class is defined, with the field's name.
    """

    # A type that pydantic does not know reaches the check below, which names the field.
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        # A name that is not defined yet, or a type variable: the check waits for the first use.
        if cls.__pydantic_complete__ and not cls.__pydantic_generic_metadata__["parameters"]:
            shape_of_model(cls)


def shape_of(state: type[State]) -> ModelShape:
    """The compiled shape of a state class."""
    return shape_of_model(state)
