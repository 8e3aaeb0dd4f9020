"""`open_model`: open a model from a spec.

| spec | model |
|---|---|
| `reference`, `noisy`, ... | a policy of the environment |
| `gold` | the gold actions of each task, unless the environment has a policy with this name |
| `module:Class`, `path.py:Class` | a `Policy` or `Model` class of the user |
| `openai:NAME` | an OpenAI model; the key is in `OPENAI_API_KEY` |
| `responses:NAME@URL`, `chat:NAME@URL` | a model on any server with OpenAI's Responses or Chat Completions API |
| `responses:NAME@URL,URL`, `chat:NAME@URL,URL` | the same model on several servers |
| `local`, `local:PATH.gguf` | a small model in this process |
| `transformers:PATH` | a model of the transformers library in this process |
| `replay:FILE` | the answers of a rollouts file |
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from inspect import isabstract
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from stateroom.environment import load_class
from stateroom.errors import InvalidModel, ModelFailed, NotFound, StateroomError, needs
from stateroom.model.address import ModelAddress
from stateroom.model.limiter import Limiter, ModelLimits
from stateroom.model.model import Model
from stateroom.model.policy import GOLD_FIELDS, Gold, Policy
from stateroom.model.replay import Replayed
from stateroom.session import contained

GOLD = "gold"
REFERENCE = "reference"

NO_ROW: Mapping[str, Any] = MappingProxyType({})

REMOTE = ("openai", "responses", "chat")
"""The kinds of remote models."""

KINDS = (
    "openai:NAME, responses:NAME@URL, chat:NAME@URL, local, local:PATH.gguf, transformers:PATH, replay:FILE, gold, "
    "module:Class, path.py:Class"
)


class ModelSource:
    """Gives each episode its model. Close it, or use it as an async context manager."""

    def __init__(
        self,
        name: str,
        make: Callable[[int], Model],
        closing: Callable[[], Awaitable[None]] | None = None,
        *,
        connects: bool = False,
    ) -> None:
        self.name = name
        """The spec as typed by the user; it never contains a secret."""
        self.connects = connects
        """Whether the models have connections that belong to an event loop."""
        self._make = make
        self._closing = closing

    def check_task(self, row: Mapping[str, Any]) -> None:
        """Raise `BadTask` if a task cannot have a model."""

    def for_episode(self, seed: int, row: Mapping[str, Any] = NO_ROW) -> Model:
        """Return the model of an episode, which may be shared by all episodes. `row` is the row of the task."""
        try:
            with contained:
                return self._make(seed)
        except Exception as error:
            raise ModelFailed(f"cannot create {self.name}: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Release the connections and memory of the models."""
        if self._closing is not None:
            await self._closing()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class GoldSource(ModelSource):
    """Plays the gold actions of each task."""

    def __init__(self) -> None:
        super().__init__(GOLD, lambda seed: Gold(NO_ROW))

    def check_task(self, row: Mapping[str, Any]) -> None:
        Gold(row)

    def for_episode(self, seed: int, row: Mapping[str, Any] = NO_ROW) -> Model:
        return Gold(row)


class SharedModel:
    """A model or a spec that several users share, without an owner to close it; it may outlive an event loop.

    Connections are open only while the model is in use. A local model is loaded on first use and stays in memory as
    long as this object.
    """

    def __init__(self, model: Model | str) -> None:
        self._model = model
        self._source: ModelSource | None = self._open()  # opened now, so a wrong spec fails early
        self.name = self._source.name
        self._users = 0

    def _open(self) -> ModelSource:
        return open_model(self._model, {})

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Model]:
        """The model, for the length of the block."""
        source = self._source = self._source or self._open()
        self._users += 1
        try:
            yield source.for_episode(0)
        finally:
            self._users -= 1
            if not self._users and source.connects:
                self._source = None
                await source.close()


def default_model(policies: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> str | None:
    """The default model: the reference policy or, if all tasks have them, the gold actions."""
    if REFERENCE in policies:
        return REFERENCE
    return GOLD if all(any(field in row for field in GOLD_FIELDS) for row in rows) else None


def open_model(
    spec: str | Model | type[Model] | ModelSource,
    policies: Mapping[str, Any],
    *,
    limits: ModelLimits | None = None,
    limiter: Limiter | None = None,
    api_key_env: str | None = None,
) -> ModelSource:
    """Open the model of a spec; `policies` are those that can be selected by name.

    Instead of a spec you can pass a model, which all episodes share, or a class of a policy or model. `limits` apply to
    remote models, and `api_key_env` names the environment variable with the API key. A `limiter` is shared with others
    that send requests to the same servers; by default the model creates one. Raises `NotFound` if the model, file or
    package does not exist, and `InvalidModel` if it cannot be used.
    """
    if not isinstance(spec, str):
        if limits is not None:
            raise InvalidModel(
                f"{spec!r:.100} is already created, so it cannot take limits; pass them to `open_model` with a spec"
            )
        return _of_object(spec)
    kind, _, rest = spec.partition(":")
    if spec in policies or kind not in REMOTE:
        if api_key_env is not None:
            raise InvalidModel(
                f"the model {kind!r} is not remote and needs no key from {api_key_env}; omit api_key_env"
            )
        if limits is not None:
            raise InvalidModel(f"the model {kind!r} is not remote, so it cannot have request limits; omit them")
    if spec in policies:
        return _of_class(spec, policies[spec])
    match kind:
        case "openai" | "responses" | "chat" if rest:
            return _remote(spec, kind, rest, limits or ModelLimits(), limiter, api_key_env)
        case "gold" if not rest:
            return GoldSource()
        case "replay" if rest:
            return _shared(spec, Replayed.of_file(Path(rest), spec))
        case "local" if rest or spec == "local":
            return _local(spec, Path(rest) if rest else None)
        case "transformers" if rest:
            return _transformers(spec, Path(rest))
    if not rest or "://" in spec:  # the rest is not shown, since it may contain a password
        own = f"{', '.join(policies)}, " if policies else ""
        raise NotFound(f"unknown model {kind!r}; available: {own}{KINDS}")
    return _of_class(spec, load_class(spec))


def _shared(
    name: str, model: Model, closing: Callable[[], Awaitable[None]] | None = None, *, connects: bool = False
) -> ModelSource:
    return ModelSource(name, lambda seed: model, closing, connects=connects)


def _remote(
    spec: str, kind: str, rest: str, limits: ModelLimits, limiter: Limiter | None, variable: str | None
) -> ModelSource:
    if kind == "openai":
        addresses = [ModelAddress.of_openai(rest, os.environ, variable)]
    else:
        addresses = ModelAddress.of_text(rest, os.environ, variable)
    # These modules import the openai SDK.
    from stateroom.model.endpoint import Endpoint, EndpointPool  # noqa: PLC0415
    from stateroom.model.remote import ChatModel, ResponsesModel  # noqa: PLC0415

    names = [spec] if len(addresses) == 1 else [f"{kind}:{address.model}@{address.url}" for address in addresses]
    pool = EndpointPool(spec, [*map(Endpoint, names, addresses)], limits, limiter)
    model = ChatModel(pool) if kind == "chat" else ResponsesModel(pool, sends_seed=kind == "responses")
    return _shared(spec, model, pool.close, connects=True)


def _local(spec: str, path: Path | None) -> ModelSource:
    from stateroom.model.local import LocalModel  # noqa: PLC0415 - an extra

    model = LocalModel(path)
    return _shared(spec, model, model.close)


def _transformers(spec: str, path: Path) -> ModelSource:
    with needs(spec, "train"):
        from stateroom.model.transformers import TransformersModel  # noqa: PLC0415 - an extra
    model = TransformersModel.of_path(path, spec)

    async def close() -> None:
        model.stop()

    return _shared(spec, model, close)


def _of_object(given: Model | type[Model] | ModelSource) -> ModelSource:
    if isinstance(given, ModelSource):
        return given
    if isinstance(given, Model):
        return _shared(given.name, given)
    return _of_class(getattr(given, "__name__", repr(given)), given)


def _of_class(name: str, model_class: Any) -> ModelSource:
    """A policy class creates a policy per episode; all episodes share one instance of any other model class."""
    if not (isinstance(model_class, type) and issubclass(model_class, Model)):
        raise InvalidModel(f"{name} is not a subclass of stateroom.model.Policy or stateroom.model.Model")
    if isabstract(model_class):
        missing = " and ".join(sorted(model_class.__abstractmethods__))
        raise InvalidModel(f"{name} is abstract; define {missing}")
    if issubclass(model_class, Policy):
        return ModelSource(name, model_class)
    try:
        with contained:
            return _shared(name, model_class())
    except StateroomError:
        raise
    except Exception as error:
        raise InvalidModel(f"{name} cannot be created without arguments: {type(error).__name__}: {error}") from error
