"""What the server says of itself: the OpenAPI document, and the page that shows it."""

import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import schemathesis
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field
from starlette.routing import Mount
from typing_extensions import TypeAliasType

from stateroom import Environment, Episode, State, Task, ToolError, tool
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment, WeatherEnvironment
from stateroom.server import openapi

Document = dict[str, Any]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(9, ge=0, le=9, alias="<s>lives")


class Dog(BaseModel):
    kind: Literal["dog"]
    name: Literal["<u>Rex</u>", "Fido"]


class Node(BaseModel):
    value: int
    next: "Node | None"
    children: "list[Node]"


Heap = TypeAliasType("Heap", "list[Heap] | int")


class Opaque:
    """Nothing that JSON knows of."""


class Farm(State):
    pets: list[str] = []


class FarmTask(Task):
    herd: int = Field(ge=1, description="How many <i>there</i> are.")


NUMBER = "555-'01 \\ 99'"


class FarmEnvironment(Environment[Farm, FarmTask]):
    """Keep <script>alert(1)</script> pets.

    - feed them & `pet` them
    - </style>
    """

    @tool
    def pet(
        self, state: Farm, animal: Annotated[Cat | Dog, Field(discriminator="kind")], how: str = "it's <b>soft</b>"
    ) -> Cat | Dog:
        """Pet an animal <b>softly</b>.

        Args:
            animal: Which "one"?
        """
        return animal

    @tool(effect="read")
    def follow(self, state: Farm, start: Node, limit: int | None = None) -> Node:
        """Follow the nodes."""
        return start

    @tool(effect="external")
    def call(self, state: Farm, number: Annotated[str, Field(examples=[NUMBER])]) -> Opaque:
        """Call the vet."""
        if number != NUMBER:
            raise ToolError(f"wrong number: {number}")
        return None  # type: ignore[return-value]

    @tool
    def stack(self, state: Farm, heap: Heap) -> Heap:
        """Stack the hay."""
        return heap

    @tool
    def rest(self, state: Farm):
        """Do nothing."""

    def instructions(self, state: Farm) -> str:
        return "Be kind to the animals."

    def verify(self, state: Farm, episode: Episode) -> float:
        return 1.0


class EmptyEnvironment(Environment):
    name = "server"


GALLERY = (CounterEnvironment, ExtractionEnvironment, WeatherEnvironment)


def routes_of(served: Any) -> Iterator[tuple[str, str]]:
    """The method and the path of everything that a server answers, from its router."""
    waiting = [("", route) for route in served.app.router.app.routes]
    while waiting:
        start, route = waiting.pop()
        if isinstance(route, Mount):
            waiting += [(start + route.path, each) for each in route.routes]
        else:
            yield from ((method, start + route.path) for method in route.methods)


async def document_of(served: Any) -> Document:
    status, document = await served.get("/openapi.json")
    assert status == 200
    return document


def operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def references(node: Any) -> Iterator[str]:
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if isinstance(node, dict) and isinstance(node.get("$ref"), str):
        yield node["$ref"]
    for part in parts:
        yield from references(part)


def body_of(operation: Document) -> Document:
    return operation["requestBody"]["content"]["application/json"]["schema"]


def reply_of(operation: Document) -> Document:
    return operation["responses"]["200"]["content"]["application/json"]["schema"]


class TestDocument:
    @pytest.mark.parametrize("environments", [(CounterEnvironment,), GALLERY, (FarmEnvironment, EmptyEnvironment)])
    async def test_is_valid(self, serve: Any, environments: Any) -> None:
        document = await document_of(await serve(*(environment() for environment in environments)))
        schemathesis.openapi.from_dict(document).validate()
        for schema in document["components"]["schemas"].values():
            Draft202012Validator.check_schema(schema)
        for reference in references(document):
            _, _, kind, name = reference.split("/")
            assert name in document["components"][kind]
        ids = [operation["operationId"] for _, _, operation in operations(document)]
        assert len(set(ids)) == len(ids)

    @pytest.mark.parametrize("environments", [(CounterEnvironment,), (FarmEnvironment,), GALLERY])
    async def test_has_every_endpoint_and_no_other(self, serve: Any, environments: Any) -> None:
        model = f"{Path(__file__).with_name('thread_models.py')}:Echo"
        served = await serve(*(environment() for environment in environments), agent=model)
        described = {(method, path) for method, path, _ in operations(await document_of(served))}
        answered = {(method, re.sub(r":\w+\}", "}", path)) for method, path in routes_of(served) if method != "HEAD"}
        assert described == {each for each in answered if not re.search(r"/mcp/?$|^/docs/", each[1])}

    async def test_says_what_is_served(self, serve: Any) -> None:
        document = await document_of(await serve())
        assert document["openapi"] == "3.1.0"
        assert document["info"]["title"] == "counter"
        assert document["info"]["version"] == version("stateroom")
        assert document["info"]["description"].startswith("Increment a counter and report its value.")
        assert "/admin" in document["info"]["description"]

    async def test_admin_endpoints_are_for_the_operator_and_answer_as_described(self, served: Any) -> None:
        document = await document_of(served)
        session = await served.services.environments["counter"].sessions.seed({"initial_count": 3, "expected_count": 5})
        await session.call("increment_counter", {"count": 1})
        await session.fork()
        for path, item in document["paths"].items():
            if not path.startswith("/admin") or "get" not in item:
                continue
            described = item["get"]
            assert described["security"] == [{}, {"admin": []}]
            needed = [each["name"] for each in described["parameters"] if each["required"] and each["in"] == "query"]
            if path.endswith("/stream"):
                assert "text/event-stream" in described["responses"]["200"]["content"]
                continue
            assert needed == (["from"] if path.endswith("/diff") else [])
            query = "?from=1" if needed else ""
            status, found = await served.get(f"{path.format(session=session.id)}{query}")
            assert status == 200
            schema = {**reply_of(described), "components": document["components"]}
            Draft202012Validator(schema).validate(found)

    async def test_of_several_environments(self, serve: Any) -> None:
        document = await document_of(await serve(*(environment() for environment in GALLERY)))
        assert document["info"]["title"] == "counter, extraction, weather"
        assert "- **weather**: Report the weather of a city." in document["info"]["description"]
        assert [tag["name"] for tag in document["tags"]] == ["counter", "extraction", "weather"]
        assert document["tags"][2]["description"] == "Report the weather of a city."
        tags = {path: operation.get("tags") for _, path, operation in operations(document)}
        assert tags["/weather/get_weather"] == ["weather"]
        assert tags["/counter/verify"] == ["counter"]
        assert tags["/health"] is None

    async def test_of_a_tool(self, serve: Any) -> None:
        document = await document_of(await serve())
        operation = document["paths"]["/increment_counter"]["post"]
        assert operation["summary"] == "Add `count` to the counter."
        assert operation["x-stateroom-effect"] == "write"
        assert document["paths"]["/get_counter_value"]["post"]["x-stateroom-effect"] == "read"
        assert body_of(operation) == {"$ref": "#/components/schemas/increment_counter"}
        arguments = document["components"]["schemas"]["increment_counter"]
        assert arguments["properties"] == {"count": {"type": "integer", "description": "How much to add."}}
        assert (arguments["required"], arguments["additionalProperties"]) == (["count"], False)
        assert reply_of(operation) == {"type": "object", "additionalProperties": {"type": "boolean"}}
        assert operation["requestBody"]["required"] is True
        assert document["paths"]["/get_counter_value"]["post"]["requestBody"]["required"] is False
        [key] = operation["parameters"]
        assert (key["name"], key["in"], key.get("required", False)) == ("Idempotency-Key", "header", False)
        assert sorted(operation["responses"]) == ["200", "400", "401", "409", "410", "413", "422", "500", "503", "504"]

    async def test_of_the_session_cookie(self, serve: Any) -> None:
        served = await serve(CounterEnvironment(), WeatherEnvironment())
        document = await document_of(served)
        assert document["components"]["securitySchemes"]["counter.session"] == {
            "type": "apiKey",
            "in": "cookie",
            "name": served.services.environments["counter"].cookies.name,
        }
        paths = document["paths"]
        assert paths["/counter/increment_counter"]["post"]["security"] == [{"counter.session": []}]
        assert paths["/weather/get_weather"]["post"]["security"] == [{}, {"weather.session": []}]
        assert "Set-Cookie" in paths["/counter/seed_session"]["post"]["responses"]["200"]["headers"]

    async def test_of_the_task_row(self, serve: Any) -> None:
        document = await document_of(await serve())
        task = document["components"]["schemas"]["CounterTask"]
        assert task["required"] == ["initial_count", "expected_count"]
        assert task["additionalProperties"] is True
        row = {"$ref": "#/components/schemas/CounterTask"}
        assert row in body_of(document["paths"]["/seed_session"]["post"])["anyOf"][0]["allOf"]
        assert row in body_of(document["paths"]["/verify"]["post"])["allOf"]
        assert body_of(document["paths"]["/reset"]["post"]) == row

    async def test_of_errors(self, served: Any) -> None:
        document = await document_of(served)
        error = document["components"]["responses"]["error_422"]
        assert error["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/stateroom.ErrorBody"}
        assert error["x-stateroom-codes"] == ["invalid_arguments", "invalid_task"]
        assert "Retry-After" in document["components"]["responses"]["error_503"]["headers"]
        await served.post("/seed_session", {"initial_count": 0, "expected_count": 0})
        status, found = await served.post("/increment_counter", {"count": "many"})
        definitions = {"$defs": document["components"]["schemas"]}
        text = json.dumps({**definitions, "$ref": "#/$defs/stateroom.ErrorBody"}).replace(
            "#/components/schemas/", "#/$defs/"
        )
        assert status == 422
        assert not list(Draft202012Validator(json.loads(text)).iter_errors(found))
        assert list(Draft202012Validator(json.loads(text)).iter_errors({"error": "no"}))

    async def test_of_types_that_nest(self, serve: Any) -> None:
        document = await document_of(await serve(FarmEnvironment()))
        schemas = document["components"]["schemas"]
        animal = schemas["pet"]["properties"]["animal"]
        assert animal["discriminator"]["mapping"]["cat"] in [choice["$ref"] for choice in animal["oneOf"]]
        assert schemas["pet"]["required"] == ["animal"]
        assert schemas["pet"]["properties"]["how"]["default"] == "it's <b>soft</b>"
        assert schemas["follow"]["properties"]["start"]["$ref"].startswith("#/components/schemas/Node")
        assert reply_of(document["paths"]["/call"]["post"]) == {}
        assert reply_of(document["paths"]["/rest"]["post"]) == {}


class TestPage:
    """The page in a browser is in `tests/studio/test_docs_page.py`."""

    async def test_loads_what_the_server_has_and_nothing_else(self, served: Any) -> None:
        files = {"docs/swagger-ui.css": "text/css", "docs/swagger-ui-bundle.js": "text/javascript"}
        files |= {"docs/start.js": "text/javascript"}
        async with served.client.get(f"{served.url}/docs") as reply:
            assert (reply.status, reply.content_type) == (200, "text/html")
            assert set(re.findall(r'(?:href|src)="([^"]*)"', await reply.text())) == {*files, "data:,"}
            policy = dict(each.split(" ", 1) for each in reply.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert {*policy.values()} == {"'none'", "'self'", "'self' data:"}
        for name, content_type in files.items():
            async with served.client.get(f"{served.url}/{name}") as reply:
                assert (reply.status, reply.content_type) == (200, content_type)
                assert reply.headers["x-content-type-options"] == "nosniff"

    @pytest.mark.parametrize("name", ["nothing", "__init__.py", "..%2F__init__.py", "%2e%2e/__init__.py", ""])
    async def test_has_no_other_files(self, served: Any, name: str) -> None:
        assert (await served.get(f"/docs/{name}"))[0] == 404

    async def test_says_what_to_install(self, serve: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(openapi, "SWAGGER_PACKAGE", "nothing_of_this_name")
        served = await serve()
        status, body = await served.get("/docs")
        assert (status, body["error"]["code"]) == (501, "not_installed")
        assert (await served.get("/docs/swagger-ui.css"))[0] == 404
        assert (await served.get("/openapi.json"))[0] == 200
