"""Tasks: what an episode is about, a row of task data with a type."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Task(BaseModel):
    """A task row. Subclass it to declare the fields that your environment needs; fields you do not name travel along.

    A field `initial_count` of a row is `task.initial_count`, declared or not; a declared one is checked before
    anything runs.
    """

    model_config = ConfigDict(extra="allow")

    responses_create_params: dict[str, Any] = Field(
        default={},
        description="What the model is asked: `input` (a text, or Responses items) and, if wanted, `tools` and "
        "sampling settings.",
    )
