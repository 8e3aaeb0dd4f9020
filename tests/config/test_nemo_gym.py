"""Configurations of NeMo Gym become ours."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from stateroom.cli.config import Configuration
from stateroom.config import GymImport, import_gym
from stateroom.errors import BadConfig

SERVER = """
counter:
  resources_servers:
    example_session_state_mgmt: {entrypoint: app.py, domain: agent, host: 127.0.0.1, port: 8000, num_workers: 2}
"""
AGENT = """
counter_simple_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      max_steps: 6
      resources_server: {type: resources_servers, name: counter}
      model_server: {type: responses_api_models, name: policy_model}
      datasets:
      - {name: train, type: train, jsonl_fpath: data/train.jsonl, num_repeats: 4}
      - {name: dev, type: validation, jsonl_fpath: data/dev.jsonl}
"""
MODEL = """
policy_model:
  responses_api_models:
    openai_model:
      openai_base_url: ${policy_base_url}
      openai_api_key: ${policy_api_key}
      openai_model: ${oc.env:NAME,small}
"""


def imported(folder: Path, *texts: str) -> GymImport:
    paths = [folder / f"{number}.yaml" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return import_gym(paths)


def test_servers_agents_and_datasets_are_environments_models_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = imported(tmp_path, SERVER, AGENT, MODEL)
    assert found.config == {
        "environments": {
            "counter": {"environment": "counter"},
            "counter-train": {"environment": "counter", "input": "data/train.jsonl"},
            "counter-dev": {"environment": "counter", "input": "data/dev.jsonl"},
        },
        "models": {
            "policy_model": {
                "model": "responses:${env:NAME,small}@${env:POLICY_BASE_URL}",
                "api_key_env": "POLICY_API_KEY",
            }
        },
        "runs": {
            "train": {"environments": ["counter-train"], "model": "policy_model", "max_steps": 6, "repeats": 4},
            "validation": {"environments": ["counter-dev"], "model": "policy_model", "max_steps": 6},
        },
        "serve": {"environments": ["counter"], "host": "127.0.0.1", "port": 8000, "workers": 2},
    }
    assert [note.partition(":")[0] for note in found.notes] == ["policy_base_url", "policy_api_key"]
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(found.config))
    monkeypatch.setenv("POLICY_BASE_URL", "http://127.0.0.1:8002/v1")
    read = Configuration.load([tmp_path / "ours.yaml"]).values
    assert read.models["policy_model"].model == "responses:small@http://127.0.0.1:8002/v1"


def test_agents_of_one_split_are_one_run_if_they_run_alike(tmp_path: Path) -> None:
    other = AGENT.replace("counter_simple_agent", "second").replace("data/", "more/").replace("name: dev", "name: more")
    slower = AGENT.replace("counter_simple_agent", "slow").replace("max_steps: 6", "max_steps: 9")
    runs = imported(tmp_path, SERVER, AGENT, other, slower).config["runs"]
    assert runs["validation"]["environments"] == ["counter-dev", "counter-more"]
    assert (runs["validation-slow"]["environments"], runs["validation-slow"]["max_steps"]) == (["counter-dev"], 9)


def test_chained_and_inherited_files_are_followed(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "base.yaml").write_text(SERVER)
    chained = "config_paths: [configs/base.yaml]\nmine:\n  _inherit_from: counter\n"
    mine = chained + "  resources_servers: {example_session_state_mgmt: {grading: strict}}"
    found = imported(tmp_path, mine)
    assert found.config["environments"] == {"mine": {"environment": "counter", "args": {"grading": "strict"}}}
    assert any("the constructor must accept grading" in note for note in found.notes)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "vllm_model: {base_url: [http://a/v1, http://b/v1], model: m, api_key: none}",
            "chat:m@http://a/v1,http://b/v1",
        ),
        ("vllm_model: {base_url: '${oc.select:judge_url,${policy_url}}', model: m}", "chat:m@${env:POLICY_URL}"),
        ("vllm_model: {base_url: '${url}', model: m}\nurl: http://c/v1", "chat:m@http://c/v1"),
    ],
)
def test_a_model_is_named_by_its_api_name_and_address(tmp_path: Path, model: str, expected: str) -> None:
    found = imported(tmp_path, f"m:\n  responses_api_models:\n    {model}\n")
    assert found.config["models"]["m"] == {"model": expected}


def test_a_model_that_is_in_no_file_is_told(tmp_path: Path) -> None:
    def told(*texts: str) -> list[str]:
        return [note for note in imported(tmp_path, *texts).notes if note.startswith("models.policy_model:")]

    assert len(told(SERVER, AGENT)) == 1
    assert told(SERVER, AGENT, MODEL) == []


def test_a_key_is_not_copied(tmp_path: Path) -> None:
    found = imported(tmp_path, MODEL.replace("${policy_api_key}", "sk-secret"))
    assert "sk-secret" not in str(found)
    assert any("api_key_env" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("s:\n  resources_servers: {mine: {}}", "name your port of mine"),
        ("m:\n  responses_api_models: {other_model: {}}", "other_model has no counterpart"),
        (AGENT, "the resources server 'counter' is missing"),
        ("config_paths: [nowhere.yaml]", "nowhere.yaml not found"),
        (f"{SERVER}{SERVER.replace('counter:', 'two:')}", "have separate ports"),
    ],
)
def test_what_is_left_to_do_is_told(tmp_path: Path, text: str, note: Any) -> None:
    assert any(note in each for each in imported(tmp_path, text).notes)


@pytest.mark.parametrize("text", ["[1]", "a: [", "m:\n  resources_servers: {x: {y: '${z}'}}\nz: ${z}"])
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadConfig):
        imported(tmp_path, text)
