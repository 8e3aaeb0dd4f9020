"""Choosing a model by what a user typed.

| spec | model |
|---|---|
| `reference`, `noisy`, ... | a policy of the environment's own |
| `module:Class`, `path.py:Class` | a `Policy` or `Model` of the user's |
| `openai:NAME` | a model of OpenAI's; the key is in `OPENAI_API_KEY` |
| `responses:NAME@URL`, `chat:NAME@URL` | a model on any server that speaks OpenAI's Responses, or Chat Completions |
| `local`, `local:PATH.gguf` | a small model in this process |
| `replay:FILE` | the answers of a rollouts file |
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from inspect import isabstract
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stateroom.environment import load_class
from stateroom.errors import ModelFailed, NotFound, StateroomError
from stateroom.model.endpoint import Address, Limits
from stateroom.model.model import Model
from stateroom.model.policy import Policy
from stateroom.model.replay import Replayed
from stateroom.session.containment import contained

KINDS = (
    "openai:NAME, responses:NAME@URL, chat:NAME@URL, local, local:PATH.gguf, replay:FILE, module:Class, path.py:Class"
)


class ModelSource:
    """Where the models of episodes come from; closed by whoever opened it, or at the end of an `async with`."""

    def __init__(
        self, name: str, make: Callable[[int], Model], closing: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.name = name
        """What the user called it; never has a secret in it."""
        self._make = make
        self._closing = closing

    def for_episode(self, seed: int) -> Model:
        """The model that acts in an episode: one of its own, or one that all of them share."""
        try:
            with contained:
                return self._make(seed)
        except Exception as error:
            raise ModelFailed(f"{self.name} cannot be made: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Give back what the models hold."""
        if self._closing is not None:
            await self._closing()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def open_model(spec: str, policies: Mapping[str, Any], *, limits: Limits | None = None) -> ModelSource:
    """The models that a spec stands for; `policies` are those that can be had by their name alone.

    `limits` are those of an endpoint. What does not exist, or cannot be had, is `NotFound`.
    """
    if spec in policies:
        return _of_class(spec, policies[spec])
    kind, _, rest = spec.partition(":")
    match kind:
        case "openai" | "responses" | "chat" if rest:
            return _of_endpoint(spec, kind, rest, limits or Limits())
        case "replay" if rest:
            return _shared(spec, Replayed.of_file(Path(rest), spec))
        case "local" if rest or spec == "local":
            return _local(spec, Path(rest) if rest else None)
    if not rest or "://" in spec:  # of which no more is shown than what must be wrong: there may be a password in it
        own = f"there are {', '.join(policies)}, and " if policies else "there are "
        raise NotFound(f"no model is called {kind!r}; {own}{KINDS}")
    return _of_class(spec, load_class(spec))


def _shared(name: str, model: Model, closing: Callable[[], Awaitable[None]] | None = None) -> ModelSource:
    return ModelSource(name, lambda seed: model, closing)


def _of_endpoint(spec: str, kind: str, rest: str, limits: Limits) -> ModelSource:
    variables = os.environ
    address = Address.of_openai(rest, variables) if kind == "openai" else Address.of_text(rest, variables)
    # These import the SDK, which takes its time.
    from stateroom.model.endpoint.chat import ChatModel  # noqa: PLC0415
    from stateroom.model.endpoint.endpoint import Endpoint  # noqa: PLC0415
    from stateroom.model.endpoint.responses import ResponsesModel  # noqa: PLC0415

    endpoint = Endpoint(spec, address, limits)
    if kind == "chat":
        return _shared(spec, ChatModel(endpoint), endpoint.close)
    return _shared(spec, ResponsesModel(endpoint, tells_seed=kind == "responses"), endpoint.close)


def _local(spec: str, path: Path | None) -> ModelSource:
    from stateroom.model.local import LocalModel  # noqa: PLC0415 - this imports what runs the model

    model = LocalModel(path)
    return _shared(spec, model, model.close)


def _of_class(name: str, found: Any) -> ModelSource:
    """A policy, of which each episode has its own, or a model that all share."""
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise NotFound(f"{name} is not a subclass of stateroom.model.Policy or stateroom.model.Model")
    if isabstract(found):
        raise NotFound(f"{name} cannot act: it has no {' and no '.join(sorted(found.__abstractmethods__))} of its own")
    if issubclass(found, Policy):
        return ModelSource(name, found)
    try:
        with contained:
            return _shared(name, found())
    except StateroomError:
        raise
    except Exception as error:
        raise NotFound(f"{name} cannot be made without arguments: {type(error).__name__}: {error}") from error
