"""`stateroom data`: check, measure and split files of rows, and create task rows from raw data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from stateroom.agent import Tiktoken, TokenCounter, TokenizerFile
from stateroom.cli.command import Commands, Output, pairs
from stateroom.cli.options import NamedEnvironment
from stateroom.cli.output import complain, console, counted, number, print_hidden, print_table, say, warn, with_progress
from stateroom.data import DataReport, DataStats, FieldStats, Part, check_rows, measure_rows, split_rows
from stateroom.errors import BadTask, InvalidOption, needs
from stateroom.jsonl import replace_lines
from stateroom.rollout import SourceRow, read_source

MAX_VALUES_SHOWN = 5
"""Values shown per field; --json has all that are counted."""

app = Commands(help="Check, measure and split files of rows, and create tasks from raw data.")

Source = Annotated[
    Path,
    typer.Argument(
        help="A .jsonl, .csv, .tsv or .parquet file, or a folder saved by datasets.save_to_disk.",
        show_default=False,
        metavar="FILE",
    ),
]
Show = Annotated[int, typer.Option("--show", min=0, help="Show at most N problems; all are counted.")]


@app.command()
def check(options: NamedEnvironment, file: Source, show: Show = 10) -> Output:
    """Check each row of a file against the environment's task type, in bounded memory.

    The exit code is 1 if a row is invalid.

    Example: stateroom data check counter tasks.jsonl
    """
    report = check_rows(_rows("checking", file), options.make(), show)
    if report.without_prompt:
        rows = counted(report.without_prompt, "row has", "rows have")
        warn(f"{rows} no prompt; put one into responses_create_params.input")

    def print_report() -> None:
        console.print(f"{counted(report.rows, 'row', 'rows')}, {counted(report.problems, 'problem', 'problems')}")
        _print_problems(report)

    return Output(lambda: vars(report), print_report, 1 if report.problems else 0)


@app.command()
def stats(
    file: Source,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Also count tokens, with a tokenizer's JSON file or an encoding of tiktoken that is on disk, such as "
            "o200k_base.",
            show_default=False,
        ),
    ] = None,
) -> Output:
    """Count the rows of a file, measure their prompts, and summarize their fields.

    Example: stateroom data stats tasks.jsonl --tokenizer tokenizer.json
    """
    stats = measure_rows(_rows("reading", file), _counter(tokenizer))
    lengths = {"characters": stats.characters, "tokens": stats.tokens}
    prompts = {name: of_prompts.figures() for name, of_prompts in lengths.items() if of_prompts}

    def data() -> dict[str, Any]:
        fields = {name: _field_data(field) for name, field in stats.fields.items()}
        return {"rows": stats.rows, "without_prompt": stats.without_prompt, "prompts": prompts, "fields": fields}

    return Output(data, lambda: _print_stats(stats, prompts))


def _print_stats(stats: DataStats, prompts: dict[str, dict[str, float]]) -> None:
    bare = f", {stats.without_prompt:,} without a prompt" if stats.without_prompt else ""
    console.print(f"{counted(stats.rows, 'row', 'rows')}{bare}", style="bold")
    lengths = [(name, *(f"{figure:,.0f}" for figure in figures.values())) for name, figures in prompts.items()]
    print_table(("prompt", "min#", "median#", "mean#", "p95#", "max#"), lengths)
    fields = [(name, field.rows, _description(field)) for name, field in stats.fields.items()]
    print_table(("field", "rows#", "values"), fields)


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
        str | None, typer.Option(help="Keep rows with the same value in this field together.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="The random seed.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The output folder; by default that of the file.", show_default=False),
    ] = None,
) -> Output:
    """Split the rows of a file at random, by ratio, into JSONL files named FILE_NAME.jsonl.

    The same seed gives the same split. With --by, a group is never split.

    Example: stateroom data split tasks.jsonl train=0.9 test=0.1 --by family
    """
    wanted = _parts(parts)
    part_of = split_rows(_rows("reading", file), wanted, by=by, seed=seed)
    folder = output or file.parent
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for place, part in enumerate(wanted):
        path = folder / f"{file.stem}_{part.name}.jsonl"
        rows = with_progress(f"writing {path.name}", read_source(file))
        replace_lines(path, (row.line() for own, row in zip(part_of, rows, strict=True) if own == place))
        written[str(path)] = part_of.count(place)

    def show() -> None:
        for name, count in written.items():
            say(f"{counted(count, 'row', 'rows')} in {name}")

    return Output(lambda: written, show)


@app.command()
def render(
    file: Source,
    prompt: Annotated[Path, typer.Option(help="A Jinja template for the prompt.", exists=True, dir_okay=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The task file to write, JSONL.")],
    system: Annotated[
        Path | None,
        typer.Option(help="A Jinja template for the system message.", exists=True, dir_okay=False, show_default=False),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            help="A field of the tasks, as NAME=EXPRESSION in Jinja; by default, the fields of the row. Repeatable.",
            show_default=False,
        ),
    ] = None,
    show: Show = 10,
) -> Output:
    """Create task rows from raw rows with sandboxed Jinja templates.

    If a row cannot be rendered, nothing is written and the exit code is 1.

    Example: stateroom data render raw.csv --prompt prompt.jinja --field answer='capital | lower' --output tasks.jsonl
    """
    with needs("templates", "data"):
        from stateroom.data import TemplateProcess  # noqa: PLC0415 - an extra
    texts = [None if path is None else path.read_text(encoding="utf-8") for path in (prompt, system)]
    template = TemplateProcess(str(texts[0]), texts[1], dict(pairs(field, "field", "answer='capital | lower'")))
    report = DataReport()

    def lines() -> Iterator[bytes]:
        for source in _rows("rendering", file):
            report.rows += 1
            raw = source.row()
            try:
                yield template.line(raw)
            except BadTask as error:
                report.add(f"{source.where}: {error}", show)
        if report.problems:
            raise BadTask(f"{counted(report.problems, 'row', 'rows')} of {report.rows:,} cannot be rendered")

    try:
        with template:
            replace_lines(output, lines())
    except BadTask as error:
        if not report.problems:
            raise
        complain(f"error: {error}; nothing was written")
        _print_problems(report)
        raise typer.Exit(1) from None
    return Output(
        lambda: {"rows": report.rows, "file": str(output)},
        lambda: say(f"{counted(report.rows, 'task', 'tasks')} in {output}"),
    )


def _rows(doing: str, file: Path) -> Iterator[SourceRow]:
    """The rows of a file, with a progress bar."""
    return with_progress(f"{doing} {file.name}", read_source(file))


def _print_problems(report: DataReport) -> None:
    for problem in report.first:
        say(problem, "red")
    print_hidden(report.problems - len(report.first), "show more with --show N")


def _counter(tokenizer: str | None) -> TokenCounter | None:
    if tokenizer is None:
        return None
    return TokenizerFile(tokenizer) if tokenizer.endswith(".json") else Tiktoken(tokenizer)


def _parts(given: list[str]) -> list[Part]:
    parts = []
    for name, text in pairs(given, "parts", "train=0.9"):
        try:
            parts.append(Part(name, float(text)))
        except ValueError:
            raise InvalidOption("parts", f"{name}: {text!r} is not a number") from None
    if len(parts) < 2 or len({part.name for part in parts}) < len(parts) or not all(part.ratio > 0 for part in parts):
        raise InvalidOption("parts", "give at least two parts, with different names and ratios above 0")
    return parts


def _description(field: FieldStats) -> str:
    """Describe the values of a field."""
    if field.values is not None and len(field.values) <= MAX_VALUES_SHOWN:
        return ", ".join(f"{value or '(empty)'}: {count:,}" for value, count in field.values.most_common())
    kinds = {"number": "numbers", "text": "texts", "list": "lists", "object": "objects", "boolean": "booleans"}
    text = ", ".join(f"{count:,} {kinds.get(kind, kind)}" for kind, count in field.kinds.most_common())
    if field.most >= field.least:
        text += f" from {number(field.least)} to {number(field.most)}"
        text += "" if "number" in field.kinds else " long"
    return f"{text}, {len(field.values)} different" if field.values is not None else text


def _field_data(field: FieldStats) -> dict[str, Any]:
    sizes = {"min": field.least, "max": field.most} if field.most >= field.least else {}
    return {"rows": field.rows, "kinds": field.kinds, **sizes, "values": field.values}
