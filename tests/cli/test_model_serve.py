"""`stateroom model serve`: what a user may get wrong. How it serves is tested in `tests/server`."""

import json
import socket
from pathlib import Path

import pytest

from tests.cli.conftest import Refuses


@pytest.mark.parametrize(
    "spec",
    [
        *("nope:counter", "reference", "nope:Nope", "reference:nope", "replay:none.jsonl", "json:JSONDecoder"),
        pytest.param("local:none.gguf", marks=pytest.mark.more("a local model")),
    ],
)
def test_a_model_that_there_is_not(refuses: Refuses, spec: str) -> None:
    refuses("model", "serve", spec)


def test_a_port_that_is_taken(refuses: Refuses) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refuses("model", "serve", "reference:counter", "--port", taken.getsockname()[1])


def test_rollouts_that_are_none(refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").write_text(json.dumps({"reward": 1}) + "\n")
    refuses("model", "serve", "replay:odd.jsonl")
