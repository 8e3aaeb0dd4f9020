import json
import socket
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nope:counter", "counter has no policy 'nope'; there are: reference:counter, noisy:counter"),
        ("reference", "no model is called 'reference'"),
        ("nope:Nope", "there is no module 'nope'"),
        ("reference:nope", "a policy is served as POLICY:ENV, of one of the environments calculator, counter"),
        ("replay:none.jsonl", "none.jsonl"),
        pytest.param("local:none.gguf", "there is no file none.gguf", marks=pytest.mark.more("a local model")),
        ("json:JSONDecoder", "is not a subclass of stateroom.model.Policy"),
    ],
)
def test_a_model_that_there_is_not(stateroom: Any, spec: str, said: str) -> None:
    outcome = stateroom("model", "serve", spec)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")
    assert said in outcome.err.replace("\n", " ")


def test_a_port_that_is_taken(stateroom: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = stateroom("model", "serve", "reference:counter", "--port", port)
    assert outcome.code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in outcome.err


def test_rollouts_that_are_none(stateroom: Any, tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").write_text(json.dumps({"reward": 1}) + "\n")
    outcome = stateroom("model", "serve", "replay:odd.jsonl")
    assert outcome.code == 2
    assert "episode 1 has no responses_create_params.input" in outcome.err.replace("\n", " ")
