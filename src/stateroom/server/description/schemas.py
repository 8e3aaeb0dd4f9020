"""JSON schemas of everything that goes over the wire, made together so that they share their definitions."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

Schema = dict[str, Any]

Wanted = dict[Hashable, tuple[Any, JsonSchemaMode]]
"""Types by any key, each as it is read or as it is written."""

PLACE = "#/components/schemas/"
"""Where an OpenAPI document keeps its definitions."""


class Plain(GenerateJsonSchema):
    """Schemas without a title for each field, which would only say its name again.

    What cannot be written of an author's defaults was said when the environment was defined.
    """

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schemas_of(types: Wanted) -> tuple[dict[Hashable, Schema], Schema]:
    """The schema of each type, and the definitions that they refer to; a type that has none allows anything."""
    adapters = {key: (adapter, mode) for key, (kind, mode) in types.items() if (adapter := _adapter(kind, mode))}
    made, definitions = TypeAdapter.json_schemas(
        [(key, mode, adapter) for key, (adapter, mode) in adapters.items()],
        ref_template=PLACE + "{model}",
        schema_generator=Plain,
    )
    found = {key: made[key, adapters[key][1]] if key in adapters else {} for key in types}
    return found, definitions.get("$defs", {})


def _adapter(kind: Any, mode: JsonSchemaMode) -> TypeAdapter[Any] | None:
    """What makes the schema of a type; None if there is none to be made."""
    try:
        adapter = TypeAdapter[Any](kind)
        adapter.json_schema(mode=mode, schema_generator=Plain)
    except (PydanticUserError, TypeError, ValueError, NameError):
        return None
    return adapter
