"""The pages: their code runs, their commands work, their links lead somewhere."""

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from typer.main import get_command

from stateroom.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def blocks(text: str, language: str) -> list[tuple[int, str]]:
    """The fenced blocks in a language, each with the number of its first line."""
    fenced = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text[: block.start(1)].count("\n") + 1, block[1]) for block in fenced]


def python_of(text: str) -> str:
    """All Python of a page as one module, line for line where it stands in the page."""
    lines: list[str] = []
    for first, code in blocks(text, "python"):
        lines += [""] * (first - 1 - len(lines)) + code.splitlines()
    return "\n".join(lines) + "\n"


def commands_of(text: str) -> list[str]:
    """The `stateroom` and `curl` commands of a page's console blocks, in order."""
    lines = [line for _, block in blocks(text, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith(("$ stateroom ", "$ curl "))]


def run_python(text: str, folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    module = folder / f"{name}.py"
    module.write_text(python_of(text), encoding="utf-8")
    return subprocess.run([sys.executable, "-W", "error", module], cwd=folder, capture_output=True, text=True)  # noqa: PLW1510


def variables(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "XDG_DATA_HOME": str(folder)}


def run_command(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    if command.startswith("curl "):
        command = command.replace("curl ", "curl --fail-with-body ", 1)
    return subprocess.run(  # noqa: PLW1510
        command, shell=True, cwd=folder, capture_output=True, text=True, env=variables(folder)
    )


@contextmanager
def in_the_background(command: str, folder: Path) -> Iterator[None]:
    """Runs a command that goes on, from when it says where it serves."""
    words = shlex.split(command.removesuffix("&"))
    started = subprocess.Popen(words, cwd=folder, env=variables(folder), stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        assert "http://" in started.stdout.readline()
        yield
    finally:
        started.terminate()
        started.communicate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page.read_text(encoding="utf-8"), language)]


@pytest.mark.parametrize("page", sorted({*with_blocks("python"), *with_blocks("console")}), ids=lambda page: page.name)
def test_what_a_page_shows_works(page: Path, tmp_path: Path) -> None:
    """Its Python runs, and then its commands do, in the folder where the Python left what it made."""
    text = page.read_text(encoding="utf-8")
    done = run_python(text, tmp_path, page.stem.lower())
    assert done.returncode == 0, f"{page}:\n{done.stderr}"
    with ExitStack() as background:
        for command in commands_of(text.replace("8000", str(free_port()))):
            if command.endswith(" &"):
                background.enter_context(in_the_background(command, tmp_path))
                continue
            done = run_command(command, tmp_path)
            assert done.returncode == 0, f"{page}: {command}\n{done.stdout}\n{done.stderr}"


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    page = "```python\nx = 1\n```\ntext\n```python\nassert x == 2\n```\n"
    done = run_python(page, tmp_path, "page")
    assert done.returncode == 1
    assert "line 6" in done.stderr
    assert run_python(page.replace("2", "1"), tmp_path, "page").returncode == 0
    (command,) = commands_of("```console\n$ make test\n$ stateroom nope\n```\n")
    assert run_command(command, tmp_path).returncode == 2


def test_pages_have_code_to_run() -> None:
    assert len(with_blocks("python")) >= 3
    assert with_blocks("console")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not heading or heading in anchors(target), f"{page.name} links to {link}"


def test_every_page_can_be_found_from_the_readme() -> None:
    found, todo = set[Path](), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in found or page.suffix != ".md":
            continue
        found.add(page)
        links = (link.partition("#")[0] for link in LINK.findall(page.read_text(encoding="utf-8")))
        todo += [(page.parent / link).resolve() for link in links if link and ":" not in link]
    assert found == {ROOT / "README.md"} or found >= set(PAGES)  # a README without links is still to be written


def test_the_pages_name_the_commands_that_there_are() -> None:
    """The table of commands is complete, and no page mentions a command that is not in it."""
    main = get_command(app)
    commands = set()
    for name, command in main.commands.items():  # type: ignore[attr-defined]
        commands |= {f"{name} {below}" for below in getattr(command, "commands", ())} or {name}
    episodes = (ROOT / "docs" / "episodes.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `stateroom ([a-z ]+?)(?: [A-Z].*)?` \|", episodes, re.MULTILINE)) == commands
    first_words = {command.split()[0] for command in commands}
    for page in PAGES:
        mentioned = set(re.findall(r"(?:`|\$ )stateroom ([a-z]+)", page.read_text(encoding="utf-8")))
        assert mentioned <= first_words, page
