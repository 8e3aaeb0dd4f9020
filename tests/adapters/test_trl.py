import asyncio
import json
import pickle
import subprocess
import sys
from functools import wraps
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

import pytest
import torch
from pydantic import BaseModel, Field
from transformers.utils import get_json_schema
from trl import GRPOTrainer

from stateroom import Environment, Episode, State, tool
from stateroom.adapters.trl import (
    PooledEnvironment,
    Spec,
    StateroomTrainer,
    spec,
    verified_reward,
)
from stateroom.adapters.trl.environment import background_loop, reads_response
from stateroom.environment import make_environment
from stateroom.errors import BadTask, DefinitionError, EnvironmentFailed, InvalidArguments, SessionClosed
from stateroom.gallery import CounterEnvironment
from stateroom.model import chat_tools
from stateroom.rollout import replay_session
from stateroom.session import History, Sessions
from stateroom.store import Store, open_store
from stateroom.training import sequences
from tests.adapters.trl_model import END, make_model, make_tokenizer, settings
from tests.messages import raises
from tests.plain_counter import PlainCounterEnvironment

pytestmark = [
    pytest.mark.more("TRL"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),  # TRL's own
]

ROWS = [
    {"responses_create_params": {"input": f"Add 2 to {start}."}, "initial_count": start, "expected_count": start + 2}
    for start in range(4)
]


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'rooms.db'}"


@pytest.fixture
async def store(url: str) -> Any:
    async with open_store(url) as opened:
        yield opened


def begun(environment: Any, url: str = "memory://") -> tuple[Any, dict[str, Any]]:
    """An instance in the first episode of an environment, and the episode's row."""
    made = spec(environment, store=url)
    instance: Any = made.environment_factory()
    instance.reset(**made.train_dataset[0])
    return instance, json.loads(made.train_dataset[0]["row"])


def schemas(instance: PooledEnvironment) -> dict[str, Any]:
    """The schemas of the tools that TRL finds on an instance."""
    names = [name for name in vars(type(instance)) if not name.startswith("_") and name != "get_reward"]
    return {name: get_json_schema(getattr(instance, name))["function"] for name in names}


@pytest.mark.parametrize("name", ["counter", "extraction", "refund"])
def test_the_schemas_are_those_of_the_environment(name: str) -> None:
    def without_ours(definition: dict[str, Any]) -> dict[str, Any]:
        parameters = {**definition["parameters"]}
        assert definition["strict"]
        assert parameters.pop("additionalProperties") is False
        if not parameters["required"]:
            del parameters["required"]
        return {"name": definition["name"], "description": definition["description"], "parameters": parameters}

    ours = {each["name"]: without_ours(each) for each in make_environment(name).tool_definitions()}
    assert schemas(spec(name).environment_factory()) == ours


class Place(BaseModel):
    city: str


class Thing(State):
    pass


class Wide(Environment[Thing]):
    """Has parameters of many kinds."""

    @tool
    def go(
        self,
        state: Thing,
        place: Place,
        how: Literal["foot", "train"],
        days: int = 1,
        hours: float | None = None,
        names: list[dict[str, int]] = [],  # noqa: B006
        weight: int = Field(default=3, ge=0),
    ) -> str:
        """Go somewhere. Returns: nothing.

        Args:
            place: Where to.
            how: How to go there.
                By train if it is far.
            days: For how long, Args: and all.
            hours: And how many more.
            names: Of what.
        """
        return "gone"

    def verify(self, state: Thing) -> float:
        return 1.0


def test_what_transformers_cannot_describe_is_left_out() -> None:
    row = {"responses_create_params": {"input": "Go."}}
    assert schemas(spec(Wide, input=[row]).environment_factory())["go"] == {
        "name": "go",
        "description": "Go somewhere. Returns nothing.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "object", "description": "Where to."},
                "how": {
                    "type": "string",
                    "enum": ["foot", "train"],
                    "description": "How to go there. By train if it is far.",
                },
                "days": {"type": "integer", "description": "For how long, Args and all."},
                "hours": {"type": "number", "nullable": True, "description": "And how many more."},
                "names": {
                    "type": "array",
                    "items": {"type": "object", "additionalProperties": {"type": "integer"}},
                    "description": "Of what.",
                },
                "weight": {"type": "integer", "description": "weight"},
            },
            "required": ["place", "how"],
        },
    }


def test_a_tool_named_get_reward_is_refused() -> None:
    class Rewarding(Environment[Thing]):
        @tool
        def get_reward(self, state: Thing) -> str:
            """Get one."""
            return ""

        def verify(self) -> float:
            return 0.0

    with raises(DefinitionError):
        spec(Rewarding, input=[{"responses_create_params": {"input": "Go."}}]).environment_factory()


def test_instructions_that_trls_own_loop_cannot_show_are_refused() -> None:
    class Telling(CounterEnvironment):
        def instructions(self, state: Any) -> str:
            return f"The counter is at {state.value}."

    with raises(DefinitionError):
        spec(Telling, input=ROWS).environment_factory()


def test_the_dataset_has_prompts_and_whole_rows() -> None:
    rows = [{**ROWS[0], "extra": {"a": 1}}, {**ROWS[1], "extra": {"b": [2]}}]
    rows[1]["responses_create_params"] = {"input": [{"role": "user", "content": "Add."}], "instructions": "Be quick."}
    dataset = spec("counter", input=rows).train_dataset
    assert dataset["prompt"][0] == [{"role": "user", "content": "Add 2 to 0."}]
    assert dataset["prompt"][1] == [
        {"role": "system", "content": "Be quick."},
        {"role": "user", "content": "Add."},
    ]
    assert [json.loads(row) for row in dataset["row"]] == rows
    assert len(spec("counter", input=rows, limit=1).train_dataset) == 1


def test_a_task_without_a_prompt_is_refused() -> None:
    with raises(BadTask):
        spec("counter", input=[{"initial_count": 0, "expected_count": 1}])


async def test_an_episode_is_a_session(url: str, store: Store) -> None:
    counter, row = begun(PlainCounterEnvironment, url)
    missing = row["expected_count"] - row["initial_count"]
    assert json.loads(counter.increment_counter(count=missing)) == {"success": True}
    assert json.loads(counter.get_counter_value()) == {"count": row["expected_count"]}
    assert counter.get_reward() == 1.0
    [head] = await store.heads()
    assert head.closed
    log = [(entry.kind, entry.name, entry.input) async for entry in History(store).entries(head.id)]
    assert log == [
        ("seed", None, row),
        ("call", "increment_counter", {"count": missing}),
        ("verdict", None, None),
        ("close", None, None),
    ]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"count": "much"}, "count"), ({}, "count"), ({"count": 1, "sum": 2}, "sum")],
)
def test_a_failed_call_is_text_for_the_model(arguments: dict[str, Any], field: str) -> None:
    counter, row = begun("counter")
    error = json.loads(counter.increment_counter(**arguments))["error"]
    assert error["code"] == "invalid_arguments"
    assert [*error["fields"]] == [field]
    assert json.loads(counter.get_counter_value()) == {"count": row["initial_count"]}


async def test_reset_closes_the_episode_before(url: str, store: Store) -> None:
    made = spec("counter", store=url)
    counter = made.environment_factory()
    for row in made.train_dataset.select(range(2)):
        counter.reset(**row)
    newest, oldest = await store.heads()
    assert (newest.closed, oldest.closed) == (False, True)


def test_in_memory_only_the_last_session_is_kept() -> None:
    made = spec(PlainCounterEnvironment)
    counter: Any = made.environment_factory()
    for row in made.train_dataset:
        counter.reset(**row)
        counter.get_reward()
    heads = background_loop().run(counter._opened._sessions.store.heads())
    assert [head.id for head in heads] == [counter._session.id]


def test_runs_with_the_same_settings_have_the_same_seeds() -> None:
    def seeds(seed: int) -> list[int]:
        made = spec("counter", seed=seed, limit=2)
        counter: Any = made.environment_factory()
        found = []
        for row in [*made.train_dataset, *made.train_dataset]:
            counter.reset(**row)
            found.append(counter._session._open.cached.progress.seed)
        return found

    first = seeds(0)
    assert len({*first}) == 4
    assert first == seeds(0)
    assert {*first}.isdisjoint(seeds(1))


def test_a_verifier_that_reads_the_response_is_given_the_completion() -> None:
    made = spec("extraction", limit=2)
    instances: list[Any] = [made.environment_factory() for _ in range(2)]
    for instance, row in zip(instances, made.train_dataset, strict=True):
        instance.reset(**row)
        assert not hasattr(instance, "get_reward")
    right, other = (json.loads(row)["expected_synonym_values"] for row in made.train_dataset["row"])

    def completion(*values: list[int]) -> list[dict[str, Any]]:
        calls = [{"name": "extract_synonym_values", "arguments": {"synonym_values": each}} for each in values]
        return [
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": each}]}
            if is_call
            else {"role": "tool", "name": each["name"], "content": '{"success":true}'}
            for each in calls
            for is_call in (True, False)
        ] + [{"role": "assistant", "content": "Done."}]

    [reward] = made.reward_funcs
    assert reward is verified_reward
    told = reward(prompts=[], completions=[completion([0], right), completion(other, [0])], environments=instances)
    assert told == [1.0, 0.0]
    with pytest.raises(SessionClosed):
        instances[0].extract_synonym_values(synonym_values=[])


def test_results_of_calls_name_their_calls() -> None:
    instance, _ = begun("weather")
    calls = [
        {"type": "function", "function": {"name": "get_weather", "arguments": {"city": city}}}
        for city in ("Rome", "Bonn")
    ]
    results = [{"role": "tool", "name": "get_weather", "content": city} for city in ("Rome", "Bonn")]
    turn = [{"role": "assistant", "content": "", "tool_calls": calls}, *results]
    output = instance._response([*turn, *turn, {"role": "assistant", "content": "Warm."}])["output"]
    asked = [item["call_id"] for item in output if item["type"] == "function_call"]
    told = [item["call_id"] for item in output if item["type"] == "function_call_output"]
    assert asked == told == ["call_0", "call_1", "call_2", "call_3"]
    assert all("id" in item for item in output if item["type"] != "function_call_output")


def test_rewards_are_only_given_to_environments_that_need_them() -> None:
    counter, _ = begun(PlainCounterEnvironment)
    assert verified_reward(completions=[[], []], environments=[object(), counter]) == [None, None]


class Plain(Environment[Thing]):
    def verify(self, state: Thing) -> float:
        return 1.0


class ByTask(Environment[Thing]):
    def verify(self, state: Thing, episode: Episode) -> float:
        return float(episode.task.a + episode.task.b)


class ByHelper(Environment[Thing]):
    def verify(self, episode: Episode) -> float:
        return float(bool(episode.task) and len(str(episode)))


class ByResponse(Environment[Thing]):
    def verify(self, episode: Episode) -> float:
        return float(bool(episode.response))


class ByCalls(Environment[Thing]):
    def verify(self, episode: Episode) -> float:
        return float(len(episode.calls()))


def halved(verify: Any) -> Any:
    @wraps(verify)
    def verify_half(self: Any, episode: Episode) -> float:
        return float(verify(self, episode)) / (2 if episode.response else 1)

    return verify_half


class Decorated(Environment[Thing]):
    @halved
    def verify(self, episode: Episode) -> float:
        return float(episode.task.a)


class Inherited(ByTask):
    def verify(self, state: Thing, episode: Episode) -> float:
        return super().verify(state, episode)


@pytest.mark.parametrize(
    ("environment", "reads"),
    [
        (Plain, False),
        (ByTask, False),
        (ByHelper, True),
        (ByResponse, True),
        (ByCalls, True),
        (Inherited, True),
        (Decorated, True),
    ],
)
def test_what_a_verifier_reads_is_known(environment: type[Environment[Any, Any]], reads: bool) -> None:
    assert reads_response(environment()) is reads


def test_a_copy_finds_what_is_open() -> None:
    made = spec("counter")
    copy = pickle.loads(pickle.dumps(made))
    assert copy.train_dataset["row"] == made.train_dataset["row"]
    assert copy.environment_factory()._opened is made.environment_factory()._opened
    assert spec("counter").environment_factory()._opened is not made.environment_factory()._opened


async def test_another_process_has_its_own_and_ends_quietly(url: str, store: Store, tmp_path: Path) -> None:
    made = spec("counter", store=url)
    file = tmp_path / "spec.pickle"
    file.write_bytes(pickle.dumps(made))
    program = f"""
import pickle, pathlib
made = pickle.loads(pathlib.Path({str(file)!r}).read_bytes())
counter = made.environment_factory()
counter.reset(**made.train_dataset[0])
print(counter.increment_counter(count=1))
"""
    told = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.stdout, told.stderr) == ('{"success":true}\n', "")
    [head] = await store.heads()
    assert head.revision == 2


async def check_replays(store: Store, environment: str = "counter") -> list[float]:
    """Replay all closed sessions of a store; gives their rewards."""
    sessions = Sessions[Any](make_environment(environment), store)
    rewards = []
    for head in await store.heads(limit=100):
        session = await sessions.open(head.id, include_closed=True)
        if session.verdict is not None:
            replay = await replay_session(make_environment(environment), store, head.id)
            assert (replay.refused, replay.differences) == (None, [])
            rewards.append(session.verdict.reward)
    return rewards


def weights(model: Any) -> list[float]:
    return [float(each.detach().double().sum()) for each in model.parameters()]


async def test_grpo_trains_in_sessions_that_replay(url: str, store: Store, tmp_path: Path) -> None:
    made = spec("counter", input=ROWS, store=url)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    before = weights(model)
    trainer = GRPOTrainer(
        model,
        args=settings(tmp_path, tokenizer),
        processing_class=tokenizer,
        train_dataset=made.train_dataset,
        environment_factory=made.environment_factory,
        reward_funcs=made.reward_funcs,
    )
    trainer.train()
    assert weights(model) != before
    rewards = await check_replays(store)
    assert len(rewards) == 16
    assert {*rewards} == {0.0, 1.0}


class Watched(StateroomTrainer):
    """Notes the sizes of the batches that it generates, and the advantages that its loss is given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[int] = []
        self.advantages: list[tuple[tuple[int, ...], list[list[float]]]] = []

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        self.batches.append(len(prompt_ids))
        return super()._generate_single_turn(prompt_ids, *args, **kwargs)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.advantages.append((tuple(inputs["completion_ids"].shape), inputs["advantages"].tolist()))
        return super()._compute_loss(model, inputs)


class Training:
    """A tiny model that is trained in an environment by rollouts of ours, which are kept."""

    def __init__(self, folder: Path, made: Spec | None = None, how: Any = "grpo", n: int = 4, **others: Any) -> None:
        self.made = made or spec("counter", input=ROWS)
        self.function = self.made.rollout_func(how, n)
        self.results: list[dict[str, list[Any]]] = []
        self.tokenizer = make_tokenizer()
        self.trainer = Watched(
            make_model(self.tokenizer),
            args=settings(folder, self.tokenizer, **others),
            processing_class=self.tokenizer,
            train_dataset=self.made.train_dataset,
            rollout_func=self.roll_out,
        )

    def roll_out(self, prompts: Any, trainer: Any) -> dict[str, list[Any]]:
        self.results.append(self.function(prompts, trainer))
        return self.results[-1]

    def of_tasks(self, times: int, tasks: int = 1) -> dict[str, list[Any]]:
        """Rollouts of the first tasks, of each so many times."""
        prompts = [self.made.train_dataset[number]["prompt"] for number in range(tasks) for _ in range(times)]
        return self.roll_out(prompts, self.trainer)

    @property
    def rollouts(self) -> list[dict[str, Any]]:
        return [
            {name: values[number] for name, values in result.items()}
            for result in self.results
            for number in range(len(result["reward"]))
        ]


async def tokens_in(store: Store) -> list[tuple[list[int], list[int], list[float]]]:
    """The tokens of all episodes in a store up to the last one that a model has written."""
    found = []
    for head in await store.heads(limit=1000):
        entries = [entry async for entry in History(store).entries(head.id)]
        items = [item for entry in entries if entry.kind == "message" for item in entry.facts["items"]]
        if entries[-1].kind == "close" and items:
            [sequence] = sequences({"response": {"output": items}})
            stop = max(step.stop for step in sequence.steps if step.stop > step.start)
            found.append((sequence.ids[:stop], sequence.mask[:stop], sequence.log_probs[:stop]))
    return found


def tokens_of(rollout: dict[str, Any]) -> tuple[list[int], list[int], list[float]]:
    before = len(rollout["prompt_ids"])
    return (
        rollout["prompt_ids"] + rollout["completion_ids"],
        [0] * before + rollout["env_mask"],
        [0.0] * before + rollout["logprobs"],
    )


async def test_rollouts_have_the_tokens_of_their_sessions(url: str, store: Store, tmp_path: Path) -> None:
    training = Training(tmp_path, spec("counter", input=ROWS, store=url))
    before = weights(training.trainer.model)
    training.trainer.train()
    assert weights(training.trainer.model) != before
    assert sorted(map(tokens_of, training.rollouts)) == sorted(await tokens_in(store))
    assert sorted(each["reward"] for each in training.rollouts) == sorted(await check_replays(store))
    tokenizer = training.tokenizer
    tools = chat_tools(make_environment("counter").tool_definitions())
    prompts = {
        tokenizer.apply_chat_template(prompt, tools=tools, add_generation_prompt=True, tokenize=False)
        for prompt in training.made.train_dataset["prompt"]
    }
    assert {tokenizer.decode(each["prompt_ids"]) for each in training.rollouts} == prompts
    written = [each["completion_ids"] for each in training.rollouts]
    assert any(tokenizer.encode(tokenizer.decode(ids)) != ids for ids in written)  # to tokenise again would show
    assert any('{"success":true}' in tokenizer.decode(ids) for ids in written)


def test_the_log_probabilities_are_those_of_the_model(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.of_tasks(4)
    for each in training.rollouts:
        ids = torch.tensor([each["prompt_ids"] + each["completion_ids"]])
        with torch.no_grad():
            told = training.trainer.model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        own = told[-len(each["completion_ids"]) :] * torch.tensor(each["env_mask"])
        assert each["logprobs"] == pytest.approx(own.tolist(), abs=1e-4)


@pytest.mark.parametrize("how", ["grpo", "rloo", "vine"])
def test_the_loss_has_an_advantage_for_each_token(how: Any, tmp_path: Path) -> None:
    training = Training(tmp_path, how=how, n=2)
    training.trainer.train()
    assert len(training.trainer.advantages) == 2
    for result, (shape, given) in zip(training.results, training.trainer.advantages, strict=True):
        assert (len(given), len(given[0])) == shape == (8, max(map(len, result["completion_ids"])))
        padded = [each + [0.0] * (shape[1] - len(each)) for each in result["token_advantages"]]
        assert sorted(given) == [pytest.approx(each) for each in sorted(padded)]
    for each in training.rollouts:
        assert not any(value for value, own in zip(each["token_advantages"], each["env_mask"], strict=True) if not own)
    assert any(any(each["token_advantages"]) for each in training.rollouts)


def test_a_group_is_compared_with_itself(tmp_path: Path) -> None:
    training = Training(tmp_path)
    rollouts = training.of_tasks(8, tasks=2)
    for number, ids in enumerate(rollouts["prompt_ids"]):
        asked = training.made.train_dataset[number // 8]["prompt"][-1]["content"]
        assert asked in training.tokenizer.decode(ids)
    told = [max(each, key=abs) for each in rollouts["token_advantages"]]
    for group in (slice(0, 8), slice(8, 16)):
        rewards = rollouts["reward"][group]
        assert told[group] == pytest.approx([(reward - fmean(rewards)) / (stdev(rewards) + 1e-4) for reward in rewards])
    assert {*rollouts["reward"]} == {0.0, 1.0}


def test_the_answers_of_a_trunk_have_advantages_of_their_own(tmp_path: Path) -> None:
    rollouts = Training(tmp_path, how="vine", n=3, max_completion_length=1000).of_tasks(8)
    assert any(len({*each} - {0.0}) > 1 for each in rollouts["token_advantages"])
    for reward, each in zip(rollouts["reward"], rollouts["token_advantages"], strict=True):
        assert each[-1] >= 0.0 if reward else each[-1] <= 0.0  # the last answer leads to the reward


def test_all_episodes_are_generated_in_one_batch(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.of_tasks(4, tasks=2)
    assert training.trainer.batches[0] == 8
    assert training.trainer.batches == sorted(training.trainer.batches, reverse=True)


def test_the_same_training_gives_the_same_rollouts(tmp_path: Path) -> None:
    def rollouts() -> list[dict[str, Any]]:
        training = Training(tmp_path, how="vine", n=2, max_steps=1)
        training.trainer.train()
        return training.rollouts

    assert rollouts() == rollouts()


def test_a_rollout_has_no_more_tokens_than_it_may(tmp_path: Path) -> None:
    rollouts = Training(tmp_path, max_completion_length=40).of_tasks(16)
    lengths = [*map(len, rollouts["completion_ids"])]
    assert max(lengths) <= 40
    assert all(mask[-1] for mask in rollouts["env_mask"])
    assert len({*lengths}) > 1


class Talk(State):
    heard: int = 0


class Listener(Environment[Talk]):
    """Hears two messages."""

    def reply(self, state: Talk, message: str) -> str | None:
        state.heard += 1
        return "Go on." if state.heard < 2 else None

    def verify(self, state: Talk) -> float:
        return float(state.heard)


SPEAK = [{"responses_create_params": {"input": "Speak."}}]


def test_users_reply_in_rollouts(tmp_path: Path) -> None:
    training = Training(tmp_path, spec(Listener, input=SPEAK))
    rollouts = training.of_tasks(4)
    assert rollouts["reward"] == [2.0] * 4
    for ids, mask in zip(rollouts["completion_ids"], rollouts["env_mask"], strict=True):
        said = [token for token, own in zip(ids, mask, strict=True) if not own]
        assert "Go on." in training.tokenizer.decode(said)
        assert ids.count(training.tokenizer.convert_tokens_to_ids(END)) == 3


def test_tasks_must_differ_in_their_prompts() -> None:
    made = spec("counter", input=[ROWS[0], {**ROWS[0], "expected_count": 9}])
    with raises(BadTask):
        made.rollout_func()
    assert spec("counter", input=[ROWS[0], ROWS[0]]).rollout_func()


def test_an_unknown_method_is_refused() -> None:
    with raises(InvalidArguments):
        spec("counter").rollout_func("ppo")  # type: ignore[arg-type]


def test_a_prompt_of_another_dataset_is_refused(tmp_path: Path) -> None:
    training = Training(tmp_path)
    with raises(BadTask):
        training.roll_out([[{"role": "user", "content": "Hello."}]], training.trainer)


def test_a_group_that_is_split_among_processes_is_refused(tmp_path: Path) -> None:
    with raises(InvalidArguments):
        Training(tmp_path).of_tasks(3)


class Unjust(Listener):
    def verify(self, state: Talk) -> float:
        raise RuntimeError("no verdict")


@pytest.mark.parametrize("how", ["grpo", "vine"])
def test_an_episode_that_fails_says_why(how: Any, tmp_path: Path) -> None:
    with raises(EnvironmentFailed):
        Training(tmp_path, spec(Unjust, input=SPEAK), how).of_tasks(4)
