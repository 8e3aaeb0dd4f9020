"""`make release` in a repository of its own."""

import sys
from pathlib import Path

import pytest

from tools.release import NotReady, git, release

PASSES = (sys.executable, "-c", "pass")
FAILS = (sys.executable, "-c", "raise SystemExit(1)")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "ship"\nversion = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0 (unreleased)\n- More.\n\n## 0.1.0 (2026-01-05)\n")
    git(tmp_path, "init", "--quiet")
    for name, value in {"name": "test", "email": "", "useConfigOnly": "true"}.items():
        git(tmp_path, "config", f"user.{name}", value)
    git(tmp_path, "config", "commit.gpgSign", "false")
    git(tmp_path, "config", "tag.gpgSign", "false")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Start")
    git(tmp_path, "tag", "--annotate", "v0.1.0", "--message", "0.1.0")
    return tmp_path


def test_a_release_sets_the_version_dates_its_changes_commits_and_tags(root: Path) -> None:
    release(root, "0.2.0", "2026-02-03", PASSES)
    assert git(root, "describe", "--exact-match") == "v0.2.0"
    assert git(root, "log", "-1", "--format=%s") == "Release 0.2.0"
    assert git(root, "status", "--porcelain") == ""
    assert 'version = "0.2.0"' in (root / "pyproject.toml").read_text()
    changes = (root / "CHANGELOG.md").read_text()
    assert "## 0.2.0 (2026-02-03)\n- More." in changes
    assert "unreleased" not in changes


def test_a_version_that_the_project_has_already_can_be_released_once(root: Path) -> None:
    project = root / "pyproject.toml"
    project.write_text(project.read_text().replace("0.1.0", "0.2.0"))
    git(root, "commit", "--quiet", "--all", "--message", "Next")
    release(root, "0.2.0", "2026-02-03", PASSES)
    with pytest.raises(NotReady, match="not newer"):
        release(root, "0.2.0", "2026-02-04", PASSES)


@pytest.mark.parametrize("version", ["0.0.9", "0.1.0", "0.3.0", "0.2", "v0.2.0", ""])
def test_a_version_that_is_not_next_changes_nothing(root: Path, version: str) -> None:
    with pytest.raises(NotReady):
        release(root, version, "2026-02-03", PASSES)
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "describe", "--exact-match") == "v0.1.0"


def test_a_failed_check_changes_nothing(root: Path) -> None:
    with pytest.raises(NotReady, match="failed"):
        release(root, "0.2.0", "2026-02-03", FAILS)
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "describe", "--exact-match") == "v0.1.0"


def test_changes_that_are_not_committed_stop_a_release(root: Path) -> None:
    (root / "draft.txt").write_text("not yet")
    with pytest.raises(NotReady, match="working tree"):
        release(root, "0.2.0", "2026-02-03", PASSES)
    assert git(root, "tag", "--list") == "v0.1.0"
