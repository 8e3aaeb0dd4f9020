"""`stateroom export`: files for trainers."""

from pathlib import Path

from tests.cli.conftest import Command


def test_nothing_to_export_is_a_failure_and_a_run_without_tokens_a_mistake(stateroom: Command) -> None:
    stateroom("run", "extraction", "--model", "noisy", "--group", 4, "--output", "r.jsonl")
    failed = stateroom("export", "r", "--to", "sft", "--min-reward", 2)
    assert (failed.code, "--min-reward" in failed.err) == (1, True)
    failed = stateroom("export", "r", "--to", "grpo")
    assert (failed.code, "record_tokens" in failed.err) == (2, True)
    assert [*Path().glob("r_sft*"), *Path().glob("r_grpo*")] == []
