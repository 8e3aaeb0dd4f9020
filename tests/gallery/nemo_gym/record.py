"""Records what NeMo Gym's three example servers answer to made-up episodes, one a line: `test_nemo_gym.py` runs it.

It runs in Gym's own virtual environment, and drives Gym's own servers over their routes.
"""

import json
import sys
from collections.abc import Iterator
from itertools import chain, permutations
from random import Random
from typing import Any
from unittest.mock import MagicMock

from fastapi.testclient import TestClient
from nemo_gym.server_utils import ServerClient
from resources_servers.example_multi_step import app as extraction
from resources_servers.example_session_state_mgmt import app as counter
from resources_servers.example_single_tool_call import app as weather

SERVERS = {
    "weather": (weather.SimpleWeatherResourcesServer, weather.SimpleWeatherResourcesServerConfig),
    "extraction": (extraction.ExampleMultiStepResourcesServer, extraction.ExampleMultiStepResourcesServerConfig),
    "counter": (counter.StatefulCounterResourcesServer, counter.StatefulCounterResourcesServerConfig),
}
FINDINGS = (
    *("reward", "parsed_synonym_values", "accuracy", "set_overlap"),
    *("original_term_minefield_hit", "order_instruction_following_failure"),
)
Row = dict[str, Any]
Call = tuple[str, str]
"""A tool, and the arguments as the model writes them."""
Case = tuple[str, Row, list[Call]]

RIGHT = [711, 407]
ODD_ANSWERS: tuple[Any, ...] = (
    *(["711", "407"], ["711", 407], [711.0, 407.0], ["711.0", "407"], [" 711", "407 "], [711, 407.0, "299"]),
    *([711.5, 407], ["Blazing", "Warm"], ["Hot"], [None], [[711, 407]], [{"value": 711}], "711", "[711, 407]", 711),
    *(None, {}, {"0": 711}, True, [True], [False, 1], [-711, 407], [10**30], "", [""]),
)
ODD_ARGUMENTS = ("{}", '{"values": [711, 407]}')


def extraction_cases() -> Iterator[Case]:
    for answer in chain(permutations([711, 407, 299]), permutations(RIGHT), [[711], [407], [], [299]]):
        yield extracting({}, [submit([*answer])])
    for odd in ODD_ANSWERS:
        yield extracting({}, [submit(odd)])
        yield extracting({}, [submit(RIGHT), submit(odd)])  # what is wrong comes last
        yield extracting({}, [submit(odd), submit(RIGHT)])
    for arguments in ODD_ARGUMENTS:
        yield extracting({}, [submit(RIGHT), ("extract_synonym_values", arguments)])
    for odd in ([1, 0], [True, False], [True, 0], ["1", "0"], [0, 1], [1.0, -0.0]):
        yield extracting({"expected_synonym_values": [1, 0]}, [submit(odd)])
    for label in ("711", "Hot", ""):  # a label that is also a number can be submitted
        for odd in (["711", 407], [711, 407], [""]):
            yield extracting({"minefield_label": label}, [submit(odd)])
    for word in ("Blazing", "Warm", "Hot", "", "é", "😀"):
        looked_up = ("get_synonym_value", json.dumps({"synonym": word}))
        yield extracting({}, [looked_up, submit(RIGHT)])
    yield extracting({}, [])
    yield extracting({}, [("get_synonym_value", '{"synonym": 5}'), ("get_synonym_value", "{}")])
    rng = Random(7)
    for _ in range(110):
        values = rng.sample(range(100, 1000), 3)
        expected = rng.choices(values, k=rng.randint(1, 4))  # with duplicates
        mine = rng.choice([*expected, 299])
        given = [*expected, *rng.choices([*values, mine, 5], k=rng.randint(0, 3))]
        rng.shuffle(given)
        answers = [given[: rng.randint(0, len(given))], given, expected]
        row = {"expected_synonym_values": expected, "minefield_label_value": mine}
        yield extracting(row, [submit(answer) for answer in rng.sample(answers, rng.randint(1, 2))])


def extracting(changes: Row, calls: list[Call]) -> Case:
    row = {"id": 0, "expected_synonym_values": RIGHT, "expected_synonyms": ["Blazing", "Warm"]}
    return "extraction", {**row, "minefield_label": "Hot", "minefield_label_value": 299, **changes}, calls


def submit(answer: Any) -> Call:
    return "extract_synonym_values", json.dumps({"synonym_values": answer})


def counter_cases() -> Iterator[Case]:
    read = ("get_counter_value", "{}")
    for count in (2, 0, -2, "2", " 2 ", "-2", "2.0", 2.0, True, 2.5, "two", "", None, [2], 10**30):
        add = ("increment_counter", json.dumps({"count": count}))
        yield "counter", {"initial_count": 3, "expected_count": 5}, [add, read]
    yield "counter", {"initial_count": 3, "expected_count": 5}, [("increment_counter", "{}"), read]
    yield "counter", {"initial_count": 3, "expected_count": 3}, []
    yield "counter", {"initial_count": "3", "expected_count": "5"}, [("increment_counter", '{"count": 2}'), read]


def weather_cases() -> Iterator[Case]:
    for city in ("San Francisco", "São Paulo", "", "😀", 'a "b"\n', 5, None):
        yield "weather", {}, [("get_weather", json.dumps({"city": city}))]
    yield "weather", {}, [("get_weather", "{}")]
    yield "weather", {}, [("get_weather", '{"city": "Lima"}'), ("get_weather", '{"city": "Cairo"}')]
    yield "weather", {}, []


def record(name: str, row: Row, calls: list[Call]) -> Row:
    """A case, with the output of each call and what the verifier finds; null where the server refuses or fails."""
    make, configure = SERVERS[name]
    config = configure(host="127.0.0.1", port=8080, entrypoint="", name=name)
    app = make(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver()
    client = TestClient(app, raise_server_exceptions=False)
    task = {"responses_create_params": {"input": []}, **row}
    client.post("/seed_session", json=task).raise_for_status()
    replies = [client.post(f"/{tool}", json=json.loads(arguments)) for tool, arguments in calls]
    items = [
        {"type": "function_call", "call_id": f"call_{index}", "name": tool, "arguments": arguments}
        for index, (tool, arguments) in enumerate(calls)
    ]
    options = {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
    response = {"id": "", "created_at": 0, "model": "", "object": "response", "output": items, **options}
    judged = client.post("/verify", json={**task, "response": response})
    return {
        "environment": name,
        "row": row,
        "calls": calls,
        "outputs": [reply.json() if reply.is_success else None for reply in replies],
        "verdict": {key: judged.json()[key] for key in FINDINGS if key in judged.json()} if judged.is_success else None,
    }


if __name__ == "__main__":
    for case in chain(weather_cases(), counter_cases(), extraction_cases()):
        sys.stdout.write(json.dumps(record(*case)) + "\n")
