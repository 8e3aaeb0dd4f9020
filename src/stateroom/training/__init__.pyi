from .advantages import (
    STATES as STATES,
    AdvantageMethod as AdvantageMethod,
    advantages as advantages,
    with_states as with_states,
)
from .curve import (
    Curve as Curve,
    read_curve as read_curve,
)
from .export import (
    FORMATS as FORMATS,
    To as To,
    advantages_of as advantages_of,
    export_rows as export_rows,
)
from .loop import Trainer as Trainer
from .options import (
    LearningOptions as LearningOptions,
    TrainOptions as TrainOptions,
)
from .rollouts import (
    Collected as Collected,
    Collector as Collector,
    Rollout as Rollout,
    Sample as Sample,
    samples as samples,
)
from .table import write_table as write_table
from .token_sequences import (
    Step as Step,
    TokenSequence as TokenSequence,
    sequences as sequences,
    token_advantages as token_advantages,
)
