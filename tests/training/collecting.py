"""Collects episodes with tokens from a server in vLLM's shape."""

from pathlib import Path
from typing import Any

from stateroom.rollout import Report, StoredRun, plan_run, run
from tests.servers.vllm import VLLM, by_policy, serving


async def collect(
    env: str, path: Path, *, policy: str = "reference", retokenises: bool = False, **options: Any
) -> Report:
    """Run the examples of an environment with tokens."""
    options.setdefault("record_tokens", "exact")
    async with serving(VLLM(by_policy(f"{env}:{policy}"), retokenises=retokenises)) as url:
        return await run(plan_run(env, model=f"chat:m@{url}", output=path, **options))


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The finished episodes of a run."""
    return [episode.row for episode in StoredRun.find(path).episodes()]
