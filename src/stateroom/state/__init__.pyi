from .codec import (
    LONG_TEXT as LONG_TEXT,
    Large as Large,
    References as References,
    decode as decode,
    digest_in_order as digest_in_order,
    digest_of as digest_of,
    encode as encode,
    encode_json as encode_json,
    encode_patch as encode_patch,
    large_in as large_in,
    long_texts as long_texts,
    put_in as put_in,
    to_json as to_json,
    why_not_decoded as why_not_decoded,
)
from .commits import (
    ENDED as ENDED,
    Change as Change,
    commit as commit,
    ensure_untampered as ensure_untampered,
)
from .comparison import (
    Comparison as Comparison,
    compare as compare,
)
from .compiler import shape_of as shape_of
from .descriptions import (
    MAX_VALUE_CHARACTERS as MAX_VALUE_CHARACTERS,
    ChangeData as ChangeData,
    Difference as Difference,
    brief as brief,
    brief_pair as brief_pair,
    cut_pair as cut_pair,
    describe as describe,
    diff as diff,
    differences as differences,
    lines as lines,
    readable as readable,
)
from .draft import (
    draft_of as draft_of,
    is_draft as is_draft,
    pool_drafts as pool_drafts,
)
from .draft_context import DraftContext as DraftContext
from .edits import (
    EditChange as EditChange,
    edit as edit,
    read_changes as read_changes,
)
from .equality import deep_equal as deep_equal
from .event_context import (
    EventContext as EventContext,
    committed as committed,
    fold as fold,
)
from .events import (
    Event as Event,
    applies as applies,
    event_facts as event_facts,
    read_event as read_event,
)
from .merges import (
    Merge as Merge,
    merge as merge,
    merge_rules as merge_rules,
)
from .model import (
    State as State,
    schema_of as schema_of,
)
from .patch import (
    Operation as Operation,
    Patch as Patch,
    apply as apply,
    patched as patched,
)
from .schema import (
    Schema as Schema,
    fill_defaults as fill_defaults,
    fingerprint_of as fingerprint_of,
    first_difference as first_difference,
    only_adds as only_adds,
)
from .values import detach as detach
