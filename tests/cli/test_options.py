"""What the options of all commands have in common, and how the help shows them."""

from collections import defaultdict
from importlib.metadata import version
from typing import Any

import pytest

import stateroom as package
from tests.cli.conftest import Command, Refuses
from tests.commands import COMMANDS, LEAVES


def with_option(name: str) -> dict[str, Any]:
    """The commands that take an option, each with it."""
    return {words: option for words, each in COMMANDS.items() for option in each.params if name in option.opts}


def test_the_version_is_that_of_the_package(stateroom: Command) -> None:
    assert package.__version__ == version("stateroom")
    assert stateroom("--version") == (0, f"stateroom {version('stateroom')}\n", "")


@pytest.mark.parametrize("words", COMMANDS)
def test_the_help_has_an_example_and_no_types_of_flags(stateroom: Command, words: str) -> None:
    done = stateroom(*words.split(), "--help")
    assert (done.code, "--help" in done.out, "bool" in done.out) == (0, True, False)
    assert all(len(line) <= 80 for line in done.out.splitlines())
    if words in LEAVES:
        assert f"Example: stateroom {words}" in done.out


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


def test_every_store_has_the_variable_as_its_default() -> None:
    other = [words for words, option in with_option("--store").items() if option.envvar != "STATEROOM_STORE"]
    assert other == ["show"]  # a run names its store itself


def test_what_commands_that_run_an_authors_code_take() -> None:
    reading = {"run", "chat", "reverify", "replay", "migrate"}
    assert with_option("--accept-defaults").keys() == reading
    for option in ("--verbose", "--log-level"):
        assert with_option(option).keys() == {*reading, "branch", "check", "train"}


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
