"""What authors can write as a resource, and what is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment, Resource, SessionInfo, TempFolder
from stateroom.errors import DefinitionError
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
    ("name", "resource", "message"),
    [
        ("box", Half(), r"Wrong.resources\['box'\] is exportable, so it needs a restore method"),
        ("box", Overdone(), r"\['box'\] is stateless, so nothing would call its save method"),
        ("box", Nameless(), r"\['box'\] needs a kind: 'exportable', 'restart_only' or 'stateless', not None"),
        ("box", Empty(), r"\['box'\] needs a start method"),
        ("box", TempFolder, r"\['box'\] must be an instance of a Resource, not <class"),
        ("rng", TempFolder(), r"\['rng'\]: no parameter can have this name"),
        ("episode", TempFolder(), r"\['episode'\]: no parameter can have this name"),
        ("my box", TempFolder(), r"\['my box'\]: no parameter can have this name"),
    ],
)
def test_a_resource_that_cannot_be_used_is_refused_by_name(name: str, resource: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):

        class Wrong(Environment[Desk]):
            resources = {name: resource}


@pytest.mark.parametrize("resource", [TempFolder(), Browser()])
def test_without_a_state_nothing_can_be_kept_of_a_session(resource: Resource[Any]) -> None:
    with pytest.raises(
        DefinitionError, match=rf"\['box'\] is {resource.kind}, which needs an environment with a state"
    ):

        class Wrong(Environment):
            resources = {"box": resource}


def test_a_seed_has_no_resources_yet() -> None:
    with pytest.raises(DefinitionError, match=r"no parameter `folder: pathlib\S*\.Path` to inject"):

        class Wrong(Environment[Desk]):
            resources = {"folder": TempFolder()}

            def seed(self, folder: Path) -> Desk:
                return Desk()
