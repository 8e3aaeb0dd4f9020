"""`stateroom data`: check, measure and split files of rows, and make task rows of raw data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from stateroom.agent import Tiktoken, TokenCounter, TokenizerFile
from stateroom.cli.command import pairs
from stateroom.cli.options import AsJSON, EnvArgs, Seed, env_args_of
from stateroom.cli.output import console, counted, errors, number, print_json, table, warn
from stateroom.data import DataReport, FieldStats, Part, check_rows, measure_rows, split_rows
from stateroom.environment import make_environment
from stateroom.errors import BadTask, needs
from stateroom.jsonl import replace_lines
from stateroom.rollout import BAR_DELAY_SECONDS, ProgressBar, read_source

T = TypeVar("T")

SHOWN_VALUES = 5
"""Values of a field that are shown; --json has all that are counted."""

app = typer.Typer(no_args_is_help=True, help="Check, measure and split files of rows; make tasks of raw data.")

Source = Annotated[
    Path,
    typer.Argument(
        help="Rows as .jsonl, .csv, .tsv or .parquet, or a folder of datasets.save_to_disk.",
        show_default=False,
        metavar="FILE",
    ),
]
Show = Annotated[int, typer.Option("--show", min=0, help="Problems that are shown; all are counted.")]


@app.command()
def check(
    env: Annotated[str, typer.Argument(help="A registered name, module:Class or path.py:Class.", show_default=False)],
    file: Source,
    env_arg: EnvArgs = None,
    show: Show = 10,
    json_output: AsJSON = False,
) -> None:
    """Check each row of a file against the environment's type of tasks, in bounded memory.

    The exit code is 1 if a row cannot be used.

    Example: stateroom data check counter tasks.jsonl
    """
    environment = make_environment(env, env_args_of(env_arg))
    report = check_rows(_shown(f"checking {file.name}", read_source(file)), environment, show)
    if json_output:
        print_json(vars(report))
    else:
        console.print(f"{counted(report.rows, 'row', 'rows')}, {counted(report.problems, 'problem', 'problems')}")
        _print_problems(report)
    if report.without_prompt:
        told = counted(report.without_prompt, "row has", "rows have")
        warn(f"{told} no prompt; put one into responses_create_params.input")
    if report.problems:
        raise typer.Exit(1)


@app.command()
def stats(
    file: Source,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Count tokens too: a tokenizer's JSON file, or an encoding of tiktoken that is on disk, such as "
            "o200k_base.",
            show_default=False,
        ),
    ] = None,
    json_output: AsJSON = False,
) -> None:
    """Count the rows of a file, measure their prompts, and show what their fields hold.

    Example: stateroom data stats tasks.jsonl --tokenizer tokenizer.json
    """
    found = measure_rows(_shown(f"reading {file.name}", read_source(file)), _counter(tokenizer))
    lengths = {"characters": found.characters, "tokens": found.tokens}
    prompts = {name: each.figures() for name, each in lengths.items() if each}
    if json_output:
        fields = {name: _data(each) for name, each in found.fields.items()}
        told = {"rows": found.rows, "without_prompt": found.without_prompt, "prompts": prompts, "fields": fields}
        print_json(told)
        return
    bare = f", {found.without_prompt:,} without a prompt" if found.without_prompt else ""
    console.print(f"{counted(found.rows, 'row', 'rows')}{bare}", style="bold")
    if prompts:
        made = table("prompt", "min#", "median#", "mean#", "p95#", "max#")
        for name, figures in prompts.items():
            made.add_row(name, *(f"{figure:,.0f}" for figure in figures.values()))
        console.print(made)
    if found.fields:
        made = table("field", "rows#", "what it holds")
        for name, each in found.fields.items():
            made.add_row(name, f"{each.rows:,}", _description(each))
        console.print(made)


@app.command()
def split(
    file: Source,
    parts: Annotated[
        list[str],
        typer.Argument(
            help="Names and ratios, such as train=0.9 test=0.1.", show_default=False, metavar="NAME=RATIO..."
        ),
    ],
    by: Annotated[
        str | None, typer.Option(help="The field of a group: its rows are in the same part.", show_default=False)
    ] = None,
    seed: Seed = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The folder to write to; by default that of the file.", show_default=False),
    ] = None,
    json_output: AsJSON = False,
) -> None:
    """Split the rows of a file at random, by ratio. Each part is a JSONL file: FILE_NAME.jsonl.

    The same seed gives the same split. No group is split over two files.

    Example: stateroom data split tasks.jsonl train=0.9 test=0.1 --by family
    """
    wanted = _parts(parts)
    part_of = split_rows(_shown(f"reading {file.name}", read_source(file)), wanted, by=by, seed=seed)
    folder = output or file.parent
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for place, part in enumerate(wanted):
        path = folder / f"{file.stem}_{part.name}.jsonl"
        rows = _shown(f"writing {path.name}", read_source(file))
        replace_lines(path, (row.line() for own, row in zip(part_of, rows, strict=True) if own == place))
        written[str(path)] = part_of.count(place)
    if json_output:
        print_json(written)
        return
    for name, count in written.items():
        console.print(f"{counted(count, 'row', 'rows')} in {name}", soft_wrap=True)


@app.command()
def render(
    file: Source,
    prompt: Annotated[Path, typer.Option(help="A Jinja template of the prompt.", exists=True, dir_okay=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The task file to write, JSONL.")],
    system: Annotated[
        Path | None,
        typer.Option(help="A Jinja template of the system message.", exists=True, dir_okay=False, show_default=False),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            help="A field of the tasks, as NAME=EXPRESSION in Jinja; by default those of the row. Repeatable.",
            show_default=False,
        ),
    ] = None,
    show: Show = 10,
    json_output: AsJSON = False,
) -> None:
    """Make task rows of raw rows: templates in sandboxed Jinja are filled with the fields of each row.

    If one of them cannot be filled nothing is written, and the exit code is 1.

    Example: stateroom data render raw.csv --prompt prompt.jinja --field answer='capital | lower' --output tasks.jsonl
    """
    with needs("templates", "data"):
        from stateroom.data import TemplateProcess  # noqa: PLC0415 - an extra
    texts = [None if path is None else path.read_text(encoding="utf-8") for path in (prompt, system)]
    template = TemplateProcess(str(texts[0]), texts[1], dict(pairs(field, "--field", "answer='capital | lower'")))
    report = DataReport()

    def lines() -> Iterator[bytes]:
        for each in _shown(f"rendering {file.name}", read_source(file)):
            report.rows += 1
            raw = each.row()
            try:
                yield template.line(raw)
            except BadTask as error:
                report.add(f"{each.where}: {error}", show)
        if report.problems:
            raise BadTask(f"{counted(report.problems, 'row', 'rows')} of {report.rows:,} cannot be rendered")

    try:
        with template:
            replace_lines(output, lines())
    except BadTask as error:
        if not report.problems:
            raise
        errors.print(f"error: {error}; nothing is written", style="red", soft_wrap=True)
        _print_problems(report)
        raise typer.Exit(1) from None
    if json_output:
        print_json({"rows": report.rows, "file": str(output)})
    else:
        console.print(f"{counted(report.rows, 'task', 'tasks')} in {output}", soft_wrap=True)


def _shown(what: str, rows: Iterable[T]) -> Iterator[T]:
    """Rows, with progress if they take longer than two seconds."""
    bar = ProgressBar(what)
    try:
        for each in rows:
            yield each
            bar.advance()
            if bar.seconds > BAR_DELAY_SECONDS:
                bar.start()
    finally:
        bar.stop()


def _print_problems(report: DataReport) -> None:
    for each in report.first:
        console.print(each, style="red", soft_wrap=True)
    if report.problems > len(report.first):
        console.print(f"and {report.problems - len(report.first):,} more; --show N shows N of them", style="dim")


def _counter(tokenizer: str | None) -> TokenCounter | None:
    if tokenizer is None:
        return None
    return TokenizerFile(tokenizer) if tokenizer.endswith(".json") else Tiktoken(tokenizer)


def _parts(given: list[str]) -> list[Part]:
    found = []
    for name, text in pairs(given, "NAME=RATIO", "train=0.9"):
        try:
            found.append(Part(name, float(text)))
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not a number", param_hint=name) from None
    if len(found) < 2 or len({part.name for part in found}) < len(found) or not all(part.ratio > 0 for part in found):
        raise typer.BadParameter(
            "give two parts or more, with different names and ratios above 0", param_hint="NAME=RATIO"
        )
    return found


def _description(field: FieldStats) -> str:
    """What a field holds, in words."""
    if field.values is not None and len(field.values) <= SHOWN_VALUES:
        return ", ".join(f"{value or '(empty)'}: {count:,}" for value, count in field.values.most_common())
    kinds = {"number": "numbers", "text": "texts", "list": "lists", "object": "objects", "boolean": "booleans"}
    told = ", ".join(f"{count:,} {kinds.get(kind, kind)}" for kind, count in field.kinds.most_common())
    if field.most >= field.least:
        told += f" from {number(field.least)} to {number(field.most)}"
        told += "" if "number" in field.kinds else " long"
    return f"{told}, {len(field.values)} different" if field.values is not None else told


def _data(field: FieldStats) -> dict[str, Any]:
    sizes = {"min": field.least, "max": field.most} if field.most >= field.least else {}
    return {"rows": field.rows, "kinds": field.kinds, **sizes, "values": field.values}
