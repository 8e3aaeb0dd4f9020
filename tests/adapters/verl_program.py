"""What `test_verl.py` runs with the Python of verl's environment: our agent loop among verl's own classes.

Only the server is scripted, since vLLM needs a GPU. Its tokens are single letters, which the tokenizer would merge: a
text that is tokenised again has other ids.
"""

import asyncio
import json
import re
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import verl
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast, Qwen2Config
from verl import DataProto
from verl.experimental.agent_loop import agent_loop as registry
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker, DictConfigWrap, ToolListWrap
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

import stateroom.adapters.verl as adapter
from stateroom.agent import transcript
from stateroom.environment import make_environment
from stateroom.errors import BadTask, EnvironmentFailed
from stateroom.session import Sessions
from stateroom.store import HeadFilter, open_store

EXAMPLE = Path(__file__).parents[2] / "examples" / "verl"
CONFIG = str(Path(verl.__file__).parent / "trainer" / "config")

END = "<|im_end|>"
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""ChatML."""

QUIZ = '''
from stateroom import Ask, Environment, Episode, State, Verdict, tool
from stateroom.model import message_text


class Quiz(State):
    hints: int = 0


class QuizEnvironment(Environment[Quiz]):
    """Guess a word."""

    def __init__(self, word: str = "blue") -> None:
        self.word = word

    def seed(self, task) -> Quiz:
        if task.broken:
            raise RuntimeError("the word is lost")
        return Quiz()

    @tool
    def hint(self, state: Quiz, places: list[int] | None = None) -> str:
        """Some letters of the word."""
        state.hints += 1
        return "".join(self.word[place] for place in places or [0])

    @tool
    def beg(self, state: Quiz, ask: Ask) -> str:
        """Ask a person for the word."""
        return ask("Which word is it?")

    def reply(self, state: Quiz, message: str) -> str | None:
        return None if self.word in message else "No. Guess again."

    def verify(self, state: Quiz, episode: Episode) -> Verdict:
        said = message_text(episode.response["output"])
        return Verdict(float(self.word in said), {"hints": float(state.hints)})
'''

Script = Callable[[str], str]
"""Gives the answer to a prompt."""

ROW = {"initial_count": 12, "expected_count": 21, "responses_create_params": {"input": "add 2, then add 7"}}


class Generated(NamedTuple):
    """One request to the server, and what it answered."""

    request: str
    prompt: list[int]
    ids: list[int]
    log_probs: list[float]


class ScriptedServer:
    """verl's server manager, as far as an agent loop uses it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, script: Script) -> None:
        self.tokenizer = tokenizer
        self.script = script
        self.generated: list[Generated] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        await asyncio.sleep(0)  # other episodes go on meanwhile
        text = self.script(self.tokenizer.decode(prompt_ids))
        letters = [self.tokenizer.encode(letter, add_special_tokens=False) for letter in text]
        ids = [*(number for letter in letters for number in letter), self.tokenizer.eos_token_id]
        log_probs = [-0.01 * (place + 1) for place in range(len(ids))]
        self.generated.append(Generated(request_id, list(prompt_ids), ids, log_probs))
        steps = {"min_global_steps": len(self.generated), "max_global_steps": len(self.generated)}
        return TokenOutput(
            token_ids=ids, log_probs=log_probs, stop_reason="completed", num_preempted=1, extra_fields=steps
        )


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def results(prompt: str) -> list[str]:
    return re.findall("<tool_response>(.*?)</tool_response>", prompt)


def solve(prompt: str) -> str:
    """The additions that the prompt asks for, then a look at the counter, then its value."""
    additions = [int(number) for number in re.findall(r"add (\d+)", prompt)]
    done = results(prompt)
    if len(done) < len(additions):
        return "I add." + call("increment_counter", count=additions[len(done)])
    return call("get_counter_value") if len(done) == len(additions) else f"The counter is at {done[-1]}."


def err(prompt: str) -> str:
    return call("increment_counter", count=3) if not results(prompt) else "Done."


def in_turn(*answers: str) -> Script:
    """A script that gives these answers one after the other."""
    left = iter(answers)
    return lambda prompt: next(left)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE with a few merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("c", "o"), ("u", "n"), ("co", "un"), ("t", "e"), ("te", "r"), ("coun", "ter"), ("a", "d"), ("ad", "d")]
    special = [END, "<|im_start|>", "<|endoftext|>"]
    vocabulary = [*letters, *("".join(merge) for merge in merges), *special]
    made = Tokenizer(BPE({token: number for number, token in enumerate(vocabulary)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=END, pad_token=special[2], additional_special_tokens=[special[1]]
    )
    fast.chat_template = TEMPLATE
    return fast


@pytest.fixture
def quiz(tmp_path: Path) -> str:
    """The environment of `QUIZ`, by its file."""
    (tmp_path / "quiz.py").write_text(QUIZ)
    return f"{tmp_path / 'quiz.py'}:QuizEnvironment"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'rooms.db'}"


@pytest.fixture
def configured() -> Iterator[dict[str, Any]]:
    """The arguments of the agent loop in the example's file; verl's registry is afterwards as before."""
    before = dict(registry._agent_loop_registry)
    [loaded] = OmegaConf.to_container(OmegaConf.load(EXAMPLE / "agent_loop.yaml"))
    yield loaded
    registry._agent_loop_registry.clear()
    registry._agent_loop_registry.update(before)


def config(*overrides: str) -> DictConfig:
    """The configuration of verl itself, with these changes."""
    required = ["actor_rollout_ref.rollout.name=vllm", "data.max_prompt_length=4096", "data.max_response_length=4096"]
    with initialize_config_dir(config_dir=CONFIG, version_base=None):
        return compose("ppo_trainer", overrides=[*required, *overrides])


def agent_loop(server: ScriptedServer, url: str, *overrides: str, **arguments: Any) -> Any:
    """An agent loop, as verl's worker makes it."""
    whole = config(*overrides)
    return instantiate(
        OmegaConf.create({"_target_": "stateroom.adapters.verl.StateroomAgentLoop", "store": url, **arguments}),
        trainer_config=DictConfigWrap(whole),
        server_manager=server,
        tokenizer=server.tokenizer,
        processor=None,
        hf_model_type="qwen2",
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(whole.data),
        tools=ToolListWrap([]),
    )


class Room:
    """A server that answers by a script, and the episodes that are run on it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, url: str) -> None:
        self.tokenizer = tokenizer
        self.url = url
        self.server = ScriptedServer(tokenizer, solve)

    async def run(
        self, script: Script, *overrides: str, row: Any = ROW, environment: str = "counter", **arguments: Any
    ) -> AgentLoopOutput:
        """Run one row of verl's data."""
        self.server.script = script
        made = agent_loop(self.server, self.url, *overrides, environment=environment, **arguments)
        prompt = [{"role": "user", "content": row["responses_create_params"]["input"]}]
        columns = {"raw_prompt": prompt, "extra_info": {"index": 0, "row": json.dumps(row)}, "priority": np.int64(3)}
        output: AgentLoopOutput = await made.run({"temperature": 1.0, "logprobs": True}, **columns)
        return output

    def said(self, output: AgentLoopOutput) -> str:
        """All after the prompt, as text."""
        return str(self.tokenizer.decode(output.response_ids))


@pytest.fixture
def room(tokenizer: PreTrainedTokenizerFast, url: str) -> Room:
    return Room(tokenizer, url)


@pytest.mark.parametrize(("script", "reward"), [(solve, 1.0), (err, 0.0)])
async def test_an_episode_has_the_verifier_s_reward(room: Room, script: Script, reward: float) -> None:
    output = await room.run(script)
    assert output.reward_score == reward
    assert output.extra_fields["stateroom_status"] == "completed"
    given = output.as_dict()  # to verl's trainer
    assert given["rm_scores"].tolist() == [0.0] * (len(output.response_ids) - 1) + [reward]


async def test_only_what_was_generated_is_trained_on(room: Room) -> None:
    output = await room.run(solve)
    generated = room.server.generated
    marked = list(zip(output.response_ids, output.response_mask, output.response_logprobs or [], strict=True))
    assert [number for number, mask, _ in marked if mask] == [number for each in generated for number in each.ids]
    assert [known for _, mask, known in marked if mask] == [known for each in generated for known in each.log_probs]
    assert {known for _, mask, known in marked if not mask} == {0.0}
    assert results(room.tokenizer.decode([number for number, mask, _ in marked if not mask])) == [
        '{"success":true}',
        '{"success":true}',
        '{"count":21}',
    ]
    assert output.num_turns == 8  # the prompt, four answers and three results
    assert output.metrics.num_preempted == 4
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (1, 4)


async def test_nothing_is_tokenised_again(room: Room) -> None:
    output = await room.run(solve)
    first, *others = room.server.generated
    assert first.prompt == output.prompt_ids
    for before, after in zip(room.server.generated, others, strict=False):
        assert after.prompt[: len(before.prompt) + len(before.ids)] == [*before.prompt, *before.ids]
    whole = [*output.prompt_ids, *output.response_ids]
    assert whole == [*others[-1].prompt, *others[-1].ids]
    again = room.tokenizer.encode(room.tokenizer.decode(whole), add_special_tokens=False)
    assert whole != again  # or this test could not fail
    assert len({each.request for each in room.server.generated}) == 1  # verl sends an episode to one server


async def test_the_model_is_shown_the_tools_once_and_each_turn_as_the_template_has_it(room: Room) -> None:
    output = await room.run(solve)
    prompt, said = room.tokenizer.decode(output.prompt_ids), room.said(output)
    assert (prompt + said).count('"name": "increment_counter", "description"') == 1
    assert prompt.endswith(f"<|im_start|>user\nadd 2, then add 7{END}\n<|im_start|>assistant\n")
    added = f'{END}\n<|im_start|>user\n<tool_response>{{"success":true}}</tool_response>{END}\n<|im_start|>assistant\n'
    assert said.count(added) == 2


async def test_the_session_has_the_calls_the_conversation_and_the_verdict(room: Room) -> None:
    output = await room.run(solve)
    async with open_store(room.url) as store:
        sessions = Sessions[Any](make_environment("counter"), store)
        session = await sessions.open(output.extra_fields["stateroom_session"], include_closed=True)
        assert [entry.input async for entry in session.log(kinds={"call"})] == [{"count": 2}, {"count": 7}]
        assert session.verdict is not None
        assert session.verdict.reward == 1.0
        assert session.closed
        said = [item for each in await transcript(store, session.id) for item in each.items]
    kinds = ["message"] + ["message", "function_call", "function_call_output"] * 2
    assert [item["type"] for item in said] == [*kinds, "function_call", "function_call_output", "message"]
    assert said[-1]["content"][0]["text"] == 'The counter is at {"count":21}.'


async def test_episodes_at_the_same_time_are_isolated(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    stores: list[str] = []

    def opening(url: str) -> Any:
        stores.append(url)
        return open_store(url)

    monkeypatch.setattr(adapter, "open_store", opening)
    rows: list[Any] = [{**ROW, "initial_count": start, "expected_count": start + 9} for start in range(8)]
    outputs = await asyncio.gather(*(room.run(solve, row=row) for row in rows))
    assert [output.reward_score for output in outputs] == [1.0] * 8
    shown = [results(room.said(output))[-1] for output in outputs]
    assert shown == [f'{{"count":{start + 9}}}' for start in range(8)]
    assert stores == [room.url]


def test_each_event_loop_opens_its_own_store(room: Room) -> None:
    assert [asyncio.run(room.run(solve)).reward_score for _ in range(2)] == [1.0, 1.0]
    assert len([loop for loop in adapter._OPEN_STORES if loop.is_closed()]) <= 1  # the last one, until the next episode


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (call("no_such_tool"), "unknown_tool"),
        (call("increment_counter", count="many"), "invalid_arguments"),
        ('<tool_call>{"name": "increment_counter", "arguments": [1]}</tool_call>', "invalid_arguments"),
    ],
)
async def test_a_failed_call_is_a_result(room: Room, wrong: str, code: str) -> None:
    output = await room.run(in_turn(wrong, call("increment_counter", count=9), "Done."))
    first, second = map(json.loads, results(room.said(output)))
    assert first["error"]["code"] == code
    assert second == {"success": True}
    assert output.reward_score == 1.0


async def test_all_calls_of_an_answer_run_in_order(room: Room) -> None:
    both = call("increment_counter", count=9) + call("get_counter_value")
    output = await room.run(in_turn(both, "Done."))
    assert results(room.said(output)) == ['{"success":true}', '{"count":21}']
    assert output.num_turns == 4


@pytest.mark.parametrize(
    ("overrides", "arguments"),
    [([], {"max_steps": 3}), (["actor_rollout_ref.rollout.multi_turn.max_assistant_turns=3"], {})],
)
async def test_an_episode_ends_after_so_many_answers(room: Room, overrides: Any, arguments: Any) -> None:
    output = await room.run(lambda prompt: call("increment_counter", count=1), *overrides, **arguments)
    assert len(room.server.generated) == 3
    assert output.extra_fields["stateroom_reason"] == "max_steps"


async def test_an_answer_that_is_too_long_makes_no_calls(room: Room) -> None:
    script = in_turn("x" * 80 + call("increment_counter", count=9))
    output = await room.run(script, "data.max_response_length=90")
    assert output.response_ids == room.server.generated[0].ids[:90]
    assert output.response_mask == [1] * 90
    assert len(output.response_logprobs or []) == 90
    assert output.reward_score == 0.0
    assert output.extra_fields["stateroom_reason"] == "max_output_tokens"


async def test_a_result_that_does_not_fit_is_left_out(room: Room) -> None:
    answer = call("increment_counter", count=9)
    output = await room.run(in_turn(answer), f"data.max_response_length={len(answer) + 20}")
    assert output.response_ids == room.server.generated[0].ids
    assert output.reward_score == 1.0  # the call has run
    assert output.extra_fields["stateroom_status"] == "incomplete"


async def test_a_server_without_log_probabilities_will_do(room: Room) -> None:
    class Silent(ScriptedServer):
        async def generate(self, *args: Any, **kwargs: Any) -> TokenOutput:
            return (await super().generate(*args, **kwargs)).model_copy(update={"log_probs": None})

    room.server = Silent(room.tokenizer, solve)
    output = await room.run(solve)
    assert output.response_logprobs is None
    assert output.reward_score == 1.0


GUESS = {"broken": False, "responses_create_params": {"input": "Guess."}}


async def test_the_user_s_reply_is_the_next_message(room: Room, quiz: str) -> None:
    script = in_turn("Is it red?", call("hint", places=[0, 1]), "Then it is green!")
    output = await room.run(script, row=GUESS, environment=quiz, env_args={"word": "green"})
    said = room.said(output)
    assert said.startswith(f"Is it red?{END}\n<|im_start|>user\nNo. Guess again.{END}\n<|im_start|>assistant\n")
    assert results(said) == ['"gr"']
    assert output.reward_score == 1.0  # by what was said
    assert output.extra_fields["stateroom_components"] == {"hints": 1.0}


async def test_an_episode_ends_where_a_tool_asks_a_person(room: Room, quiz: str) -> None:
    output = await room.run(in_turn(call("hint") + call("beg")), row=GUESS, environment=quiz)
    assert output.response_ids == room.server.generated[0].ids
    assert output.extra_fields["stateroom_status"] == "waiting"
    assert output.extra_fields["stateroom_components"] == {"hints": 1.0}


async def test_an_environment_without_a_state_will_do(room: Room) -> None:
    row = {"responses_create_params": {"input": "What is the weather in Porto?"}}
    script = in_turn(call("get_weather", city="Porto"), "Cold.")
    assert (await room.run(script, row=row, environment="weather")).reward_score == 1.0


async def test_verl_s_parsers_are_given_the_types_of_parameters(room: Room, quiz: str) -> None:
    asked = "<tool_call>\n<function=hint>\n<parameter=places>\n[1, 3]\n</parameter>\n</function>\n</tool_call>"
    format = "actor_rollout_ref.rollout.multi_turn.format=qwen3_coder"
    output = await room.run(in_turn(asked, "It is blue."), format, row=GUESS, environment=quiz)
    assert results(room.said(output)) == ['"le"']


async def test_a_session_that_cannot_be_seeded_is_a_clear_error(room: Room, quiz: str) -> None:
    asked = {"responses_create_params": {"input": "add 1"}}
    with pytest.raises(BadTask, match=r"counter cannot seed .*expected_count"):
        await room.run(solve, row={**asked, "initial_count": 1})
    with pytest.raises(EnvironmentFailed, match=r"quiz cannot seed .*RuntimeError: the word is lost"):
        await room.run(solve, row={**asked, "broken": True}, environment=quiz)
    assert room.server.generated == []


@pytest.mark.parametrize("extra_info", [None, {}, {"row": None}, {"row": "{"}, {"row": "[1]"}])
def test_data_without_a_task_row_is_refused(extra_info: Any) -> None:
    with pytest.raises(BadTask, match=r"extra_info\.row"):
        adapter._task_row(extra_info)


async def test_an_episode_whose_server_fails_leaves_a_closed_session(room: Room) -> None:
    def fail(prompt: str) -> str:
        raise ConnectionError("the server is gone")

    with pytest.raises(Exception, match="the server is gone"):
        await room.run(fail)
    async with open_store(room.url) as store:
        [head] = await store.heads()
    assert head.closed


async def test_verl_s_worker_runs_batches_by_the_example_s_file(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, configured: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert configured["name"] not in registry._agent_loop_registry  # or it would replace what the file says
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rollouts").mkdir()
    tokenizer.save_pretrained(tmp_path / "model")
    Qwen2Config(architectures=["Qwen2ForCausalLM"]).save_pretrained(tmp_path / "model")
    model = f"actor_rollout_ref.model.path={tmp_path / 'model'}"
    file = f"actor_rollout_ref.rollout.agent.agent_loop_config_path={EXAMPLE / 'agent_loop.yaml'}"
    eager = "+actor_rollout_ref.model.override_config.attn_implementation=eager"
    server = ScriptedServer(tokenizer, solve)
    worker = AgentLoopWorker(config(model, file, eager), server)
    rows: list[Any] = [{**ROW, "initial_count": start, "expected_count": 21} for start in (12, 13)]
    columns = {
        "raw_prompt": [[{"role": "user", "content": row["responses_create_params"]["input"]}] for row in rows],
        "extra_info": [{"index": index, "row": json.dumps(row)} for index, row in enumerate(rows)],
        "agent_name": [configured["name"]] * 2,
    }
    arrays = {name: np.empty(2, dtype=object) for name in columns}
    for name, values in columns.items():
        arrays[name][:] = values
    batch = DataProto(batch=TensorDict({"dummy": torch.zeros(2, 1)}, batch_size=2), non_tensor_batch=arrays)
    for _ in range(2):
        output = await worker.generate_sequences(batch)
        assert output.batch["rm_scores"].sum(dim=1).tolist() == [1.0, 0.0]
        trained = output.batch["response_mask"].sum(dim=1).tolist()
        assert trained == [
            sum(len(each.ids) for each in server.generated if each.request == session)
            for session in output.non_tensor_batch["stateroom_session"]
        ]
    assert configured["store"] == "sqlite:///rollouts/verl.db"
    async with open_store(configured["store"]) as store:
        assert len(await store.heads(HeadFilter(environment=configured["environment"]))) == 4


async def test_the_rows_of_an_export_can_be_run(room: Room, tmp_path: Path) -> None:
    for command in (
        "run counter --limit 3 --output run.jsonl",
        "export run.jsonl --to verl --output rows.parquet",
    ):
        program = [sys.executable, "-m", "stateroom.cli", *command.split()]
        process = await asyncio.create_subprocess_exec(*program, cwd=tmp_path, stdout=DEVNULL)
        assert await process.wait() == 0
    data = RLHFDataset(str(tmp_path / "rows.parquet"), room.tokenizer, config().data)
    made = agent_loop(room.server, room.url, environment="counter")
    outputs = [await made.run({}, **data[index]) for index in range(len(data))]
    assert [output.reward_score for output in outputs] == [1.0] * 3


def test_the_example_s_options_are_those_of_verl() -> None:
    text = (EXAMPLE / "grpo_counter.sh").read_text()
    options = re.findall(r"^ +(\+?[a-z_]+\.[\w.]+=\S+)", text, re.MULTILINE)
    assert len(options) > 10
    made = config(*(option.replace("$PWD", "/work") for option in options))
    assert made.algorithm.adv_estimator == "grpo"
    assert made.actor_rollout_ref.rollout.multi_turn.format == "hermes"
