"""Studio's API in the OpenAPI document of its server."""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from inspect import getdoc

from stateroom.server import (
    Action,
    MethodRoute,
    Nothing,
    Parameters,
    RouteEndpoint,
    Schema,
    as_json,
    operation,
    query,
    taken,
)
from stateroom.studio import runs
from stateroom.studio.access import READING
from stateroom.studio.sessions import Continuation
from stateroom.studio.store import StoreAfter

SECURITY: list[Schema] = [{}, {"studio": []}]
"""Without a token the API answers on the server's own machine."""

STATUSES = (401, 403, 404, 409, 410, 422, 500, 503)

QUERIES: dict[str, type[Parameters]] = {
    "/runs": runs.Since,
    "/runs/{run}": runs.Since,
    "/runs/{run}/rollouts": runs.Rollouts,
    "/runs/{run}/rollouts/{line}": runs.File,
    "/runs/{run}/matrix": runs.Page,
    "/store": StoreAfter,
}
"""The parameters in the URLs of endpoints that the admin API does not have."""

BODIES: dict[str, type[Parameters]] = {"/sessions/{id}/continue": Continuation, "/sessions/{id}/stop": Action}
"""The bodies of their requests."""

PERSON: Schema = {
    "type": "object",
    "properties": {"by": {"type": "string", "minLength": 1, "description": "The person who makes this change."}},
    "required": ["by"],
}


def describe(document: Schema, prefix: str, routes: Iterable[MethodRoute], *, of_run: bool = False) -> None:
    """Add endpoints below a prefix, or below each run there.

    What the admin API has too is described as there, the rest by docstrings and by the types of parameters.
    """
    paths = document["paths"]
    for route in routes:
        path = re.sub(r":\w+\}", "}", route.path.replace("{session:id}", "{id}"))
        known = paths.get(f"/admin{path}", {})
        start = "/runs/{run}" if of_run else ""
        found = paths.setdefault(prefix + start + path, {})
        for method, endpoint in route.endpoints.items():
            about = deepcopy(known.get(method.lower())) or _described(path, method, endpoint)
            others = [one for one in about.get("parameters", ()) if one["in"] != "path"]
            name = about["operationId"].removeprefix("admin.")
            group = "run.session." if of_run else "run." if path.startswith("/runs/") else ""
            found[method.lower()] = {
                **about,
                "operationId": f"studio.{group}{name}",
                "parameters": [*_in_path(start + path), *others],
                "security": SECURITY,
                **({} if method in READING else {"requestBody": _by_person(about.get("requestBody"))}),
            }
    document["components"]["securitySchemes"]["studio"] = {"type": "http", "scheme": "bearer"}


def _in_path(path: str) -> list[Schema]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _by_person(body: Schema | None) -> Schema:
    """The body of a change, which names its person."""
    schemas = [] if body is None else [body["content"]["application/json"]["schema"]]
    return taken({"allOf": [*schemas, PERSON]})


def _described(path: str, method: str, endpoint: RouteEndpoint) -> Schema:
    """An operation by its function: the name, the first line of what is said of it, and what it takes."""
    summary = (getdoc(endpoint) or "").partition("\n")[0]
    given = (
        {"parameters": query(QUERIES.get(path, Nothing))}
        if method in READING
        else {"requestBody": taken(BODIES[path].model_json_schema())}
    )
    return operation(endpoint.__name__, summary, as_json({"type": "object"}), STATUSES, **given)
