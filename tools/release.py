"""`make release VERSION=0.3.0`: commits and tags a release. Pushing the tag publishes it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHECK = (sys.executable, "-m", "pytest", "--quiet", "tests/test_project.py")
"""What must pass before the commit."""

PROJECT_VERSION = re.compile(r'^version = "(.+)"$', re.MULTILINE)


class NotReady(Exception):
    """The release cannot be made; nothing has changed."""


def release(root: Path, version: str, date: str, check: Sequence[str] = CHECK) -> None:
    """Set the version, date its changes, check, commit and tag. Raises `NotReady`."""
    number = parse(version)
    if git(root, "status", "--porcelain"):
        raise NotReady("the working tree has changes: commit or stash them")
    project, changelog = root / "pyproject.toml", root / "CHANGELOG.md"
    current = PROJECT_VERSION.findall(project.read_text(encoding="utf-8"))[0]
    released = [tag.removeprefix("v") for tag in git(root, "tag", "--list", "v*").split()]
    newest = max([parse(current), *map(parse, released)])
    if number < newest or version in released:
        raise NotReady(f"{version} is not newer than {'.'.join(map(str, newest))}")
    heading, changes = f"## {version} (unreleased)", changelog.read_text(encoding="utf-8")
    if changes.count(heading) != 1:
        raise NotReady(f"CHANGELOG.md needs one heading {heading!r}")
    project.write_text(
        PROJECT_VERSION.sub(f'version = "{version}"', project.read_text(encoding="utf-8"), count=1), encoding="utf-8"
    )
    changelog.write_text(changes.replace(heading, f"## {version} ({date})"), encoding="utf-8")
    if subprocess.run(check, cwd=root, check=False).returncode != 0:
        git(root, "checkout", "--", project.name, changelog.name)
        raise NotReady(f"{' '.join(check)} failed")
    git(root, "commit", "--quiet", "--message", f"Release {version}", project.name, changelog.name)
    git(root, "tag", "--annotate", f"v{version}", "--message", f"Stateroom {version}")


def parse(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare it with others."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise NotReady(f"{version!r} is not a version such as 0.3.0")
    return tuple(map(int, version.split(".")))


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Release the version that is given; 1 if that is not possible."""
    try:
        version = " ".join(arguments)
        release(ROOT, version, datetime.now(UTC).date().isoformat())
    except NotReady as problem:
        sys.stderr.write(f"no release: {problem}\n")
        return 1
    sys.stdout.write(f"committed and tagged; publish with: git push origin HEAD v{version}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
