"""`TempFolder`: an archive of a folder, and a folder of that."""

import os
import tarfile
from pathlib import Path

import pytest

from stateroom import SessionInfo, TempFolder, ToolError
from tests.messages import raises

INFO = SessionInfo("s", 1, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of all that can be kept, some."""
    made = tmp_path / "made"
    (made / "deep" / "er").mkdir(parents=True)
    (made / "deep" / "file").write_bytes(b"\0content")
    (made / "run").write_text("#!")
    (made / "run").chmod(0o755)
    (made / "deep" / "link").symlink_to("../run")
    (made / "dangling").symlink_to("nothing")
    (made / "n\udcff").write_text("a name that is no text")
    return made


def test_a_folder_is_restored_as_it_was(folder: Path) -> None:
    kept = TempFolder()
    saved = kept.save(folder)
    again = kept.restore(saved, INFO)
    assert sorted(path.relative_to(again) for path in again.rglob("*")) == sorted(
        path.relative_to(folder) for path in folder.rglob("*")
    )
    assert (again / "deep" / "file").read_bytes() == b"\0content"
    assert (again / "deep" / "link").read_text() == "#!"
    assert (again / "run").stat().st_mode & 0o100
    assert not (again / "deep" / "file").stat().st_mode & 0o100
    assert kept.save(again) == saved
    kept.stop(again)
    assert not again.exists()
    kept.stop(again)


def test_the_same_content_gives_the_same_bytes(folder: Path) -> None:
    kept = TempFolder()
    saved = kept.save(folder)
    (folder / "run").unlink()
    (folder / "run").write_text("#!")
    (folder / "run").chmod(0o700)
    assert kept.save(folder) == saved
    (folder / "run").chmod(0o600)
    assert kept.save(folder) != saved


def test_the_order_in_which_files_were_made_does_not_matter(tmp_path: Path) -> None:
    names = [f"{number}" for number in range(30)]
    for folder, order in ((tmp_path / "a", names), (tmp_path / "b", names[::-1])):
        folder.mkdir()
        for name in order:
            (folder / name).touch()
    assert TempFolder().save(tmp_path / "a") == TempFolder().save(tmp_path / "b")


@pytest.mark.parametrize("target", ["/etc/passwd", "..", "../../made/run", "deep/up/../.."])
def test_a_link_that_leads_out_is_refused(folder: Path, target: str) -> None:
    (folder / "deep" / "up").symlink_to("..")
    (folder / "out").symlink_to(target)
    with raises(ToolError):
        TempFolder().save(folder)


@pytest.mark.parametrize("target", ["round", "deep/round", "round/further"])
def test_a_link_that_leads_in_a_circle_is_refused(folder: Path, target: str) -> None:
    (folder / "deep" / "round").symlink_to("../round")
    (folder / "round").symlink_to(target)
    with raises(ToolError):
        TempFolder().save(folder)


def test_what_is_no_file_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with raises(ToolError):
        TempFolder().save(folder)


def test_what_a_tool_has_locked_is_removed_all_the_same() -> None:
    kept = TempFolder()
    folder = kept.start(INFO)
    (folder / "locked" / "in").mkdir(parents=True)
    (folder / "locked" / "in" / "file").write_text("x")
    (folder / "locked" / "in").chmod(0o500)
    (folder / "locked").chmod(0o000)
    kept.stop(folder)
    assert not folder.exists()


def test_a_content_that_cannot_be_restored_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(tarfile.ReadError):
        TempFolder().restore(b"no archive", INFO)
    assert list(tmp_path.iterdir()) == []
