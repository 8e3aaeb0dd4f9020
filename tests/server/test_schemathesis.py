"""A stranger who has only read the OpenAPI document: what it sends is answered as the document says."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from stateroom.gallery import CounterEnvironment, ExtractionEnvironment, WeatherEnvironment
from tests.examples import share

pytestmark = pytest.mark.more("time")

ROWS: dict[str, dict[str, Any]] = {
    "counter": {"initial_count": 3, "expected_count": 9},
    "extraction": {
        "id": 1,
        "expected_synonym_values": [543],
        "expected_synonyms": ["large"],
        "minefield_label": "big",
        "minefield_label_value": 306,
    },
    "weather": {},
}

careful = settings(max_examples=share(0.06), derandomize=True, database=None, suppress_health_check=list(HealthCheck))


class Stranger:
    """Sends what the document allows, and what it does not, and checks every reply against the document."""

    def __init__(self, url: str, *, with_session: bool) -> None:
        self.url = url
        self.with_session = with_session
        self.replies: Counter[tuple[str, int]] = Counter()
        self.connection = requests.Session()
        self.schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        self.schema.validate()

    def operations(self) -> Iterator[Any]:
        for result in self.schema.get_all_operations():
            assert isinstance(result, Ok)
            operation = result.ok()
            if not (operation.path.startswith("/admin") and operation.path.endswith("/stream")):  # without an end
                yield operation

    def try_all(self) -> None:
        with self.connection:
            for operation in self.operations():
                self._try(operation, GenerationMode.POSITIVE)
                if operation.body:
                    self._try(operation, GenerationMode.NEGATIVE)

    def _try(self, operation: Any, mode: GenerationMode) -> None:
        @careful
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            case.query.pop("cursor", None)  # of which no schema says that it comes from another reply
            row = ROWS.get(operation.path.split("/")[1])
            if row is not None and operation.path.endswith("/verify") and mode is GenerationMode.POSITIVE:
                case.body |= row  # no schema says that it is the row of the seed
            cookies = self._cookies(operation.path)
            reply = case.call(session=self.connection, cookies=cookies, headers=self._thread(operation.path, case))
            self.replies[operation.label, reply.status_code] += 1
            # Fields and headers that are not for an endpoint pass by it, so not all that is wrong is refused.
            excluded = [negative_data_rejection]
            # No schema says what a session has to be edited or told, or that a sum of numbers is finite.
            if operation.path.startswith("/admin/sessions/") or operation.path.endswith("/aggregate_metrics"):
                excluded.append(positive_data_acceptance)
            case.validate_response(reply, excluded_checks=excluded)

        send()

    def _thread(self, path: str, case: Case) -> dict[str, str]:
        """Puts a session or a thread of its own into the path of a request, and gives the thread's token."""
        if not self.with_session or "id" not in case.path_parameters:
            return {}
        if path.startswith("/admin"):
            row: Any = {"environment": "counter", "row": ROWS["counter"]}
            case.path_parameters["id"] = self.connection.post(f"{self.url}/admin/sessions", json=row).json()["id"]
            return {}
        made = self.connection.post(f"{self.url}/threads", json={}).json()
        token = {"Authorization": f"Bearer {made['token']}"}
        if path.endswith("/run"):
            self.connection.post(f"{self.url}/threads/{made['id']}/messages", json={"message": "x"}, headers=token)
        case.path_parameters["id"] = made["id"]
        return token

    def _cookies(self, path: str) -> dict[str, str | None]:
        """The cookie of a session of its own for each request, so that none is sealed or closed by another's."""
        self.connection.cookies.clear()
        environment = path.split("/")[1]
        if not self.with_session or environment not in ROWS:
            return {}
        seeded = self.connection.post(f"{self.url}/{environment}/seed_session", json=ROWS[environment])
        self.connection.cookies.clear()
        return seeded.cookies.get_dict()


@pytest.mark.parametrize("with_session", [False, True], ids=["without a session", "with a session"])
async def test_every_reply_is_as_the_document_says(serve: Any, with_session: bool) -> None:
    environments = (CounterEnvironment(), ExtractionEnvironment(), WeatherEnvironment())
    model = f"{Path(__file__).with_name('thread_models.py')}:Echo"
    served = await serve(*environments, model=model, agent=model)
    stranger = await asyncio.to_thread(Stranger, served.url, with_session=with_session)
    await asyncio.to_thread(stranger.try_all)
    assert not [reply for reply in stranger.replies if reply[1] >= 500]
    accepted = {label for label, status in stranger.replies if status == 200}
    seeding = {f"POST /{name}/{path}" for name in ROWS for path in ("seed_session", "reset", "close_session", "run")}
    by_hand = {f"POST /admin/sessions/{{id}}/{name}" for name in ("call", "reply", "answer", "rewind", "edit", "fork")}
    acting = {operation.label for operation in stranger.operations()} - seeding - by_hand  # which fit a state
    assert accepted >= acting if with_session else accepted >= seeding
