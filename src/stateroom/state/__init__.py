"""What state is: typed models, drafts that record their changes, patches, and their bytes."""

from stateroom.state.codec import Elsewhere, decode, encode, encode_json, encode_patch, long_texts, to_json
from stateroom.state.commit import ENDED, Change, commit, refuse_tampering
from stateroom.state.draft import draft_of, is_draft
from stateroom.state.draft_context import DraftContext
from stateroom.state.event_context import EventContext, fold
from stateroom.state.events import Event, applies, event_facts, read_event
from stateroom.state.large import Large, digest_of, large_in, put_in
from stateroom.state.merge import Merge, merge, merge_rules
from stateroom.state.model import State, schema_of, shape_of
from stateroom.state.patch import Operation, Patch, apply, patched
from stateroom.state.schema import Schema, fingerprint_of, first_difference
from stateroom.state.spare import leave_spares
from stateroom.state.values import detach

__all__ = [
    "ENDED",
    "Change",
    "DraftContext",
    "Elsewhere",
    "Event",
    "EventContext",
    "Large",
    "Merge",
    "Operation",
    "Patch",
    "Schema",
    "State",
    "applies",
    "apply",
    "commit",
    "decode",
    "detach",
    "digest_of",
    "draft_of",
    "encode",
    "encode_json",
    "encode_patch",
    "event_facts",
    "fingerprint_of",
    "first_difference",
    "fold",
    "is_draft",
    "large_in",
    "leave_spares",
    "long_texts",
    "merge",
    "merge_rules",
    "patched",
    "put_in",
    "read_event",
    "refuse_tampering",
    "schema_of",
    "shape_of",
    "to_json",
]
