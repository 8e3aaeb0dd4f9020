"""The pages that are made from the code are complete."""

import re
from typing import Annotated

import pytest
import typer
from typer.main import get_command

from docs.generated_pages import (
    SOURCE,
    commands_page,
    first_sentence,
    gallery,
    gallery_page,
    map_page,
    sentence_of,
)
from stateroom.environment import Environment
from tests.commands import COMMANDS

MAX_SENTENCE = 120
"""Characters of a module's first sentence: one line of code, and two lines of a table."""

MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if path.stem != "__main__"]


def sections(page: str) -> dict[str, str]:
    """The text below each heading of the second level."""
    return {part.partition("\n")[0].strip("`"): part for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]}


def test_the_commands_page_has_every_command_with_its_help_and_options() -> None:
    found = sections(commands_page())
    assert found.keys() == {f"stateroom {words}".strip() for words in COMMANDS}
    for words, command in COMMANDS.items():
        section = found[f"stateroom {words}".strip()]
        assert first_sentence(command.help).split(" ")[0] in section
        for option in command.params:
            assert all(f"`{flag}`" in section for flag in option.opts if flag.startswith("-")), (words, option.name)


def test_an_option_that_is_added_appears_with_its_default_bounds_and_variable() -> None:
    app = typer.Typer()

    @app.callback()
    def whole() -> None:
        """All of it."""

    @app.command()
    def brew(
        leaf: str, cups: Annotated[int, typer.Option("--cups", "-c", min=1, help="How many.", envvar="CUPS")] = 2
    ) -> None:
        """Brew tea.

        The exit code is 1 if there is no water.

        Example: stateroom brew oolong
        """

    section = sections(commands_page(get_command(app)))["stateroom brew"]
    assert "| `--cups`, `-c` `int` | How many. At least 1. Environment variable: `CUPS`. | `2` |" in section
    assert "stateroom brew [OPTIONS] LEAF\n" in section
    assert "The exit code is 1 if there is no water." in section
    assert "Example:\n\n```console\n$ stateroom brew oolong\n```" in section


def test_the_gallery_has_a_card_for_each_environment() -> None:
    cards = dict(
        re.findall(r"^-   \*\*\[(\w+)\]\(gallery/\1\.md\)\*\*(.*?)(?=^-   |^</div>)", gallery_page(), re.M | re.S)
    )
    assert cards.keys() == gallery().keys() == {path.parent.name for path in SOURCE.glob("gallery/*/README.md")}
    for name, kind in gallery().items():
        assert kind.verify.__doc__ != Environment.verify.__doc__, f"{name}: verify needs a docstring, for its reward"
        assert first_sentence(kind.verify.__doc__) in cards[name]
        assert all(f"`{tool}(" in cards[name] for tool in kind().tools), name
        assert all(part in cards[name] for part in ("**Task fields:**", "**Reward:**", "**Size:**", "> "))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("weather", "1 tool; 8 example tasks, generates more; single-turn; stateless"),
        ("refund", "multi-turn; first state of"),
        ("office", "MB with 10,4"),
    ],
)
def test_a_card_says_how_large_an_environment_is(name: str, size: str) -> None:
    card = gallery_page().partition(f"**[{name}]")[2].partition("**[")[0]
    assert size in card


def test_the_map_has_every_module() -> None:
    found = sections(map_page())
    for module in MODULES:
        package, *rest = module.relative_to(SOURCE).with_suffix("").parts
        name = "/".join(rest).removesuffix("__init__")
        if name:
            assert f"| `{name}` | " in found[package], f"{package}: {name}"
    for path in SOURCE.glob("[a-z]*.py"):
        assert f"| `{path.stem}` | " in found["Modules beside the packages"]


def test_every_module_says_in_a_sentence_what_it_holds() -> None:
    sentences = {module.relative_to(SOURCE).as_posix(): sentence_of(module) for module in MODULES}
    assert {name: said for name, said in sentences.items() if not 0 < len(said) <= MAX_SENTENCE} == {}
