"""What a network generates and learns, token by token."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from stateroom.errors import InvalidModel, ModelFailed
from stateroom.gallery import CounterEnvironment
from stateroom.model import Decoder, Prompt, Request, TransformersModel, load_network, message
from stateroom.model.chat_template import CHATML, ChatTemplate
from stateroom.rollout import generate_tasks
from stateroom.session import BackgroundLoop
from stateroom.training import Collected, Collector, LearningOptions, Sample, samples, sequences
from stateroom.training.learner import Batch, Learner
from tests.messages import raises

pytestmark = [
    pytest.mark.more("torch"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),  # of peft's
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),  # of torch's own compiler
]

TASKS = generate_tasks(CounterEnvironment, 3, seed=1)
SETTINGS = {"max_output_tokens": 6}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # threads that wait for a busy core take many times as long


def collect(model: TransformersModel, how: str, output: Path) -> Collected:
    """Episodes of a model with random weights, three answers each."""
    collector = Collector("counter", {}, "memory://", model, max_steps=3, settings=SETTINGS)
    work = {
        "grpo": lambda: collector.groups(TASKS, 4, "grpo", output, seed=1),
        "vine": lambda: collector.vines(TASKS, 2, output, seed=1),
        "tree": lambda: collector.trees(TASKS, 2, output, seed=1),
    }[how]
    loop = BackgroundLoop()
    try:
        return model.serve(loop, work())
    finally:
        loop.close()


@pytest.fixture
def model(calling_model: Path) -> TransformersModel:
    return TransformersModel(*load_network(calling_model, "cpu", torch.float32), "small")


def _calling() -> dict[str, Any]:
    function = {"name": "increment_counter", "arguments": {"count": 1}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


@pytest.mark.parametrize("how", ["grpo", "vine", "tree"])
def test_rollouts_and_training_agree_on_log_probabilities(how: str, model: TransformersModel, tmp_path: Path) -> None:
    collected = collect(model, how, tmp_path / "r.jsonl")
    batch = Batch(samples(collected.rollouts), torch.device("cpu"))
    with torch.no_grad():
        now = batch.log_probs(model._decoder._network, 1.0)
    assert now.tolist() == pytest.approx(batch.then.tolist(), abs=1e-4)
    assert max(len(sequence.steps) for each in collected.rollouts for sequence in sequences(each.row)) == 3


def test_each_answer_of_a_tree_is_learned_once(model: TransformersModel, tmp_path: Path) -> None:
    collected = collect(model, "tree", tmp_path / "r.jsonl")
    assert sum(sum(sample.mask) for sample in samples(collected.rollouts)) == collected.written
    assert any(rollout.first for rollout in collected.rollouts)
    assert len(collected.rewards) == 6


def test_the_same_seed_gives_the_same_episodes_in_any_batch(model: TransformersModel) -> None:
    prompts = [Prompt(seed, 0, [5 + seed] * (3 + seed), 8, None) for seed in range(6)]
    together = model.generate(prompts)
    alone = [model.generate([prompt])[0] for prompt in prompts]
    assert [each.ids for each in together] == [each.ids for each in alone]
    assert len({tuple(each.ids) for each in together}) > 3


def test_compiled_steps_generate_the_same(model: TransformersModel) -> None:
    prompts = [Prompt(seed, 0, [5 + seed] * (3 + seed), 8, None) for seed in range(3)]
    network = model._decoder._network
    compiled = Decoder(network, {0}, compiles=True)
    plain = Decoder(network, {0}, compiles=False)
    for _ in range(2):  # the second time with the memory of the first
        assert [each.ids for each in compiled.generate(prompts)] == [each.ids for each in plain.generate(prompts)]


def test_temperature_zero_is_greedy(model: TransformersModel) -> None:
    first, second = model.generate([Prompt(seed, 0, [9, 8, 7], 5, 0.0) for seed in (1, 2)])
    assert first.ids == second.ids


SAMPLES = [
    Sample([1, 2, 3, 4, 5], [0, 0, 1, 1, 0], [0.0, 0.0, -1.0, -2.0, 0.0], [0.0, 0.0, 1.0, 1.0, 0.0]),
    Sample([4, 8, 6], [0, 1, 1], [0.0, -2.0, -1.0], [0.0, -1.0, -1.0]),
    Sample([7, 2, 3, 9], [0, 1, 0, 1], [0.0, -3.0, 0.0, -1.0], [0.0, 0.5, 0.0, 0.5]),
]


def learner(folder: Path, **options: Any) -> Learner:
    network, _ = load_network(folder, "cpu", torch.float32)
    return Learner(network, LearningOptions(learning_rate=1e-2, warmup=0, **options), 0, str(folder))


def weights(learner: Learner) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in learner.network.parameters() if each.requires_grad])


@pytest.mark.parametrize("options", [{}, {"kl": 0.1}, {"lora": 4}, {"lora": 4, "kl": 0.1}, {"epochs": 2}])
def test_gradients_do_not_depend_on_the_size_of_micro_batches(options: Any, small_model: Path) -> None:
    learners = [learner(small_model, micro_batch=size, **options) for size in (1, 3)]
    figures = [each.learn(SAMPLES) for each in learners]
    assert figures[0] == pytest.approx(figures[1], rel=1e-3, abs=1e-5)
    before = weights(learner(small_model, **options))
    assert torch.allclose(weights(learners[0]), weights(learners[1]), atol=1e-3)
    assert not torch.equal(weights(learners[0]), before)


def test_what_had_an_advantage_becomes_more_likely(small_model: Path) -> None:
    made = learner(small_model)
    batch = Batch(SAMPLES, torch.device("cpu"))
    with torch.no_grad():
        then = batch.log_probs(made.network, 1.0)
    fresh = [_with_log_probs(sample, made) for sample in SAMPLES]
    for _ in range(3):
        made.learn(fresh)
    with torch.no_grad():
        gained = (batch.log_probs(made.network, 1.0) - then).tolist()
    good = [value for value, advantage in zip(gained, batch.advantages.tolist(), strict=True) if advantage > 0]
    bad = [value for value, advantage in zip(gained, batch.advantages.tolist(), strict=True) if advantage < 0]
    assert fmean(good) > 0 > fmean(bad)


def _with_log_probs(sample: Sample, made: Learner) -> Sample:
    with torch.no_grad():
        now = iter(Batch([sample], torch.device("cpu")).log_probs(made.network, 1.0).tolist())
    return sample._replace(log_probs=[next(now) if own else 0.0 for own in sample.mask])


def test_the_divergence_holds_a_model_back(small_model: Path) -> None:
    free, held = learner(small_model), learner(small_model, kl=100.0)
    start = weights(learner(small_model))
    for each in (free, held):
        fresh = [_with_log_probs(sample, each) for sample in SAMPLES]
        for _ in range(5):
            each.learn(fresh)
    batch = Batch(SAMPLES, torch.device("cpu"))
    with torch.no_grad():
        first = batch.log_probs(learner(small_model).network, 1.0)
        moved = [float((batch.log_probs(each.network, 1.0) - first).abs().mean()) for each in (free, held)]
    assert moved[1] < moved[0] / 2
    assert not torch.equal(weights(held), start)


def test_an_adapter_is_loaded_with_its_model(small_model: Path, tmp_path: Path) -> None:
    made = learner(small_model, lora=4)
    made.learn(SAMPLES)
    _, tokenizer = load_network(small_model)
    made.save(tmp_path / "adapter", tokenizer, {"step": 1})
    again, _ = load_network(tmp_path / "adapter", "cpu", torch.float32)
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.allclose(again(ids).logits, made.network(ids).logits, atol=1e-5)


@pytest.fixture(params=["own", "chatml"])
def template(request: Any, small_model: Path) -> ChatTemplate:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(small_model)
    if request.param == "chatml":
        tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"  # shows no calls
        tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    return ChatTemplate(tokenizer)


def test_a_conversation_that_is_appended_to_equals_the_whole_one(template: ChatTemplate) -> None:
    asked = [{"role": "system", "content": "Be quick."}, {"role": "user", "content": "Add 1."}]
    results = [{"role": "tool", "tool_call_id": "c", "content": '{"success":true}'}]
    done = {"role": "assistant", "content": "Done."}
    tools: list[Any] = [{"type": "function", "function": {"name": "increment_counter", "parameters": {}}}]
    ids = [*template.prompt(asked, tools), *template.answer(_calling()), *template.reply(results)]
    ids += [*template.answer(done), *template.reply([{"role": "user", "content": "More."}])]
    whole = [*asked, _calling(), *results, done, {"role": "user", "content": "More."}]
    assert ids == template.prompt(whole, tools)


def test_what_is_written_is_read_again(template: ChatTemplate) -> None:
    found = template.parse(template.answer(_calling()))
    assert [call["function"] for call in found["tool_calls"]] == [
        {"name": "increment_counter", "arguments": '{"count": 1}'}
    ]
    assert found["content"] == ""
    said = template.parse(template.answer({"role": "assistant", "content": "Done."}))
    assert (said["content"], said["tool_calls"]) == ("Done.", [])


@pytest.mark.parametrize("text", ["<tool_call>{broken}</tool_call>", "<tool_call>[1]</tool_call>", "<tool_call>{}"])
def test_a_call_that_cannot_be_read_stays_text(text: str, template: ChatTemplate) -> None:
    found = template.parse(template.answer({"role": "assistant", "content": text}))
    assert (found["content"], found["tool_calls"]) == (text, [])


def test_a_model_without_tool_calls_in_its_template_gets_chatml(small_model: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(small_model)
    tools: list[Any] = [{"type": "function", "function": {"name": "increment_counter", "parameters": {}}}]
    asked = [{"role": "user", "content": "Add 1."}]
    tokenizer.chat_template = None
    with raises(InvalidModel):
        ChatTemplate(tokenizer)
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    shown = tokenizer.decode(ChatTemplate(tokenizer).prompt(asked, tools))
    assert "increment_counter" in shown
    assert shown == tokenizer.apply_chat_template(
        asked, tools=tools, chat_template=CHATML, add_generation_prompt=True, tokenize=False
    )


async def test_a_prompt_that_is_too_long_is_refused(model: TransformersModel) -> None:
    with raises(ModelFailed):
        await model.answer(Request([message("1" * 600)]))
