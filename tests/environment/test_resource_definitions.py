"""What authors can write as a resource, and what is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment, Resource, SessionInfo, TempFolder
from stateroom.errors import DefinitionError
from tests.messages import raises
from tests.session.outside import Browser, Desk


class Half(Resource[int]):
    kind = "exportable"

    def start(self, session: SessionInfo, /) -> int:
        return 1

    def save(self, handle: int, /) -> Any:
        return handle


class Overdone(Resource[int]):
    kind = "stateless"

    def start(self, session: SessionInfo, /) -> int:
        return 1

    def save(self, handle: int, /) -> Any:
        return handle


class Nameless(Resource[int]):
    def start(self, session: SessionInfo, /) -> int:
        return 1


class Empty(Resource[int]):
    kind = "stateless"


@pytest.mark.parametrize(
    ("name", "resource"),
    [
        ("box", Half()),
        ("box", Overdone()),
        ("box", Nameless()),
        ("box", Empty()),
        ("box", TempFolder),
        ("rng", TempFolder()),
        ("episode", TempFolder()),
        ("my box", TempFolder()),
    ],
)
def test_a_resource_that_cannot_be_used_is_refused_by_name(name: str, resource: Any) -> None:
    with raises(DefinitionError):

        class Wrong(Environment[Desk]):
            resources = {name: resource}


@pytest.mark.parametrize("resource", [TempFolder(), Browser()])
def test_without_a_state_nothing_can_be_kept_of_a_session(resource: Resource[Any]) -> None:
    with raises(DefinitionError):

        class Wrong(Environment):
            resources = {"box": resource}


def test_a_seed_has_no_resources_yet() -> None:
    with raises(DefinitionError):

        class Wrong(Environment[Desk]):
            resources = {"folder": TempFolder()}

            def seed(self, folder: Path) -> Desk:
                return Desk()
