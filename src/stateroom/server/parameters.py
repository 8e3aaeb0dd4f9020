"""What a request asks for: the steps of its path, and the parameters in its query or body."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, unquote

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from stateroom.errors import InvalidArguments
from stateroom.server.faults import wrong_field
from stateroom.server.http import Scope
from stateroom.state import to_json


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
"""Takes 2.0 for 2, which JSON Schema does not tell apart."""
Revision = Annotated[int, Field(ge=1, le=2**53), WHOLE]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Place = Revision | Name
"""A revision, or the name of a checkpoint."""
After = Annotated[int, Field(ge=0, le=2**53), WHOLE]
Amount = Annotated[int, Field(ge=1, le=1000), WHOLE]
Text = Annotated[str, Field(max_length=10_000)]


class Parameters(BaseModel):
    """Parameters by name; there are no others."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Nothing(Parameters):
    """For requests that say all by their path."""


P = TypeVar("P", bound=Parameters)


def parse(parameters: type[P], given: dict[str, Any], name: str | None = None, *, strict: bool = False) -> P:
    """The parameters of a request; `name` is what the client knows the only one by."""
    try:
        return parameters.model_validate(given, strict=strict)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        fields = {name or str(one["loc"][0]): one["msg"] for one in reversed(found)}  # of a union, the first complaint
        raise InvalidArguments("; ".join(f"{field}: {said}" for field, said in fields.items()), fields) from None


def steps(scope: Scope) -> list[str]:
    """The steps of a path below its first. A session's id may hold a slash, which then came as %2F."""
    raw = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")
    first = 4 if raw.startswith("/ng-rollout/") else 2
    return [unquote(step) for step in raw.split("/")[first:]]


# A cursor stands for the last session of a page, of which it tells when it was created, and the id.


def cursor_of(created: float, session: str) -> str:
    return urlsafe_b64encode(to_json([created, session])).decode()


def read_cursor(cursor: str) -> tuple[float, str]:
    try:
        return msgspec.json.decode(urlsafe_b64decode(cursor), type=tuple[float, str])
    except ValueError:
        raise wrong_field("cursor", "should be the `next` of the page before") from None
