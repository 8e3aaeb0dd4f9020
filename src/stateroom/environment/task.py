"""Tasks: the typed rows that sessions are seeded with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from stateroom.errors import BadTask, MissingField
from stateroom.session import contained


class Task(BaseModel):
    """A task row. Subclass it to declare the fields of your environment; it keeps undeclared fields too.

    A field `initial_count` of a row is `task.initial_count`, declared or not. Declared fields are validated before
    anything runs.
    """

    model_config = ConfigDict(extra="allow")

    responses_create_params: dict[str, Any] = Field(
        default={},
        description="The request to the model: `input` (a text, or Responses items) and, optionally, `tools` and "
        "sampling settings.",
    )


T = TypeVar("T", bound=Task)


def validated(task_type: type[T], row: Any) -> T:
    """The typed task of a row. Raises `BadTask`, which names the wrong fields."""
    try:
        with contained:
            return task_type.model_validate(row)
    except ValidationError as error:
        complaints = (
            f"{'.'.join(map(str, problem['loc'])) or 'the row'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_context=False)
        )
        raise BadTask("; ".join(complaints)) from None


def missing_fields(task_type: type[Task], row: Any) -> list[str]:
    """The required fields that a row does not have, by their names in rows."""
    if not isinstance(row, Mapping):
        return []
    required = (field.alias or name for name, field in task_type.model_fields.items() if field.is_required())
    return [name for name in required if name not in row]


def validated_without(task_type: type[T], row: Any) -> T:
    """The typed task of a row that may lack required fields; reading a missing one raises `MissingField`."""
    missing = frozenset(missing_fields(task_type, row))
    if not missing:
        return validated(task_type, row)
    try:
        task: T = validated(_incomplete(task_type, missing), row)
    except (AttributeError, TypeError, LookupError) as error:  # a validator of the task needs a field that is None here
        raise BadTask("; ".join(f"{name}: Field required" for name in sorted(missing))) from error
    for name, field in task_type.model_fields.items():
        if (field.alias or name) in missing:
            del task.__dict__[name]
    return task


class _Incomplete(BaseModel):
    """A task without some of its fields."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in type(self).model_fields:
                raise MissingField(f"{name}: Field required")
            return super().__getattr__(name)


@lru_cache(maxsize=64)
def _incomplete(task_type: type[Task], missing: frozenset[str]) -> Any:
    fields: dict[str, Any] = {
        name: (Any, Field(default=None, validate_default=False))
        for name, field in task_type.model_fields.items()
        if (field.alias or name) in missing
    }
    return create_model(task_type.__name__, __base__=(_Incomplete, task_type), **fields)
