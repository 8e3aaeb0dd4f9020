"""What the options of all commands have in common, and how the help shows them."""

from collections import defaultdict
from importlib.metadata import version

import pytest

import stateroom as package
from tests.cli.conftest import Command, Refuses
from tests.commands import COMMANDS

WITH_STORE = [words for words, each in COMMANDS.items() if any("--store" in option.opts for option in each.params)]


def test_the_version_is_that_of_the_package(stateroom: Command) -> None:
    assert package.__version__ == version("stateroom")
    assert stateroom("--version") == (0, f"stateroom {version('stateroom')}\n", "")


@pytest.mark.parametrize("words", COMMANDS)
def test_a_flag_has_no_type_in_the_help(stateroom: Command, words: str) -> None:
    told = stateroom(*words.split(), "--help").out
    assert "--help" in told
    assert "bool" not in told
    assert all(len(line) <= 80 for line in told.splitlines())


def test_an_option_has_one_name_and_one_letter_everywhere() -> None:
    letters: dict[str, set[str]] = defaultdict(set)
    for each in COMMANDS.values():
        for option in each.params:
            if option.param_type_name == "option":
                [long], short = [name for name in option.opts if name[:2] == "--"], option.opts[-1]
                letters[long].add(short if short != long else "")
    assert {long: found for long, found in letters.items() if len(found) > 1} == {}
    assert letters.keys() >= {"--input", "--output", "--env", "--store", "--limit"}
    assert letters.keys().isdisjoint({"--tasks", "--folder", "--into", "--environment", "--top", "--trees"})


@pytest.mark.parametrize("words", sorted({*WITH_STORE} - {"show"}))  # a run names its store itself
def test_every_store_has_the_variable_as_its_default(stateroom: Command, words: str) -> None:
    assert "STATEROOM_STORE" in stateroom(*words.split(), "--help").out


def test_the_variable_names_the_store(stateroom: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEROOM_STORE", "sqlite:///rooms.db")
    assert stateroom("run", "counter", "--limit", 2, "--output", "x.jsonl").code == 0
    assert stateroom("sessions", "list").out.count(" counter ") == 2
    assert "2 sessions checked" in stateroom("store", "check").out
    assert stateroom("sessions", "list", "--store", "sqlite:///other.db").code == 2


@pytest.mark.parametrize("command", ["run", "branch", "serve"])
def test_the_variable_of_a_key_can_be_chosen(refuses: Refuses, command: str) -> None:
    refuses(command, "counter", "--model", "chat:m@http://127.0.0.1:1/v1", "--api-key-env", "LAB_KEY")


LIMITS = ["--model-concurrency", "--requests-per-minute", "--tokens-per-minute"]


@pytest.mark.parametrize("command", ["run", "branch"])
@pytest.mark.parametrize("option", LIMITS)
def test_a_model_without_a_server_takes_no_limits(refuses: Refuses, command: str, option: str) -> None:
    refuses(command, "counter", "--model", "reference", option, 5)


@pytest.mark.parametrize("option", LIMITS)
def test_a_limit_is_at_least_one(refuses: Refuses, option: str) -> None:
    refuses("run", "counter", "--model", "chat:m@http://127.0.0.1:1/v1", option, 0)
