"""Exported files, read by TRL's own trainers."""

from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from stateroom.rollout import StoredRun, plan_run, run
from stateroom.training import FORMATS, To, export_rows, write_table
from tests.adapters.trl_model import make_model, make_tokenizer

pytestmark = [
    pytest.mark.more("TRL"),
    pytest.mark.filterwarnings("default::FutureWarning"),  # TRL uses names that transformers deprecates
]

ON_CPU: dict[str, Any] = {
    **{"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True},
    **{"max_steps": 1, "per_device_train_batch_size": 2, "max_length": None},
}


async def exported(to: To, ending: str, folder: Path) -> Any:
    """A run of groups, exported and read as a dataset."""
    output = folder / "run.jsonl"
    await run(plan_run("extraction", model="noisy", group=4, output=output))
    file = folder / f"data{ending}"
    await write_table(file, FORMATS[to].columns, export_rows(StoredRun.find(output), to))
    kind = {".jsonl": "json", ".parquet": "parquet"}[ending]
    return load_dataset(kind, data_files=str(file), split="train", cache_dir=str(folder / "cache"))


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
async def test_sft_trains_on_messages_with_tools(ending: str, tmp_path: Path) -> None:
    data, tokenizer = await exported("sft", ending, tmp_path), make_tokenizer()
    config = SFTConfig(str(tmp_path / "out"), **ON_CPU, assistant_only_loss=True)
    trainer = SFTTrainer(make_model(tokenizer), args=config, train_dataset=data, processing_class=tokenizer)
    row = trainer.train_dataset[0]
    learned = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label != -100]
    assert "extract_synonym_values" in tokenizer.decode(learned)
    assert "tool_response" not in tokenizer.decode(learned)
    assert "get_synonym_value" in tokenizer.decode(row["input_ids"]).partition("<|im_end|>")[0]  # the schemas of tools
    trainer.train()


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
async def test_dpo_trains_on_pairs(ending: str, tmp_path: Path) -> None:
    data, tokenizer = await exported("dpo", ending, tmp_path), make_tokenizer()
    config = DPOConfig(str(tmp_path / "out"), **ON_CPU)
    models = make_model(tokenizer), make_model(tokenizer)
    trainer = DPOTrainer(*models, args=config, train_dataset=data, processing_class=tokenizer)
    row = trainer.train_dataset[0]
    assert row["chosen_ids"] != row["rejected_ids"]
    trainer.train()
