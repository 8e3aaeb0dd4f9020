"""Environments in verl's agent loops: `pip install stateroom 'verl>=0.9,<0.10'`.

verl creates and releases its tools at every call, so they cannot hold the state of an environment. Here a session in a
store holds it, and Stateroom's agent loop acts in the session with verl's servers, chat template and tool parser.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from functools import cache
from time import perf_counter
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import SPEC_DECODE_EXTRA_KEYS
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema
from verl.workers.rollout.replica import TokenOutput

from stateroom.agent import MAX_STEPS, Agent, act
from stateroom.environment import Environment, StoreSessions, make_environment
from stateroom.errors import BadTask, DefinitionError, EnvironmentFailed, StateroomError
from stateroom.model import (
    Answer,
    Item,
    Message,
    Model,
    Request,
    Usage,
    chat_tools,
    completion_message,
    message,
    messages_of,
)
from stateroom.session import Session
from stateroom.store import open_store

__all__ = ["StateroomAgentLoop"]


class StateroomAgentLoop(AgentLoopBase):  # type: ignore[misc]  # mypy does not see verl
    """Runs a row of verl's data as an episode: seeds a session, lets the model act in it, and verifies it.

    Name it in the file of `actor_rollout_ref.rollout.agent.agent_loop_config_path`. It has no `@register`, because verl
    imports this module after reading that file, so a registration would replace the arguments given there.

    `environment` is a registered name, `module:Class` or `path.py:Class`, and `env_args` are its constructor arguments.
    `store` is the URL of the session store, which each worker process opens once. `max_steps` is the maximum number of
    answers, by default verl's `multi_turn.max_assistant_turns`, otherwise 50.

    If the environment has a simulated user, its reply is the next user message. A tool that asks a person ends the
    episode, and the session is verified in its current state.
    """

    def __init__(
        self,
        *args: Any,
        environment: str,
        store: str = "memory://",
        env_args: Mapping[str, Any] | None = None,
        max_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._environment = _environment(environment, json.dumps(env_args or {}, sort_keys=True, default=_plain))
        if self._environment.instructions_tool is not None:
            raise DefinitionError(
                f"{self._environment.name}.instructions: verl's model reads one growing sequence, which cannot contain "
                "instructions computed from the state; put them into the tasks or the results of tools"
            )
        self._store = store
        multi_turn = self.rollout_config.multi_turn
        self._max_steps = max_steps or multi_turn.max_assistant_turns or MAX_STEPS
        self.response_length: int = self.rollout_config.response_length
        self.tool_parser = ToolParser.get_tool_parser(multi_turn.format, self.tokenizer)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Run an episode for the task row in `extra_info.row`; its prompt is verl's `raw_prompt`.

        Raises `BadTask` if the row is missing or invalid, and `EnvironmentFailed` if the environment's `seed` raises an
        error.
        """
        task = _task_row(row.get("extra_info"))
        session = await self._seed(task)
        try:
            model = _TokenModel(self, session.id, list(row["raw_prompt"]), sampling_params)
            tools = (task.get("responses_create_params") or {}).get("tools") or session.tools
            trajectory = await act(session, session.agent, Agent(model, max_steps=self._max_steps), tools)
            began = perf_counter()
            verdict = await session.verify()  # the verifier gets the whole conversation of the session
            metrics = AgentLoopMetrics(
                generate_sequences=model.seconds,
                tool_calls=trajectory.times.tool,
                compute_score=perf_counter() - began,
                num_preempted=model.preempted,
            )
        finally:
            with suppress(StateroomError):  # a session that cannot be closed expires
                await session.close()
        length, prompt, experts = self.response_length, model.prompt_length, model.routed_experts
        return AgentLoopOutput(
            prompt_ids=model.ids[:prompt],
            response_ids=model.ids[prompt : prompt + length],
            response_mask=model.mask[:length],
            response_logprobs=model.logprobs[:length] or None,
            routed_experts=None if experts is None else experts[: prompt + length],
            reward_score=verdict.reward,
            num_turns=model.turns,
            metrics=metrics,
            extra_fields={
                **model.extra_fields,
                **{"turn_scores": [], "tool_rewards": []},  # as in verl's own agent loops
                "stateroom_session": session.id,
                "stateroom_status": trajectory.status,
                "stateroom_reason": trajectory.reason,
                "stateroom_components": verdict.components,
            },
        )

    async def _seed(self, task: dict[str, Any]) -> Session[Any]:
        problem = f"{self._environment.name} cannot seed a session for {json.dumps(task):.200}"
        try:
            sessions = await _open_stores().open(self._store)
            return await sessions.of(self._environment, task).seed(task)
        except BadTask as error:
            raise BadTask(f"{problem}: {error}") from error
        except StateroomError:
            raise
        except Exception as error:
            raise EnvironmentFailed(f"{problem}: {type(error).__name__}: {error}") from error


class _TokenModel(Model):
    """Answers with tokens of verl's servers, and keeps the episode as one sequence of tokens.

    Generated tokens are never tokenised again; the tokens of results and replies are appended.
    """

    name = "verl"

    def __init__(
        self, agent_loop: StateroomAgentLoop, session: str, prompt: list[Message], sampling_params: dict[str, Any]
    ) -> None:
        self._agent_loop = agent_loop
        self._session = session
        self._messages = prompt
        self._seen = 0
        """The number of conversation items in the sequence."""
        stops = {*(sampling_params.get("stop_token_ids") or ()), *agent_loop.tool_parser.stop_token_ids}
        self._sampling_params = {**sampling_params, **({"stop_token_ids": sorted(stops)} if stops else {})}
        self.ids: list[int] = []
        self.prompt_length = 0
        self.mask: list[int] = []
        """For each token after the prompt, 1 if it was generated, otherwise 0."""
        self.logprobs: list[float] = []
        self.turns = 1
        self.seconds = 0.0
        self.preempted = -1
        self.routed_experts: Any = None
        self.extra_fields: dict[str, Any] = {}

    async def answer(self, request: Request) -> Answer:
        """Add the items since the last answer, and generate the next; an empty answer if the sequence is full."""
        tools = chat_tools(request.tools)
        if not self.ids:
            self.ids = await self._agent_loop.ct_build_initial_tokens(self._messages, tools=tools)
            self.prompt_length = len(self.ids)
        elif not await self._add(messages_of(request.items[self._seen :]), tools):
            return Answer([], truncated=True)
        read = len(self.ids)
        generated = await self._generate()
        truncated = len(self.mask) >= self._agent_loop.response_length
        items = await self._items(generated, tools, truncated=truncated)
        message = completion_message(items)
        self._messages = [*self._messages, {**message, "content": message["content"] or ""}]
        self._seen = len(request.items) + len(items)
        return Answer(items, Usage(read, len(generated)), truncated)

    async def _add(self, messages: list[Message], tools: list[Item]) -> bool:
        """Append the tokens of messages and of the start of the next answer; returns False if they do not fit."""
        before, self._messages = self._messages, [*self._messages, *messages]
        merged, mask, logprobs = await self._agent_loop.ct_merge_context_msg(
            before, self._messages, self.ids, self.mask, self.logprobs or None, tools=tools
        )
        if len(mask) >= self._agent_loop.response_length:
            return False
        self.ids, self.mask, self.logprobs = merged.token_ids, mask, logprobs or []
        self.turns += 1
        return True

    async def _generate(self) -> list[int]:
        """Let a server continue the sequence; returns the new tokens."""
        began = perf_counter()
        output: TokenOutput = await self._agent_loop.server_manager.generate(
            request_id=self._session, prompt_ids=self.ids, sampling_params=self._sampling_params
        )
        self.seconds += perf_counter() - began
        known = self.logprobs if self.logprobs or output.log_probs else None
        merged, self.mask, logprobs = await self._agent_loop.ct_merge_assistant_token(
            self.ids, output.token_ids, self.mask, known, assistant_logprobs=output.log_probs or None
        )
        self.ids, self.logprobs = merged.token_ids, logprobs or []
        self.turns += 1
        self._record(output)
        return list(output.token_ids)

    def _record(self, output: TokenOutput) -> None:
        """Store the other fields of the server's report."""
        if output.routed_experts is not None:
            self.routed_experts = output.routed_experts  # those of the whole sequence
        if output.num_preempted is not None:
            self.preempted = max(self.preempted, 0) + output.num_preempted
        for name, value in output.extra_fields.items():
            if name in SPEC_DECODE_EXTRA_KEYS:
                self.extra_fields[name] = self.extra_fields.get(name, 0) + int(value)
            elif name == "max_global_steps" and value is not None:
                self.extra_fields[name] = value
            else:
                self.extra_fields.setdefault(name, value)

    async def _items(self, generated: list[int], tools: list[Item], *, truncated: bool) -> list[Item]:
        """The message and the tool calls of an answer; a truncated answer has no calls."""
        tokenizer, parser = self._agent_loop.tokenizer, self._agent_loop.tool_parser
        if truncated:
            text, calls = tokenizer.decode(generated), []
        else:
            text, calls = await parser.extract_tool_calls(generated, [_parser_tool(**tool) for tool in tools])
        for special in tokenizer.all_special_tokens:
            text = text.replace(special, "")
        made = [
            {
                "type": "function_call",
                "call_id": call.tool_call_id or f"call_{self.turns}_{number}",
                "name": call.name,
                "arguments": call.arguments,
            }
            for number, call in enumerate(calls)
        ]
        return [*([message(text.strip())] if text.strip() or not made else []), *made]


class _OpenStores:
    """The open stores of an event loop, with the sessions in them.

    A store is closed with its event loop, which closes its async generators, or in a Ray actor, with the process.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._resources = AsyncExitStack()
        self._sessions: dict[str, StoreSessions] = {}

    async def open(self, url: str) -> StoreSessions:
        """The sessions in the store at a URL."""
        async with self._lock:
            if url not in self._sessions:
                self._sessions[url] = StoreSessions(await self._resources.enter_async_context(open_store(url)))
        return self._sessions[url]


_OPEN_STORES: dict[asyncio.AbstractEventLoop, _OpenStores] = {}


def _open_stores() -> _OpenStores:
    """The open stores of the running event loop, which no other loop can use."""
    for closed in [loop for loop in _OPEN_STORES if loop.is_closed()]:
        del _OPEN_STORES[closed]
    return _OPEN_STORES.setdefault(asyncio.get_running_loop(), _OpenStores())


@cache
def _environment(reference: str, arguments: str) -> Environment[Any, Any]:
    """The environment, cached per process, because verl creates an agent loop for every episode."""
    return make_environment(reference, json.loads(arguments))


def _plain(config: Any) -> Any:
    """A Hydra config as a plain dict or list."""
    return dict(config) if isinstance(config, Mapping) else list(config)


def _task_row(extra_info: Any) -> dict[str, Any]:
    try:
        row = json.loads(extra_info["row"])
    except (TypeError, KeyError, ValueError) as error:
        why = f"must be a task row as JSON ({type(error).__name__}: {error})"
        raise BadTask(f"extra_info.row: {why}; write the data with `stateroom export --to verl`") from None
    if not isinstance(row, dict):
        raise BadTask(f"extra_info.row: must be a task row as a JSON object, not {row!r:.100}")
    return row


def _parser_tool(type: str, function: Item) -> OpenAIFunctionToolSchema:
    """A tool in the format of verl's parsers: a type for each parameter, without the rest of the schema."""
    parameters = function.get("parameters") or {}
    types = {name: {"type": _type_of(schema)} for name, schema in parameters.get("properties", {}).items()}
    known = {"type": "object", "properties": types, "required": parameters.get("required", [])}
    definition = {"name": function["name"], "description": function.get("description") or "", "parameters": known}
    return OpenAIFunctionToolSchema(type=type, function=definition)


def _type_of(schema: Mapping[str, Any]) -> Any:
    """The type of a parameter; `object`, for which parsers accept any JSON, if it may have several."""
    kinds = [_type_of(choice) for choice in schema.get("anyOf", ())]
    others = [kind for kind in kinds if kind != "null"]
    return schema.get("type") or (others[0] if len(others) == 1 else "object")
