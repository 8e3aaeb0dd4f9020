"""The row of an episode."""

from __future__ import annotations

from typing import Any

from stateroom.session import Verdict


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """What a verdict adds to the row: details and metrics at the top, and the reward with its parts."""
    fields: dict[str, Any] = {**verdict.details}
    fields.update((name, float(value)) for name, value in verdict.metrics.items())
    fields["reward"] = verdict.reward
    if verdict.components:
        fields["reward_components"] = verdict.components
    if verdict.reason:
        fields["reason"] = verdict.reason
    return fields
