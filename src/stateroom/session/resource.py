"""Resources: what a session has outside its state, such as a sandbox, a browser or a folder.

A session's progress has a *version* of each resource that was used, which says what it is at that revision:

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
"""What can be done about a resource when a session is forked, rewound, or goes on in another process.

`exportable`: it is saved with each call that uses it, and restored wherever that is needed. `restart_only`: it can only
be started afresh, so where it was used there can be no fork. When a tool refuses a call with a `ToolError`, what it has
done to such a one before stays done; a call that fails in any other way costs it. `stateless`: it has nothing to lose.
"""

H = TypeVar("H")

ResourceVersion = Mapping[str, Any]

NO_VERSION: ResourceVersion = {}

EXPORTING = ("save", "restore")


class Resource(Generic[H]):
    """Something outside that tools work with; `H` is what they are given, by the name that an environment gives it.

    A class says its `kind` and what to do: `start` and `stop`, and to be exportable also `save` and `restore`. Each may
    be sync or async, and takes no longer than a tool may. The model sees a `ToolError` that a hook raises.
    """

    kind: ClassVar[Kind]

    def start(self, session: SessionInfo, /) -> H | Awaitable[H]:
        """A fresh one, for a session; if it is stateless, for all sessions of a process, of which this is the first."""
        raise NotImplementedError

    def stop(self, handle: H, /) -> Awaitable[None] | None:
        """Let go of one that is needed no longer; unless overridden, there is nothing to do."""

    def save(self, handle: H, /) -> Any:
        """Its content: bytes, or JSON data. What is the same should give the same, which is stored once."""
        raise NotImplementedError

    def restore(self, saved: Any, session: SessionInfo, /) -> H | Awaitable[H]:
        """One that has this content."""
        raise NotImplementedError


def check_resource(where: str, resource: Any) -> None:
    """Refuse what cannot be used as a resource; `where` names it in errors."""
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
    """By what two versions are known to be of the same; None without a version."""
    return version.get("saved") or version.get("used")


def saved_as(version: ResourceVersion) -> Large | None:
    """Under which digest the content is stored that a version speaks of."""
    return Large(version["saved"], version["bytes"], is_text=False) if "saved" in version else None


def contents(versions: Mapping[str, ResourceVersion]) -> Iterator[Large]:
    """The contents that versions speak of."""
    for version in versions.values():
        if (content := saved_as(version)) is not None:
            yield content


def restart_blocker(then: Mapping[str, ResourceVersion], now: Mapping[str, ResourceVersion]) -> str | None:
    """Why resources that have these versions now cannot be what they were then, if they cannot."""
    for name, version in then.items():
        if "used" in version and identity(version) != identity(now.get(name, NO_VERSION)):
            used = f"it was used at revision {version['revision']}"
            return f"the {name} of this session can only be started again, but {used}"
    return None


class Used(msgspec.Struct, frozen=True):
    """What a call has made of the resources that it has used."""

    versions: dict[str, ResourceVersion]
    """Those that are new."""
    restarted: list[str]
    """Which of them had to be started afresh before it, though they had been used."""
    blobs: dict[str, bytes]
    """What was saved of them, by digest."""

    def facts(self, revision: int) -> dict[str, Any]:
        """What the entry of the call, which has this revision, says of them."""
        versions = {
            name: version if "saved" in version else {**version, "revision": revision}
            for name, version in self.versions.items()
        }
        facts: dict[str, Any] = {"resources": versions} if versions else {}
        return {**facts, "restarted": self.restarted} if self.restarted else facts
