"""Resources of a session outside its state, such as a sandbox, a browser or a folder.

A session's progress has a *version* of each used resource at that revision:

| kind | version | where it is needed again |
|---|---|---|
| `exportable` | `saved`, `bytes`: the digest and the size of its content, stored with the call | it is restored |
| `restart_only` | `used`, `revision`: a token of its last use, and when that was | it is started afresh |
| `stateless` | none | all sessions of a process share one |

So what this process has of a resource is right as long as its version is that of the session's progress.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

import msgspec

from stateroom.errors import DefinitionError
from stateroom.session.parameters import SessionInfo
from stateroom.state import Large

Kind = Literal["exportable", "restart_only", "stateless"]
"""How a resource follows a session that is forked, rewound, or continued in another process.

`exportable`: it is saved with each call that uses it, and restored where it is needed. `restart_only`: it can only be
started again, so a session cannot be forked after using it. Changes before a `ToolError` stay; after any other failed
call it is started again. `stateless`: it needs neither.
"""

H = TypeVar("H")

ResourceVersion = Mapping[str, Any]

NO_VERSION: ResourceVersion = {}

EXPORTING = ("save", "restore")


class Resource(Generic[H]):
    """A resource that tools use. `H` is the type of its handle, which is injected under the environment's name for it.

    A subclass sets its `kind`, and defines `start` and `stop`; an exportable one also `save` and `restore`. Each may be
    sync or async, and has the timeout of a tool. The model sees a `ToolError` that a hook raises.
    """

    kind: ClassVar[Kind]

    def start(self, session: SessionInfo, /) -> H | Awaitable[H]:
        """Start the resource for a session; a stateless one is started once, for all sessions of a process."""
        raise NotImplementedError

    def stop(self, handle: H, /) -> Awaitable[None] | None:
        """Stop a resource that is no longer needed; by default do nothing."""

    def save(self, handle: H, /) -> Any:
        """Return the content as bytes or JSON data. Return equal data for equal content, which is then stored once."""
        raise NotImplementedError

    def restore(self, saved: Any, session: SessionInfo, /) -> H | Awaitable[H]:
        """Start a resource with this content."""
        raise NotImplementedError


def check_resource(where: str, resource: Any) -> None:
    """Raise `DefinitionError` unless this is a valid resource; `where` names it in errors."""
    if not isinstance(resource, Resource):
        raise DefinitionError(f"{where} must be an instance of a Resource, not {resource!r}")
    kind = getattr(resource, "kind", None)
    if kind not in get_args(Kind):
        raise DefinitionError(f"{where} needs a kind: 'exportable', 'restart_only' or 'stateless', not {kind!r}")
    if not _has(resource, "start"):
        raise DefinitionError(f"{where} needs a start method")
    for hook in EXPORTING:
        if kind == "exportable" and not _has(resource, hook):
            raise DefinitionError(f"{where} is exportable, so it needs a {hook} method")
        if kind != "exportable" and _has(resource, hook):
            raise DefinitionError(f"{where} is {kind}, so its {hook} method would never be called; remove it")


def _has(resource: Resource[Any], hook: str) -> bool:
    return getattr(type(resource), hook) is not getattr(Resource, hook)


def identity(version: ResourceVersion) -> str | None:
    """The identity that two versions of the same content share; None without a version."""
    return version.get("saved") or version.get("used")


def saved_as(version: ResourceVersion) -> Large | None:
    """The reference to the stored content of a version."""
    return Large(version["saved"], version["bytes"], is_text=False) if "saved" in version else None


def contents(versions: Mapping[str, ResourceVersion]) -> Iterator[Large]:
    """References to the stored contents of versions."""
    for version in versions.values():
        if (content := saved_as(version)) is not None:
            yield content


def restart_blocker(then: Mapping[str, ResourceVersion], now: Mapping[str, ResourceVersion]) -> str | None:
    """Why resources with the versions `now` cannot return to the versions `then`, if they cannot."""
    for name, version in then.items():
        if "used" in version and identity(version) != identity(now.get(name, NO_VERSION)):
            used = f"it was used at revision {version['revision']}"
            return f"the {name} of this session can only be started again, but {used}"
    return None


class Used(msgspec.Struct, frozen=True):
    """The effect of a call on the resources that it used."""

    versions: dict[str, ResourceVersion]
    """The new versions."""
    restarted: list[str]
    """The resources that were started again before the call, although they had been used."""
    blobs: dict[str, bytes]
    """The saved contents, by digest."""

    def facts(self, revision: int) -> dict[str, Any]:
        """The facts for the entry of the call, which has this revision."""
        versions = {
            name: version if "saved" in version else {**version, "revision": revision}
            for name, version in self.versions.items()
        }
        facts: dict[str, Any] = {"resources": versions} if versions else {}
        return {**facts, "restarted": self.restarted} if self.restarted else facts
