"""The environments that TRL's loop calls: a class for each environment, with its tools as methods.

A process has one event loop for all sessions and environments.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from secrets import token_hex
from typing import Any, Literal, Union

from stateroom.agent import output_text
from stateroom.environment import Environment, StoreSessions, Tool, make_environment
from stateroom.errors import DefinitionError
from stateroom.model import Item, Message, items_of, response_object
from stateroom.rollout import EPOCH
from stateroom.session import BackgroundLoop
from stateroom.store import open_store

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None, "array": list, "object": dict}
"""Python types by their names in JSON schemas."""

SECTIONS = ("Args", "Returns", "Raises")
"""Section names that end a description in a docstring when followed by a colon."""


@dataclass(frozen=True)
class Source:
    """Picklable recipe for an environment and its sessions, which each process opens itself."""

    environment: str | type[Environment[Any, Any]] | Environment[Any, Any]
    env_args: Mapping[str, Any]
    store: str
    """The URL of the session store."""
    seed: int = 0
    """The seed from which the seeds of the episodes are derived."""
    id: str = field(default_factory=lambda: token_hex(8), repr=False)
    """Identifies what is already open for a copy in the same process."""

    def make_environment(self) -> Environment[Any, Any]:
        return make_environment(self.environment, self.env_args)


class OpenedEnvironment:
    """An environment and its store, open in this process."""

    def __init__(self, source: Source) -> None:
        self.environment = source.make_environment()
        self._source = source
        self._resources = AsyncExitStack()
        store = background_loop().run(self._resources.enter_async_context(open_store(source.store)))
        self._sessions = StoreSessions(store)
        self._resources.push_async_callback(self._sessions.stop)
        self._begun: Counter[str] = Counter()
        """The number of episodes of each row."""

    async def next_session(self, text: str, last: Any) -> Any:
        """A session for the row in a JSON text, replacing the instance's last one."""
        row = json.loads(text)
        if last is not None:
            await last.close()
            if self._source.store.startswith("memory:") and self.environment.state_type is not None:
                await self._sessions.store.delete(last.id)
        sessions = self._sessions.of(self.environment, row)
        return await sessions.seed(row, seed=self._next_seed(text), began=EPOCH)

    def _next_seed(self, text: str) -> int:
        """The random seed of a row's next episode, reproducible for the same settings."""
        row = blake2b(text.encode(), digest_size=16).hexdigest()
        self._begun[row] += 1
        return seed_of(self.environment.name, self._source.seed, row, self._begun[row])

    async def close(self) -> None:
        await self._resources.aclose()


_OPENED: dict[tuple[int, str], OpenedEnvironment] = {}
"""Open environments by process and source, because a forked process lacks its parent's threads."""

_LOOPS: dict[int, BackgroundLoop] = {}
"""The event loop of all sessions, by process."""

_OPENING = threading.RLock()


def background_loop() -> BackgroundLoop:
    """The event loop of this process."""
    process = os.getpid()
    with _OPENING:
        if process not in _LOOPS:
            _LOOPS[process] = BackgroundLoop()
            # Not `atexit`, which runs after the executors are shut down, which stores need to end their threads.
            threading._register_atexit(_close, process)  # type: ignore[attr-defined]
        return _LOOPS[process]


def open_environment(source: Source) -> OpenedEnvironment:
    """Open the environment of a source, once per process."""
    key = os.getpid(), source.id
    with _OPENING:
        if key not in _OPENED:
            _OPENED[key] = OpenedEnvironment(source)
        return _OPENED[key]


def seed_of(*place: int | str) -> int:
    """A random seed derived from a place in the training and the rank of this process."""
    text = "/".join(map(str, (os.environ.get("RANK", "0"), *place)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1


def _close(process: int) -> None:
    """Close everything that a process has open, unless a fork of it exits."""
    if process == os.getpid():
        for key in [key for key in _OPENED if key[0] == process]:
            _LOOPS[process].run(_OPENED.pop(key).close())
        _LOOPS.pop(process).close()


class PooledEnvironment:
    """An instance of TRL's pool, with the session of one episode at a time. Subclasses have the tools as methods."""

    def __init__(self, opened: OpenedEnvironment) -> None:
        self._opened = opened
        self._session: Any = None

    def reset(self, row: str, **_: Any) -> None:
        """Close the session of the last episode, and seed one for a row of the dataset."""
        self._session = background_loop().run(self._opened.next_session(row, self._session))

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        """The result of a tool call, or its error, as the model reads it."""
        return output_text(background_loop().run(self._session.call(name, arguments)))

    def _get_reward(self) -> float:
        """Verify the episode, and close its session."""
        return background_loop().run(self._reward(None))

    async def _reward(self, completion: Sequence[Message] | None) -> float:
        response = None if completion is None else self._response(completion)
        verdict = await self._session.verify(response)
        await self._session.close()
        return float(verdict.reward)

    def _response(self, completion: Sequence[Message]) -> Item:
        """The messages of a completion as a Responses object."""
        output, tools = items_of(with_call_ids(completion)), self._opened.environment.tool_definitions()
        return response_object(self._session.id, "trl", output, tools, created_at=EPOCH)


def verified_reward(completions: Sequence[Any], environments: Sequence[Any], **_: Any) -> list[float | None]:
    """A reward function for TRL that verifies each completion in its session; None for other environments."""

    async def reward(environment: Any, completion: Any) -> float | None:
        ours = isinstance(environment, PooledEnvironment) and not hasattr(environment, "get_reward")
        return await environment._reward(completion) if ours else None

    async def rewards() -> list[float | None]:
        return await asyncio.gather(*map(reward, environments, completions))

    return background_loop().run(rewards())


def with_call_ids(completion: Sequence[Message]) -> list[Message]:
    """Add ids to tool calls, and to tool results the ids of their calls, which have the same order in TRL."""
    messages: list[Message] = []
    waiting: list[str] = []
    number = 0
    for message in completion:
        if message["role"] == "tool":
            messages.append({**message, "tool_call_id": waiting.pop(0)})
            continue
        calls = []
        for call in message.get("tool_calls") or ():
            calls.append({**call, "id": f"call_{number}"})
            number += 1
        waiting = [call["id"] for call in calls]
        messages.append({**message, "tool_calls": calls})
    return messages


@cache
def instance_class(environment: Environment[Any, Any]) -> type[PooledEnvironment]:
    """The class of an environment's instances in TRL's pool, with a method for each tool."""
    methods: dict[str, Any] = {name: _method(tool) for name, tool in environment.tools.items()}
    if "get_reward" in methods:
        raise DefinitionError(f"{environment.name}: the name 'get_reward' is reserved by TRL; rename the tool")
    if environment.instructions_tool is not None:
        problem = f"{environment.name}.instructions: TRL's loop cannot show instructions computed from the state"
        raise DefinitionError(f"{problem}; collect rollouts with spec(…).rollout_func()")
    if not reads_response(environment):
        methods["get_reward"] = PooledEnvironment._get_reward
    return type(type(environment).__name__, (PooledEnvironment,), {**methods, "__doc__": type(environment).__doc__})


def _method(tool: Tool) -> Callable[..., str]:
    """A tool as a method. It accepts any arguments, so the model reads the environment's error for wrong ones."""

    def method(self: PooledEnvironment, /, **arguments: Any) -> str:
        return self._call(tool.name, arguments)

    schema = tool.arguments.model_json_schema()
    known, required = schema.get("properties", {}), schema.get("required", ())
    hints = {name: _hint(each, schema.get("$defs", {})) for name, each in known.items()}
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hint,
            default=inspect.Parameter.empty if name in required else known[name].get("default"),
        )
        for name, hint in hints.items()
    ]
    lines = [f"    {name}: {_line(each.get('description') or name)}" for name, each in known.items()]
    described = "\n".join(["", "", "Args:", *lines]) if lines else ""
    method.__name__ = method.__qualname__ = tool.name
    method.__doc__ = _without_sections(tool.definition["description"]) + described
    method.__annotations__ = hints
    method.__signature__ = inspect.Signature([receiver, *parameters])  # type: ignore[attr-defined]
    return method


def _hint(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    """The type for a JSON schema, as far as transformers can describe it."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        others = {other: each for other, each in definitions.items() if other != name}  # a type may contain itself
        return _hint(definitions.get(name, {}), others)
    if "const" in schema or "enum" in schema:
        return Literal[tuple(schema.get("enum", (schema.get("const"),)))]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return Union[tuple(_hint(each, definitions) for each in choices)]  # noqa: UP007 - made at run time
    kind = schema.get("type", "")
    if kind == "array" and schema.get("items"):
        return list[_hint(schema["items"], definitions)]  # type: ignore[misc]
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return dict[str, _hint(schema["additionalProperties"], definitions)]  # type: ignore[misc]
    return TYPES.get(kind, Any)


def _line(text: str) -> str:
    """A description on one line, because a line break could look like another parameter."""
    return " ".join(_without_sections(text).split())


def _without_sections(text: str) -> str:
    for word in SECTIONS:
        text = text.replace(f"{word}:", word)
    return text


def reads_response(environment: Environment[Any, Any]) -> bool:
    """Whether a verifier may read the agent's response, because it uses more of the episode than the task."""
    if "episode" not in environment.verify_function.needs:
        return False
    verify: Any = type(environment).verify
    if hasattr(verify, "__wrapped__"):
        return True
    try:
        nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(verify)))))
    except (OSError, SyntaxError):  # the source is not available
        return True
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == "episode"]
    harmless = [node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr == "task"]
    return any(use not in harmless for use in uses)
