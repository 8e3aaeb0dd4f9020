"""What people who join the project rely on: its workflows, versions and forms fit each other."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.pythons import VERSIONS

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in GITHUB.glob("workflows/*.yml")}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)
CONSTRAINTS = [
    line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")
]


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job.get("steps", ())


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", "workflows/*.yml"),
        ("dependabot", "dependabot.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", "ISSUE_TEMPLATE/config.yml"),
    ],
)
def test_each_file_of_the_repositorys_host_fits_its_schema(schema: str, files: str) -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *GITHUB.glob(files)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_calls_targets_that_there_are_with_few_rights_and_an_end(name: str) -> None:
    workflow = WORKFLOWS[name]
    commands = "\n".join(step.get("run", "") for step in steps(workflow))
    assert set(re.findall(r"^\s*make ([\w-]+)", commands, re.MULTILINE)) <= {*TARGETS}
    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in workflow["jobs"].values() if "uses" not in job)
    actions = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert [action for action in actions if not re.fullmatch(r"[\w/-]+@(release/)?v\d+", action)] == []


def test_all_pythons_that_the_package_names_are_tested() -> None:
    assert WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]["python"] == [*VERSIONS]
    assert PYPROJECT["project"]["requires-python"].startswith(f">={VERSIONS[0]}")


def test_constraints_are_names_and_versions_only() -> None:
    assert [line for line in CONSTRAINTS if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []
    assert sorted(CONSTRAINTS, key=str.upper) == CONSTRAINTS


def test_constraints_have_what_the_project_declares_within_its_bounds() -> None:
    versions = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in CONSTRAINTS)}
    project, groups = PYPROJECT["project"], PYPROJECT["dependency-groups"]
    lists = [project["dependencies"], *project["optional-dependencies"].values(), groups["dev"], groups["docs"]]
    requirements = [Requirement(text) for text in chain(*lists)]
    wrong = [
        str(each)
        for each in requirements
        if canonicalize_name(each.name) not in {"stateroom", *versions}
        or (each.name != "stateroom" and versions[canonicalize_name(each.name)] not in each.specifier)
    ]
    assert wrong == []


def test_the_changelog_begins_with_the_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \((unreleased|\d{4}-\d\d-\d\d)\)", heading) for heading in headings)
    numbers = [heading.partition(" ")[0] for heading in headings]
    assert PYPROJECT["project"]["version"] in numbers[:2]  # the next one may have begun
    assert [heading for heading in headings[1:] if "unreleased" in heading] == []
