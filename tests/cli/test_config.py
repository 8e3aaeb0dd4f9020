"""`--config` and `stateroom config`: environments, models, stores and runs in a file."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from stateroom.cli.command import OptionSources
from stateroom.cli.config import Configuration, run_options
from stateroom.rollout import Price, RunOptions
from tests.cli.conftest import Command, Refuses
from tests.rows import rows

FILE = Path("stateroom.yaml")


def write(**sections: Any) -> None:
    FILE.write_text(yaml.safe_dump(sections, sort_keys=False))


def values(stateroom: Command, *words: str) -> dict[str, tuple[Any, str]]:
    """What `config show` tells: the value and the origin of each key."""
    told = stateroom("config", "show", "--json", *words).json
    return {each["key"]: (each["value"], each["origin"]) for each in told}


def test_a_run_has_metrics_by_environment_and_overall(stateroom: Command) -> None:
    write(runs={"all": {"environments": ["counter", "weather"], "model": "noisy", "repeats": 4, "output": "out"}})
    told = stateroom("run", "--config", FILE, "--json").json
    rewards = {name: [row["reward"] for row in rows(f"out/{name}.jsonl")] for name in ("counter", "weather")}
    every = rewards["counter"] + rewards["weather"]
    assert told["metrics"]["mean/reward"] == sum(every) / len(every)
    by_environment = [each["metrics"]["pass@4"] for each in told["environments"].values()]
    assert told["metrics"]["pass@4"] == sum(by_environment) / 2  # each has eight tasks
    stateroom("run", "--config", FILE, "--force")
    shown = stateroom("run", "--config", FILE, "--resume").out
    lines = [" ".join(line.split()[:3]) for line in shown.splitlines()[2:5]]
    assert lines == ["counter 32 0", "weather 32 0", "overall 64 0"]


def test_an_environment_has_its_arguments_and_tasks(stateroom: Command) -> None:
    gold = [{"name": "increment_counter", "arguments": {"count": 1}}]  # and nobody reads the counter
    task = {"responses_create_params": {"input": "add 1"}, "initial_count": 0, "expected_count": 1, "gold": gold}
    Path("one.jsonl").write_text(json.dumps(task))
    entries: dict[str, Any] = {name: {"environment": "counter", "input": "one.jsonl"} for name in ("loose", "strict")}
    entries["strict"]["args"] = {"strict": True}
    write(environments=entries, runs={"both": {"environments": [*entries], "model": "gold", "output": "o"}})
    assert stateroom("run", "--config", FILE).code == 0
    assert [rows(f"o/{name}.jsonl")[0]["reward"] for name in entries] == [1.0, 0.0]


def test_an_option_wins_over_an_override_and_that_over_the_file(stateroom: Command) -> None:
    write(runs={"a": {"environments": ["counter"], "limit": 1, "repeats": 2, "seed": 5, "output": "a.jsonl"}})
    stateroom("run", "--config", FILE, "a", "run.repeats=3", "runs.a.limit=2", "--limit", 3)
    told = json.loads(Path("a_run.json").read_text())
    assert (told["tasks"], told["options"]["repeats"], told["seed"]) == (3, 3, 5)


def test_later_files_win(stateroom: Command) -> None:
    write(runs={"a": {"environments": ["counter"], "limit": 1, "output": "a.jsonl"}})
    Path("more.yaml").write_text("runs: {a: {limit: 2}}")
    stateroom("run", "--config", FILE, "--config", "more.yaml")
    assert json.loads(Path("a_run.json").read_text())["tasks"] == 2


def test_a_model_has_its_key_price_limits_and_settings(stateroom: Command) -> None:
    model = {"model": "chat:m@http://127.0.0.1:1/v1", "api_key_env": "K", "price": "in=1", "requests_per_minute": 60}
    settings = {"temperature": 0.7, "top_p": 0.9}
    asked = {"environments": ["counter"], "model": "m", "store": "main", "settings": {"top_p": 0.5}}
    write(models={"m": {**model, "settings": settings}}, stores={"main": "sqlite:///x.db"}, runs={"a": asked})
    given = OptionSources(RunOptions, {"price": "in=3"}, {"store": "memory://"})
    options = run_options(Configuration.load([FILE]), "a", given)["counter"]
    assert {name: getattr(options, name) for name in model} == {**model, "price": Price(3.0)}
    assert (options.settings, options.store) == ({"temperature": 0.7, "top_p": 0.5}, "sqlite:///x.db")


def test_a_run_is_named_unless_there_is_one(refuses: Refuses) -> None:
    write(runs={name: {"environments": ["counter"]} for name in ("smoke", "full")})
    refuses("run", "--config", FILE)
    refuses("run", "--config", FILE, "smok")
    refuses("config", "show", "run.repeats=2")


@pytest.mark.parametrize("option", [("--env-arg", "strict=true"), ("--input", "x.jsonl"), ("--output", "x.jsonl")])
def test_what_is_of_one_environment_is_refused_for_several(refuses: Refuses, option: tuple[str, str]) -> None:
    write(runs={"a": {"environments": ["counter", "weather"]}})
    refuses("run", "--config", FILE, *option)


def test_an_override_needs_a_file(refuses: Refuses) -> None:
    refuses("run", "counter", "run.repeats=2")
    refuses("serve", "counter", "serve.port=2")


RUN = "runs:\n  a:\n    environments: [counter]\n"


@pytest.mark.parametrize(
    "text",
    [
        f"{RUN}    repeat: 2",
        f"{RUN}    repeats: 0",
        f"{RUN}    api_key: x",
        "rums: {}",
        "environments:\n  a: {z: 1}",
        "serve: {prt: 1}",
        "runs: {a: {}}",
        "a: 1\nb: 2\n",
    ],
)
def test_mistakes_are_told_with_file_line_and_key(refuses: Refuses, text: str) -> None:
    FILE.write_text(text)
    refuses("config", "show")


def test_what_is_shown_is_yaml_that_says_the_same(stateroom: Command) -> None:
    write(
        environments={
            "a": {"environment": "counter", "args": {"strict": True, "names": ["x: y", "#"], "more": {"n": None}}}
        },
        runs={"r": {"environments": ["a"], "settings": {"stop": "\n"}}},
    )
    shown = stateroom("config", "show").out
    Path("again.yaml").write_text(shown)
    first, second = values(stateroom), values(stateroom, "--config", "again.yaml")
    assert {key: value for key, (value, _) in first.items()} == {key: value for key, (value, _) in second.items()}
    assert "strict: true" in shown


def test_no_secret_is_shown(stateroom: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORD": "hunter2", "PIN": "4711"}.items():
        monkeypatch.setenv(name, value)
    args = {"x": "${env:WORD}", "pin": "${env:PIN}", "api_token": "hunter2", "deep": {"list": ["${env:WORD}"]}}
    write(
        environments={"a": {"environment": "counter", "args": {**args, "hosts": [{"password": "hunter2"}]}}},
        models={"m": {"model": "local", "settings": {"extra_headers": {"Authorization": "hunter2"}, "max_tokens": 9}}},
        stores={"s": "postgresql://me:${env:WORD}@host/db", "t": "redis://:hunter2@host"},
    )
    FILE.write_text(FILE.read_text().replace("'${env:PIN}'", "${env:PIN}"))  # a number
    for words in ([], ["--json"]):
        told = stateroom("config", "show", *words)
        assert told.code == 0
        assert "hunter2" not in told.out + told.err
        assert "4711" not in told.out + told.err
    found = values(stateroom)
    assert found["stores.s"][0] == "postgresql://me:***@host/db"
    assert found["models.m.settings.max_tokens"][0] == 9


def test_a_text_from_a_variable_is_shown_with_its_name(stateroom: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORD": "hunter2", "N": "3"}.items():
        monkeypatch.setenv(name, value)
    write(
        models={"m": {"model": "chat:${env:WORD}@https://host/${env:WORD}/v1"}},
        environments={"a": {"environment": "counter", "input": "/data/${env:WORD}/tasks.jsonl"}},
        stores={"s": "file:///data/${env:WORD}"},
        runs={"r": {"environments": ["a", "${env:WORD}:X"], "model": "${env:WORD}", "output": "${env:WORD}.jsonl"}},
    )
    for words in ([], ["--json"]):
        told = stateroom("config", "show", *words)
        assert told.code == 0, told.err
        assert "hunter2" not in told.out + told.err
    found = values(stateroom)
    assert found["models.m.model"][0] == "chat:${env:WORD}@https://host/${env:WORD}/v1"
    assert found["runs.r.environments"][0] == ["a", "${env:WORD}:X"]


def test_the_schema_is_for_editors(stateroom: Command) -> None:
    schema = stateroom("config", "schema").json
    checker = jsonschema.Draft202012Validator(schema)
    good = {
        "include": "x.yaml",
        "environments": {"counter": None, "b": {"args": {"strict": True}}},
        "models": {"m": {"model": "local", "requests_per_minute": "${env:N,5}"}},
        "runs": {"a": {"environments": ["b"], "repeats": "${env:N}", "group": 4}},
        "serve": {"environments": ["b"], "port": 8000},
    }
    assert [*checker.iter_errors(good)] == []
    bad: Any
    for bad in ({"rums": {}}, {"runs": {"a": {"environments": ["b"], "repeats": 0}}}, {"serve": {"port": "x"}}):
        assert [*checker.iter_errors(bad)] != []
    assert "Episodes per task" in json.dumps(schema)


def test_an_imported_configuration_replaces_no_file_and_may_be_printed(stateroom: Command) -> None:
    Path("gym.yaml").write_text("counter:\n  resources_servers:\n    counter: {entrypoint: app.py, domain: agent}\n")
    assert stateroom("config", "import", "gym.yaml", "--output", FILE).code == 0
    assert stateroom("config", "import", "gym.yaml", "--output", FILE).code == 2
    assert yaml.safe_load(stateroom("config", "import", "gym.yaml").out) == yaml.safe_load(FILE.read_text())
