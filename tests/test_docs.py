"""The pages: their code runs, their commands work, their links lead somewhere."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import stateroom
from docs.generated_pages import GENERATED
from stateroom import errors
from tests.commands import LEAVES
from tests.messages import raises
from tests.pages import FENCE, PageError, reader_variables, run_page, shows, warm_commands
from tests.servers.ray import ray_folder

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
GALLERY = sorted((ROOT / "src" / "stateroom" / "gallery").glob("*/README.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*/README.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS, *GALLERY, *EXAMPLES]
NOT_RUN = {ROOT / "examples" / "verl" / "README.md"}
"""Pages whose commands need what no test installs: verl with vLLM, on a GPU."""

MADE = {ROOT / "docs" / uri: make for uri, make in GENERATED.items()}
"""What makes a page of the site that is no file."""

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    make = MADE.get(page)
    text = make() if make else page.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.fixture(scope="session")
def commands() -> Iterator[Path]:
    with warm_commands(reader_variables()) as folder:
        yield folder


NEEDS = {"local-models.md": "a local model", "engines.md": "Ray", "train-with-trl.md": "TRL"}


def with_its_needs(page: Path) -> object:
    return pytest.param(page, marks=[pytest.mark.more(NEEDS[page.name])] if page.name in NEEDS else [])


@pytest.mark.parametrize("page", [with_its_needs(page) for page in PAGES if page not in NOT_RUN], ids=name_of)
def test_what_a_page_shows_works(page: Path, tmp_path: Path, commands: Path) -> None:
    with ray_folder():
        files = [path for path in page.parent.iterdir() if path != page] if page in EXAMPLES else []
        run_page(page.read_text(encoding="utf-8"), tmp_path, page.stem.lower(), commands=commands, files=files)


def console(text: str) -> str:
    return f"```console\n{text}\n```\n"


@pytest.mark.parametrize(
    "page",
    [
        "```python\nx = 1\n```\ntext\n```python\nassert x == 2\n```\n",
        "```python\nimport os\nos._exit(0)\n```\n",
        "```python title='x.py'\n```\n```python\nx y\n```\n",
        '```python title="x.py"\nx y\n```\n',
        '```python title="x.py"\nraise ValueError(8)\n```\n' + console("$ python x.py"),
        '```python title="x.py"\nx = 1\n```\n' + console("$ true"),
        '```jsonl title="x.jsonl"\n{}\n{\n```\n',
        "```json\n{\n```\n",
        "```toml\n=\n```\n",
        "```yaml\n{\n```\n",
        "```javascript\n1\n```\n",
        "```\n1\n```\n",
        '=== "Tab"\n\n    ```ruby\n    1\n    ```\n',
        "So:\n\n    stateroom run counter\n",
        console("stateroom nope"),
        console("$ stateroom run nope"),
        console("$ true  # exit 1"),
        console("$ false | cat"),
        console("$ exit 0"),
        console("$ echo 'unclosed"),
        console("$ echo one\ntwo"),
        console("$ echo one; echo two\ntwo\none"),
        console("$ true\none"),
        console("$ stateroom serve nope --port 8000 &"),
        console("$ python -m http.server 8000 & \n$ curl -s localhost:8000/nope"),
        console("$ make nope"),
        console("$ pip install 'stateroom[server,nope]'"),
        console("$ make test\nAll passed"),
    ],
)
def test_what_does_not_work_is_noticed(page: str, tmp_path: Path, commands: Path) -> None:
    with raises(PageError):
        run_page(page, tmp_path, commands=commands)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a b", "a    b\n\n", True),
        ("a c", "x a b c y", True),
        ("b a", "a b", False),
        ("a b", "a\nb", False),
        ("a\nc", "a\nb\nc", True),
        ("b\na", "a\nb", False),
        ("a\na", "a", False),
        ("a long\nline", "a long line", True),
        ("a …", "a", True),
        ("a\n…", "b\na", True),
        ("ab…yz", "abxyz", True),
        ("ab…yz", "ab c yz", True),
        ("ab…yz", "ab\nyz", False),
        ("ab…yz", "abxyzz", False),
        ('{"a":1,"b":…}', '{"a":1,"b":["c d",2]}', True),
        ("1.5", "1.55", False),
        ("1.5", "11.5", False),
        ("1.5", "1x5", False),
        ("mean/reward 1.5", "mean/reward │ 1.5 │", True),
        ("x\n───\n1.5", "x\n───── ──\n1.5", True),
        ("a", "counter ━━━━━ 32/32 0:00:00\na", True),
        ("32/32", "counter: 32/32, 0:00:00", False),
    ],
)
def test_an_output_needs_the_shown_figures_in_order(shown: str, printed: str, same: bool) -> None:
    assert shows(shown, printed) == same


def test_a_page_finds_the_files_beside_it(tmp_path: Path, commands: Path) -> None:
    (tmp_path / "tea.txt").write_text("oolong\n", encoding="utf-8")
    run_page(console("$ cat tea.txt\noolong"), tmp_path, commands=commands, files=[tmp_path / "tea.txt"])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists() or target in MADE, f"{page.name} links to {link}"
        assert not heading or heading in anchors(target), f"{page.name} links to {link}"


def test_every_page_can_be_found_from_the_readme_or_the_site() -> None:
    found, todo = set[Path](), [ROOT / "README.md", ROOT / "docs" / "index.md"]
    while todo:
        page = todo.pop()
        if page in found or page.suffix != ".md" or not page.exists():
            continue
        found.add(page)
        links = (link.partition("#")[0] for link in LINK.findall(page.read_text(encoding="utf-8")))
        todo += [(page.parent / link).resolve() for link in links if link and ":" not in link]
    assert found >= {*PAGES} - {*GALLERY, *EXAMPLES}


def test_the_api_reference_has_all_that_pages_import() -> None:
    reference = "".join(page.read_text(encoding="utf-8") for page in DOCS if page.parent.name == "reference")
    listed = re.findall(r"^::: (\S+)\.(\w+)$", reference, re.MULTILINE)
    documented = {identity(module, name) for module, name in listed}
    documented |= set(map(id, vars(errors).values()))
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS)
    imported = re.findall(r"^\s*from (stateroom[\w.]*) import (\(.+?\)|.+?$)", pages, re.MULTILINE | re.DOTALL)
    names = {(module, name) for module, names in imported for name in re.findall(r"\w+", names)}
    names = {(module, name) for module, name in names if not module.startswith("stateroom.gallery") and name != "as"}
    names |= {("stateroom", name) for name in vars(stateroom)["__all__"] if name != "__version__"}
    assert [each for each in sorted(names) if identity(*each) not in documented] == []


OF_TRAINERS = ("datasets", "torch", "trl", "verl")
"""Packages that only `make test-more` installs."""


def identity(module: str, name: str) -> object:
    """What a name stands for; the name itself, if its module is for a trainer that is not installed."""
    try:
        return id(getattr(import_module(module), name))
    except ModuleNotFoundError as error:
        if error.name not in OF_TRAINERS:
            raise
        return (*module.split(".")[:3], name)


def test_pages_mention_only_commands_that_exist() -> None:
    first_words = {command.split()[0] for command in LEAVES}
    for page in PAGES:
        mentioned = set(re.findall(r"(?:`|\$ )stateroom ([a-z]+)", page.read_text(encoding="utf-8")))
        assert mentioned <= first_words, page


def test_the_airline_takes_its_author_at_most_200_lines() -> None:
    files = [path for path in (ROOT / "examples" / "airline").iterdir() if path.suffix in (".py", ".jsonl", ".txt")]
    assert len(files) == 4
    assert sum(path.read_text(encoding="utf-8").count("\n") for path in files) <= 200
