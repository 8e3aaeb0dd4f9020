"""What state is: typed models, drafts that record their changes, patches, and their bytes."""

from stateroom.state.codec import Elsewhere, decode, encode, encode_json, encode_patch, long_texts, to_json
from stateroom.state.commit import ENDED, Commit, commit, patched, refuse_tampering
from stateroom.state.draft import Desk, draft_of, is_draft
from stateroom.state.large import Large, digest_of, large_in, put_in
from stateroom.state.merge import Merge, merge, merge_rules
from stateroom.state.model import State, shape_of
from stateroom.state.patch import Operation, Patch, apply
from stateroom.state.spare import leave_spares

__all__ = [
    "ENDED",
    "Commit",
    "Desk",
    "Elsewhere",
    "Large",
    "Merge",
    "Operation",
    "Patch",
    "State",
    "apply",
    "commit",
    "decode",
    "digest_of",
    "draft_of",
    "encode",
    "encode_json",
    "encode_patch",
    "is_draft",
    "large_in",
    "leave_spares",
    "long_texts",
    "merge",
    "merge_rules",
    "patched",
    "put_in",
    "refuse_tampering",
    "shape_of",
    "to_json",
]
