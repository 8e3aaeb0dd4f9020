from .advantages import (
    STATES as STATES,
    How as How,
    advantages as advantages,
    with_states as with_states,
)
from .export import (
    FORMATS as FORMATS,
    To as To,
    advantages_of as advantages_of,
    export_rows as export_rows,
)
from .sequences import (
    Step as Step,
    TokenSequence as TokenSequence,
    sequences as sequences,
    token_advantages as token_advantages,
)
from .table import write_table as write_table
