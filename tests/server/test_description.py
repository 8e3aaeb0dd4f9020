"""What the server says of itself: the OpenAPI document, and the page made of it."""

import json
import re
import shlex
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from importlib.metadata import version
from typing import Annotated, Any, Literal

import pytest
import schemathesis
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field
from typing_extensions import TypeAliasType

from stateroom import Environment, Episode, State, Task, ToolError, tool
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment, WeatherEnvironment
from stateroom.server import routes
from stateroom.server.gymnasium import Gymnasium
from stateroom.server.verification import Verification

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


THREADS = {
    *(("GET", "/threads"), ("POST", "/threads"), ("GET", "/threads/{id}"), ("DELETE", "/threads/{id}")),
    ("GET", "/threads/{id}/items"),
    *(("POST", f"/threads/{{id}}/{action}") for action in ("messages", "run", "fork", "cancel")),
}

ADMIN = {
    *(("GET", f"/admin/{name}") for name in ("environments", "stream", "sessions", "sessions/{id}")),
    *(("POST", "/admin/sessions"), ("DELETE", "/admin/sessions/{id}")),
    *(
        ("GET", f"/admin/sessions/{{id}}/{what}")
        for what in ("log", "log/kinds", "log/stream", "state", "diff", "lineage")
    ),
    *(("POST", f"/admin/sessions/{{id}}/{name}") for name in ("call", "reply", "verify", "edit", "fork", "rewind")),
    *(
        ("POST", f"/admin/sessions/{{id}}/{name}")
        for name in ("undo", "redo", "checkpoint", "answer", "cancel", "close")
    ),
}

GALLERY = (CounterEnvironment, ExtractionEnvironment, WeatherEnvironment)


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
        served = await serve(*(environment() for environment in environments))
        described = {(method, path) for method, path, _ in operations(await document_of(served))}
        own = {("GET", path) for path in ("/", "/health", "/ready", "/metrics", "/openapi.json", "/docs")}
        environments = served.services.environments.values()
        judging = [(one, Verification(one)) for one in environments]
        known = {key for one, own in judging for key in one.routes() | own.routes() | Gymnasium(own, one).routes()}
        assert described == own | known | THREADS | ADMIN

    async def test_says_what_is_served(self, serve: Any) -> None:
        document = await document_of(await serve())
        assert document["openapi"] == "3.1.0"
        assert document["info"]["title"] == "counter"
        assert document["info"]["version"] == version("stateroom")
        assert document["info"]["description"].startswith("Increment a counter and report its value.")
        assert "/admin" in document["info"]["description"]

    async def test_admin_endpoints_are_for_the_operator_and_answer_as_described(self, serve: Any) -> None:
        served = await serve()
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
            status, found = await served.get(f"{path.format(id=session.id)}{query}")
            assert status == 200
            schema = {**reply_of(described), "components": document["components"]}
            Draft202012Validator(schema).validate(found)

    async def test_of_several_environments(self, serve: Any) -> None:
        document = await document_of(await serve(*(environment() for environment in GALLERY)))
        assert document["info"]["title"] == "counter, extraction, weather"
        assert "- **weather**: Tell the weather of a city." in document["info"]["description"]
        assert [tag["name"] for tag in document["tags"]] == ["counter", "extraction", "weather"]
        assert document["tags"][2]["description"] == "Tell the weather of a city."
        tags = {path: operation.get("tags") for _, path, operation in operations(document)}
        assert tags["/weather/get_weather"] == ["weather"]
        assert tags["/counter/verify"] == ["counter"]
        assert tags["/health"] is None

    async def test_of_a_tool(self, serve: Any) -> None:
        document = await document_of(await serve())
        operation = document["paths"]["/increment_counter"]["post"]
        assert operation["description"] == "Add `count` to the counter."
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

    async def test_of_errors(self, serve: Any) -> None:
        served = await serve()
        document = await document_of(served)
        error = document["components"]["responses"]["error_422"]
        assert error["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ErrorBody"}
        assert error["x-stateroom-codes"] == ["invalid_arguments", "invalid_task"]
        assert "Retry-After" in document["components"]["responses"]["error_503"]["headers"]
        await served.post("/seed_session", {"initial_count": 0, "expected_count": 0})
        status, found = await served.post("/increment_counter", {"count": "many"})
        definitions = {"$defs": document["components"]["schemas"]}
        text = json.dumps({**definitions, "$ref": "#/$defs/ErrorBody"}).replace("#/components/schemas/", "#/$defs/")
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

    async def test_is_made_once_and_when_asked_for(self, serve: Any, monkeypatch: Any) -> None:
        made: list[Document] = []
        make = routes.document

        def counted(*given: Any, **more: Any) -> Document:
            made.append(make(*given, **more))
            return made[-1]

        monkeypatch.setattr(routes, "document", counted)
        served = await serve()
        assert not made
        first = await document_of(served)
        async with served.client.get(f"{served.url}/docs") as reply:
            assert reply.status == 200
        assert await document_of(served) == first
        assert len(made) == 1


class Page(HTMLParser):
    """What stands in a page: its tags, the places in it and the links, and what is not closed."""

    EMPTY = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.places: list[str] = []
        self.links: list[str] = []
        self.said: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        self.places += [given["id"]] if given.get("id") else []  # type: ignore[list-item]
        self.links += [value for name, value in attrs if name in ("href", "src") and value]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    @property
    def text(self) -> str:
        return "".join(self.said)


async def page_of(served: Any, **options: Any) -> tuple[str, Any]:
    async with served.client.get(f"{served.url}/docs", **options) as reply:
        assert reply.status == 200
        return await reply.text(), reply.headers


class TestPage:
    async def test_loads_nothing(self, serve: Any) -> None:
        text, headers = await page_of(await serve(*(environment() for environment in GALLERY)))
        assert headers["content-type"] == "text/html; charset=utf-8"
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        [style] = re.findall("<style>(.*?)</style>", text, re.DOTALL)
        assert f"style-src 'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'" in policy
        assert "url(" not in style
        assert "@import" not in style
        page = Page(text)
        assert not page.open
        assert not page.tags & {"script", "link", "img", "iframe", "form"}
        assert [link for link in page.links if not link.startswith("#")] == ["openapi.json"]
        assert len(text) < 60_000

    @pytest.mark.parametrize("environments", [(FarmEnvironment,), (*GALLERY, EmptyEnvironment)])
    async def test_links_lead_somewhere(self, serve: Any, environments: Any) -> None:
        text, _ = await page_of(await serve(*(environment() for environment in environments)))
        page = Page(text)
        assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.places)
        assert len(set(page.places)) == len(page.places)

    async def test_tells_of_every_tool(self, serve: Any) -> None:
        text, _ = await page_of(await serve(FarmEnvironment()))
        page = Page(text)
        for name in ("pet", "follow", "call", "stack", "rest"):
            assert f"farm.{name}" in page.places
        for effect in ("read", "write", "external"):
            assert re.search(f'<h4>[^/]*/[a-z]+</code><span class="{effect}"', text)
        for place in ("animal(Cat).kind", "animal(Dog).name", "start.children", "herd"):
            assert f"<td><code>{place}</code></td>" in text
        assert "Cat or Dog" in page.text
        assert "array of Heap or integer" in page.text
        assert "How many <i>there</i> are." in page.text
        assert "POST /seed_session" in page.text
        assert page.text.index("POST /seed_session") < page.text.index("POST /pet") < page.text.index("POST /verify")
        assert page.text.index("POST /verify") < page.text.index("POST /close_session")
        for word in ("Idempotency-Key", "X-NeMo-Gym-Session-Token", "/mcp", "/admin", "session_sealed"):
            assert word in page.text

    async def test_shows_what_authors_wrote_as_text(self, serve: Any) -> None:
        text, _ = await page_of(await serve(FarmEnvironment()))
        page = Page(text)
        assert not page.open
        assert not page.tags & {"script", "i", "s", "u"}
        assert "animal(Cat).<s>lives" in page.text
        assert '"<u>Rex</u>" or "Fido"' in page.text
        assert "Keep <script>alert(1)</script> pets." in page.text
        assert "</style>" in page.text
        assert "Pet an animal <b>softly</b>." in page.text
        assert "it's <b>soft</b>" in page.text

    @pytest.mark.parametrize("environments", [GALLERY, (FarmEnvironment,)])
    async def test_examples_work_as_they_are(self, serve: Any, environments: Any) -> None:
        served = await serve(*(environment() for environment in environments))
        text, _ = await page_of(served)
        examples = re.findall("<pre>(curl.*?)</pre>", text, re.DOTALL)
        assert len(examples) == sum(len(environment().tools) + 3 for environment in environments)
        session_id = ""
        for example in examples:
            *_, url, _, body = [word for word in shlex.split(unescape(example)) if word != "\n"]
            if "seed_session" in url:
                served.client.cookie_jar.clear()
            status, found = await served.post(
                url.removeprefix(served.url), json.loads(body.replace("the session_id that seeding gave", session_id))
            )
            session_id = found.get("session_id", session_id) if "seed_session" in url else session_id
            assert status == 200, found

    async def test_examples_have_the_url_that_the_client_uses(self, serve: Any) -> None:
        served = await serve(hosts=None)
        text, _ = await page_of(served, headers={"Host": "rooms.example:8080"})
        assert "http://rooms.example:8080/increment_counter" in text
        text, _ = await page_of(served, headers={"Host": "[::1]:80", "X-Forwarded-Proto": "https"})
        assert "https://[::1]:80/increment_counter" in text
        text, _ = await page_of(served, headers={"Host": '"><script>alert(1)</script>'})
        assert "script" not in Page(text).tags
        assert "http://localhost/increment_counter" in text
