"""Versions of a class whose data is stored, and how data of an older one becomes data of the newest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from stateroom.errors import DefinitionError, SchemaChanged
from stateroom.state.codec import encode

Migration = Callable[[dict[str, Any]], dict[str, Any]]
"""From the plain data of one version to that of the next."""


class Versioned:
    """What a class needs whose data is stored: `class Cart(State, version=2)`, and the way there from version 1."""

    __migrations__: ClassVar[Migrations]

    @classmethod
    def migration(cls, version: int) -> Callable[[Migration], Migration]:
        """Mark a function that turns the plain data of a version into that of the next: `@Cart.migration(1)`.

        It gets a dict of the fields, in which models are dicts and enums their values, and returns one; it may change
        the one it got.
        """

        def mark(function: Migration) -> Migration:
            cls.__migrations__.add(version, function)
            return function

        return mark


class Migrations:
    """The way from each version of a class to the next."""

    def __init__(self, name: str, version: int | None, base: Migrations | None = None) -> None:
        """Without a version of its own, a class has that of its base; the way from there is known there too."""
        newest: int = (base.version if base else 1) if version is None else version
        if not isinstance(newest, int) or newest < 1:
            raise DefinitionError(f"{name}: a version is a whole number from 1 on, not {version!r}")
        self.name = name
        self.version: int = newest
        """The newest: what the class says now."""
        self._base = base
        self._steps: dict[int, Migration] = {}

    def add(self, version: int, migration: Migration) -> None:
        """Say how data of a version becomes data of the next."""
        if not 1 <= version < self.version:
            raise DefinitionError(
                f"{self.name} is at version {self.version}: a migration from {version} leads nowhere; "
                f"those from 1 to {self.version - 1} do"
                if self.version > 1
                else f"{self.name} is at version 1, which nothing leads to; write class {self.name}(…, version=2)"
            )
        if version in self._steps:
            raise DefinitionError(f"{self.name} has two migrations from version {version}")
        self._steps[version] = migration

    def upgrade(self, data: Any, version: int) -> Any:
        """Data of a version as data of the newest; each step of the way is checked. `data` may be changed."""
        if version > self.version:
            raise SchemaChanged(
                f"it is of version {version} of {self.name}, and this code knows none later than {self.version}: "
                "read it with newer code"
            )
        for step in range(version, self.version):
            data = self._step(data, step)
        return data

    def _find(self, version: int) -> Migration | None:
        return self._steps.get(version) or (self._base._find(version) if self._base else None)

    def _step(self, data: Any, version: int) -> Any:
        migration = self._find(version)
        way = f"from version {version} of {self.name} to {version + 1}"
        if migration is None:
            raise SchemaChanged(f"there is no migration {way}: write one with @{self.name}.migration({version})")
        try:
            data = migration(data)
            encode(data)
        except Exception as error:
            raise SchemaChanged(f"the migration {way} failed: {type(error).__name__}: {error}") from error
        if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
            raise SchemaChanged(f"the migration {way} must return a dict of fields, not {type(data).__name__}")
        return data
