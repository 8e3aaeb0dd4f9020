"""The loop: models that get better at an environment, and trainings that go on where they were."""

import asyncio
import json
import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from examples.training.small_model import make
from stateroom.cli.app import app
from stateroom.errors import InvalidOption, NotFound
from stateroom.gallery import CounterEnvironment
from stateroom.rollout import StoredRun, replay_session
from stateroom.store import open_store
from stateroom.training import Trainer, TrainOptions, read_curve, rollouts
from tests.messages import raises

pytestmark = [
    pytest.mark.more("torch"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),  # of peft's
]


ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # threads that wait for a busy core take many times as long


def short(model: Path, output: Path, **options: Any) -> TrainOptions:
    """A training of a few steps."""
    return TrainOptions(
        "counter",
        model=model,
        output=output,
        **{
            **{"steps": 2, "supervised": 2, "tasks_per_step": 2, "group": 4, "max_steps": 3, "max_tokens": 6},
            **{"held_out": 4, "checkpoint_every": 2, "learning_rate": 1e-3, **options},
        },
    )


def figures(folder: Path) -> list[dict[str, float]]:
    """The curve of a training, without times."""
    return [{k: v for k, v in step.items() if k != "seconds"} for step in read_curve(folder / "curve.jsonl")]


def command(line: str) -> Result:
    """What a command prints, which succeeds."""
    done = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def learned(folder: Path, seed: int) -> tuple[float, float]:
    """The held-out reward of a model after its supervised steps, and after those of reinforcement."""
    make("counter", folder / "model", seed)
    common: dict[str, Any] = {"tasks_per_step": 32, "max_steps": 8, "max_tokens": 10, "held_out": 200, "seed": seed}
    common |= {"store": "memory://", "held_out_every": 1000, "checkpoint_every": 1000}
    common |= {"supervised_rate": 1.5e-3, "micro_batch": 64, "learning_rate": 3e-4}
    model = folder / "model"
    taught = Trainer(TrainOptions("counter", model=model, output=folder / "a", steps=0, supervised=85, **common))
    taught.run()
    assert taught.checkpoint is not None
    common |= {"model": taught.checkpoint, "steps": 50, "group": 4, "epochs": 2}
    training = TrainOptions("counter", output=folder / "b", **common)
    before, after = Trainer(training).run().column("held_out")
    return before, after


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_reward_of_tasks_that_were_held_out_rises(seed: int, tmp_path: Path) -> None:
    before, after = learned(tmp_path, seed)
    assert after >= before + 0.2


def test_the_documented_commands_make_a_model_and_train_it(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    make_model, train = re.findall(r"^(?:python examples/training/small_model.py|stateroom train) .+$", page, re.M)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    for command in (make_model, train):
        subprocess.run(shlex.split(command), cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, check=True)
    held_out = {int(step["step"]): step["held_out"] for step in figures(tmp_path / "runs" / "a") if "held_out" in step}
    untrained, imitating, reinforced = held_out[0], held_out[100], held_out[max(held_out)]
    assert untrained < 0.1 < imitating
    assert reinforced > 0.3


def test_without_the_true_rewards_it_does_not_rise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = vars(rollouts)["advantages_in_groups"]

    async def shuffled(*given: Any) -> Any:
        found = await true(*given)
        values = random.Random(0).sample([*found.values()], len(found))
        return {key: [value[0]] * len(found[key]) for key, value in zip(found, values, strict=True)}

    monkeypatch.setattr(rollouts, "advantages_in_groups", shuffled)
    before, after = learned(tmp_path, 0)
    assert after < before + 0.1


def test_the_same_seed_gives_the_same_curve(calling_model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        Trainer(short(calling_model, tmp_path / name)).run()
    assert figures(tmp_path / "a") == figures(tmp_path / "b")
    assert len(figures(tmp_path / "a")) == 5


@pytest.mark.parametrize("options", [{}, {"lora": 4}])
def test_a_killed_training_continues_with_the_same_curve(options: Any, calling_model: Path, tmp_path: Path) -> None:
    Trainer(short(calling_model, tmp_path / "whole", steps=4, **options)).run()
    program = f"""
import os, signal, sys
from pathlib import Path
from stateroom.training import *
sys.path.insert(0, ".")
from tests.training.test_train import short
training = short(Path({str(calling_model)!r}), Path({str(tmp_path / "killed")!r}), steps=4, **{options!r})
Trainer(training).run(lambda curve: len(curve.steps) == 3 and os.kill(os.getpid(), signal.SIGKILL))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    assert len(figures(tmp_path / "killed")) == 3
    Trainer(short(calling_model, tmp_path / "killed", steps=4, resume=True, **options)).run()
    assert figures(tmp_path / "killed") == figures(tmp_path / "whole")


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "gigpo", "vine", "tree"])
async def test_the_episodes_of_a_step_are_ordinary_rollouts(
    algorithm: Any, calling_model: Path, tmp_path: Path
) -> None:
    training = short(calling_model, tmp_path / "t", algorithm=algorithm, supervised=0, steps=1, continuations=2)
    await asyncio.to_thread(Trainer(training).run)
    run = StoredRun.find(tmp_path / "t" / "rollouts" / "step-00000.jsonl")
    episodes = [*run.episodes()]
    assert len(episodes) >= 8
    assert run.store is not None
    async with open_store(run.store) as store:
        for episode in episodes:
            replayed = await replay_session(CounterEnvironment(), store, str(episode.session))
            assert (replayed.refused, replayed.differences) == (None, [])


def test_a_folder_with_a_training_is_not_overwritten(calling_model: Path, tmp_path: Path) -> None:
    Trainer(short(calling_model, tmp_path / "t", supervised=0, steps=1)).run()
    others: dict[str, dict[str, Any]] = {"output": {}, "group": {"group": 8, "resume": True}}
    for option, options in others.items():
        with pytest.raises(InvalidOption) as refused:
            Trainer(short(calling_model, tmp_path / "t", supervised=0, steps=1, **options))
        assert refused.value.option == option
    Trainer(short(calling_model, tmp_path / "t", supervised=0, steps=2, resume=True)).run()
    assert [step["step"] for step in figures(tmp_path / "t")] == [0, 1, 2]


def test_what_cannot_be_trained_is_refused(calling_model: Path, tmp_path: Path) -> None:
    with raises(NotFound):
        Trainer(short(tmp_path / "nothing", tmp_path / "t"))
    with pytest.raises(InvalidOption) as refused:
        Trainer(short(calling_model, tmp_path / "u", algorithm="tree", group=6))
    assert refused.value.option == "group"


def test_tasks_of_a_file_are_trained_on_but_for_the_last(calling_model: Path, tmp_path: Path) -> None:
    tasks = [
        {"responses_create_params": {"input": f"add {count}"}, "initial_count": 0, "expected_count": count}
        for count in range(1, 7)
    ]
    Trainer(short(calling_model, tmp_path / "t", supervised=0, steps=3, input=tasks, held_out=2)).run()

    def expected(pattern: str) -> set[int]:
        files = (tmp_path / "t" / "rollouts").glob(pattern)
        return {episode.row["expected_count"] for file in files for episode in StoredRun.find(file).episodes()}

    assert expected("held-out-?????.jsonl") == {5, 6}
    assert expected("step-?????.jsonl") <= {1, 2, 3, 4}


def test_the_command_trains_and_tells(calling_model: Path, tmp_path: Path) -> None:
    train = f"train counter --model {calling_model} --steps 2 --tasks-per-step 2 --group 2 --max-steps 3 --max-tokens 6"
    train += f" --held-out 2 --tensorboard {tmp_path / 'events'} --output {tmp_path / 't'}"
    told = command(train).output
    assert "step 0: reward" in told
    assert f"the model is in {tmp_path / 't' / 'checkpoints' / '00002'}" in told.replace("\n", "")
    assert json.loads(command(f"{train} --resume --json").stdout.splitlines()[-1])["step"] == 2

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    curve = read_curve(tmp_path / "t" / "curve.jsonl")
    rewards = [event.value for event in events.Scalars("reward")]
    assert rewards == pytest.approx([step["reward"] for step in curve if "reward" in step])


def test_a_trained_model_runs(calling_model: Path, tmp_path: Path) -> None:
    Trainer(short(calling_model, tmp_path / "t", lora=4, supervised=0)).run()
    (checkpoint,) = (tmp_path / "t" / "checkpoints").iterdir()
    options = f"--limit 2 --max-steps 3 --record-tokens exact --set max_output_tokens=6 --output {tmp_path / 'r.jsonl'}"
    command(f"run counter --model transformers:{checkpoint} {options}")
    assert len([*StoredRun.find(tmp_path / "r.jsonl").episodes()]) == 2
