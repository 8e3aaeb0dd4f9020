"""Finding an environment by what a user typed."""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from stateroom.environment import find_environment, load_class, registry
from stateroom.errors import CannotImport, InvalidEnvironment, NotFound
from tests.messages import raises

SOURCE = '''
from __future__ import annotations
from stateroom import Environment, State, tool

class Counter(State):
    value: int = 0

class Mine(Environment[Counter]):
    """Mine."""

    @tool
    def add(self, state: Counter, count: int) -> None:
        """Add."""

    def verify(self) -> float:
        return 0.0

number = 3
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "house_of_mine.py").write_text(SOURCE)
    return tmp_path


def test_a_module_beside_the_user(folder: Path) -> None:
    assert list(find_environment("house_of_mine:Mine")().tools) == ["add"]


@pytest.mark.parametrize("relative", [True, False])
def test_a_file(folder: Path, relative: bool) -> None:
    path = Path("house_of_mine.py") if relative else folder / "house_of_mine.py"
    found = find_environment(f"{path}:Mine")
    assert list(found().tools) == ["add"]
    assert find_environment(f"{path}:Mine") is found


def test_two_files_of_one_name_are_two_modules(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "house_of_mine.py").write_text(SOURCE.replace("Mine", "Theirs"))
    assert find_environment("house_of_mine.py:Mine").__name__ == "Mine"
    assert find_environment("other/house_of_mine.py:Theirs").__name__ == "Theirs"


@pytest.mark.parametrize(
    "reference",
    [
        *("nonsense", "", "house_of_mine.py", "house_of_mine:", ":Mine", ":", "house_of_mine:Yours", "nowhere:Mine"),
        *("house_of_mine.inner:Mine", ".house_of_mine:Mine", "nowhere.at.all:Mine", "nowhere.py:Mine"),
        "not a module:Mine",
    ],
)
@pytest.mark.usefixtures("folder")
def test_each_way_of_being_wrong(reference: str) -> None:
    with raises(NotFound):
        find_environment(reference)


@pytest.mark.parametrize("name", ["Counter", "number", "Environment"])
@pytest.mark.usefixtures("folder")
def test_what_is_not_an_environment_is_refused(name: str) -> None:
    with raises(InvalidEnvironment):
        find_environment(f"house_of_mine:{name}")


@pytest.mark.parametrize("source", ["import a_package_that_is_not_there", "1 +", "1 / 0"])
@pytest.mark.parametrize("reference", ["broken:Mine", "broken.py:Mine"])
def test_a_module_that_cannot_be_imported_says_why(folder: Path, reference: str, source: str) -> None:
    (folder / "broken.py").write_text(source)
    with raises(CannotImport):
        find_environment(reference)


def test_a_file_that_was_mended_is_read_again(folder: Path) -> None:
    (folder / "broken.py").write_text("1 / 0")
    with pytest.raises(CannotImport):
        load_class("broken.py:Mine")
    (folder / "broken.py").write_text("Mine = 1\n")
    assert load_class("broken.py:Mine") == 1


class EditableFinder(MetaPathFinder):
    """Finds the module of an editable installation, after all folders were searched."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return spec_from_file_location(fullname, self.path) if fullname == self.name else None


def test_a_folder_of_its_name_does_not_hide_a_registered_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "desk").mkdir()
    (folder / "desk" / "desk.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, EditableFinder("desk", folder / "desk" / "desk.py")])
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.setattr(registry, "registered", lambda: {"desk": "desk:Mine"})
    assert find_environment("desk").__name__ == "Mine"
