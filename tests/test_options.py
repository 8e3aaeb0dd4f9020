"""Options are declared once: whatever shows or takes them follows from their fields."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from pydantic import Field, create_model
from typer.testing import CliRunner

from stateroom.cli.command import OptionSources, Output, command
from stateroom.cli.config import Section, fields_of
from stateroom.errors import InvalidArguments, InvalidOption
from stateroom.gallery import CounterEnvironment
from stateroom.model import open_model
from stateroom.options import Option, options, takes
from stateroom.rollout import RunDescription, RunFiles, RunOptions, RunPlan, run
from stateroom.server import ServeOptions


@options
class MoodOptions(RunOptions):
    """The options of a run, and one more."""

    mood: Annotated[Literal["calm", "keen"], Field(description="How the agent feels.")] = "calm"


def invoke(function: Any, *words: str, variables: Mapping[str, str] | None = None) -> Any:
    app = typer.Typer()
    app.command()(command(function))
    return CliRunner().invoke(app, [*words], env={"COLUMNS": "200", **(variables or {})})


async def test_a_field_that_is_added_to_the_options_of_a_run_is_everywhere(tmp_path: Path) -> None:
    seen: list[MoodOptions] = []

    def show(options: MoodOptions) -> None:
        seen.append(options)

    help_text = invoke(show, "--help").output
    assert "--mood" in help_text
    assert "How the agent feels." in help_text
    assert invoke(show, "counter", "--mood", "keen").exit_code == 0
    assert seen == [MoodOptions("counter", mood="keen")]

    schema = create_model("RunSection", __base__=Section, **fields_of(MoodOptions)).model_json_schema()
    about = schema["properties"]["mood"]  # type: ignore[misc] # the plugin takes the fields for types
    assert (about["description"], about["enum"], about["default"]) == (
        "How the agent feels.",
        ["calm", "keen"],
        "calm",
    )

    @takes(MoodOptions)
    def mood_of(options: MoodOptions) -> str:
        """Say the mood."""
        return options.mood

    assert mood_of("counter", mood="keen") == "keen"
    assert signature(mood_of).parameters["mood"].default == "calm"
    assert "How the agent feels." in str(mood_of.__doc__)

    files = RunFiles(tmp_path / "out.jsonl")
    model, environment = open_model("reference", CounterEnvironment.policies), CounterEnvironment()
    tasks = [{"initial_count": 1, "expected_count": 1}]
    await run(RunPlan(environment, model, MoodOptions(mood="keen", output=files.rollouts), tasks, files))
    description = RunDescription.read(files)
    assert description is not None
    assert description.options["mood"] == "keen"
    with pytest.raises(InvalidOption) as refused:
        await run(RunPlan(environment, model, MoodOptions(output=files.rollouts, resume=True), tasks, files))
    assert refused.value.option == "mood"


@options
class ShopOptions:
    """Options of all kinds."""

    name: Annotated[str, Field(description="Which."), Option(metavar="SHOP")] = field(kw_only=False)
    prices: Annotated[Mapping[str, Any], Field(description="By goods."), Option("-p", "--price", value=float)] = field(
        default_factory=dict
    )
    goods: Annotated[Sequence[str], Field(description="What is sold.")] = ()
    open: Annotated[bool, Field(description="Whether it is open.")] = False
    size: Annotated[int | None, Field(ge=1, le=9, description="How large.")] = None
    key: Annotated[str | None, Field(description="A secret."), Option(variable="SHOP_KEY", stored=False)] = None


@takes(ShopOptions)
def shop(options: ShopOptions) -> ShopOptions:
    """A shop."""
    return options


def test_the_command_line_gives_values_of_the_fields_types() -> None:
    seen: list[Any] = []

    def show(options: ShopOptions) -> None:
        seen.append(options)

    words = ("corner", "-p", "tea=2", "--price", "milk=0.5", "--goods", "tea", "--open", "--size", "3")
    assert invoke(show, *words, variables={"SHOP_KEY": "k"}).exit_code == 0
    prices = {"tea": 2.0, "milk": 0.5}
    assert seen == [ShopOptions("corner", prices=prices, goods=["tea"], open=True, size=3, key="k")]
    for wrong in ((), ("corner", "--size", "0"), ("corner", "--size", "10")):
        assert invoke(show, *wrong).exit_code == 2
    assert isinstance(invoke(show, "corner", "--price", "tea").exception, InvalidArguments)


def test_an_async_command_gives_data_and_what_a_person_reads() -> None:
    async def count(to: int = 3) -> Output:
        numbers = [*range(to)]
        return Output(lambda: numbers, lambda: typer.echo(f"numbers: {numbers}"), code=to)

    shown, data = invoke(count, "--to", "2"), invoke(count, "--json")
    assert (shown.output, shown.exit_code) == ("numbers: [0, 1]\n", 2)
    assert (data.output, data.exit_code) == ("[0, 1, 2]\n", 3)


def test_what_is_typed_wins_over_a_file_and_that_over_variables() -> None:
    seen: list[Any] = []

    def show(given: OptionSources[ShopOptions]) -> None:
        seen.append(given.options({"size": 4, "key": "file", "name": "file"}))

    assert invoke(show, "corner", variables={"SHOP_KEY": "variable"}).exit_code == 0
    assert seen == [ShopOptions("corner", size=4, key="file")]


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"size": 0}, "size"),
        ({"size": "large"}, "size"),
        ({"prices": 3}, "prices"),
        ({"sise": 3}, "sise"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        shop("corner", **given)
    assert refused.value.option == option
    if option == "sise":
        assert "size" in refused.value.message


@pytest.mark.parametrize(
    "given", [RunOptions(api_key="s3cret", admin_token="s3cret"), ServeOptions(admin_token="s3cret")]
)
def test_a_secret_is_not_shown(given: Any) -> None:
    assert "s3cret" not in repr(given)


def test_an_option_that_a_command_refuses_is_named_by_its_flag() -> None:
    def refuse(options: ShopOptions) -> None:
        raise InvalidOption("prices", "too high")

    def refuse_own(how: Annotated[str, typer.Option("--advantages")] = "grpo") -> None:
        raise InvalidOption("how", "not this one")

    for function, words, flag in ((refuse, ["corner"], "--price"), (refuse_own, [], "--advantages")):
        refused = invoke(function, *words).exception
        assert isinstance(refused, InvalidArguments)
        assert str(refused).startswith(f"{flag}: ")
