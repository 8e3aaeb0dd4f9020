"""The draft pool: drafts of wide containers, used again by the next call.

A draft of a list or dict is a shallow copy, which for 10,000 items costs more than all the rest of a call. When a call
has ended and nothing else refers to its draft of a wide container, that draft becomes a draft of what was committed, by
changing the few places that the call changed, and waits for the next call on the session.

CPython's reference count tells whether anything else refers to it. A count that is too high costs a copy, no more.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any

from pydantic import BaseModel

from stateroom.state.draft import DraftModel
from stateroom.state.draft_list import DraftList
from stateroom.state.draft_table import DraftDict

MIN_ITEMS = 256
"""Items from which on a container is worth keeping."""

MAX_DRAFTS = 8
"""Pooled drafts per session."""


def pool_drafts(draft: Any, state: BaseModel | None = None) -> None:
    """Keep the drafts of wide fields of an ended draft, which was committed as `state`, or only read."""
    pool = draft._draft_context.pool
    if pool is not None and draft._draft_shape.branches:
        _pool(draft, draft._draft_base if state is None else state, pool)


def _pool(draft: DraftModel, state: BaseModel, pool: dict[int, Any]) -> None:
    fields, base, now = draft.__dict__, draft._draft_base.__dict__, state.__dict__
    set_as_a_whole = getattr(draft, "_draft_checked", ())
    for name in getattr(draft, "_draft_touched", draft._draft_shape.branches):
        if fields[name] is base[name] or getattr(fields[name], "_draft_base", None) is not base[name]:
            continue
        if name in set_as_a_whole:  # by a validator, say: then the draft does not tell what was committed
            continue
        if isinstance(fields[name], DraftModel):
            _pool(fields[name], now[name], pool)
        elif isinstance(fields[name], DraftList | DraftDict) and len(fields[name]) >= MIN_ITEMS:
            kept = [fields[name]]
            fields[name] = base[name]  # a draft that a tool kept does not lead to the pooled one
            # Two references: the list, and the question itself. A tool that kept a handle makes it three.
            if getrefcount(kept[0]) == 2 and kept[0].follow(now[name]):
                if len(pool) >= MAX_DRAFTS:
                    pool.clear()
                pool[id(now[name])] = kept[0]
