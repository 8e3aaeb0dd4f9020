from .check import (
    DataReport as DataReport,
    check_rows as check_rows,
)
from .split import (
    Part as Part,
    split_rows as split_rows,
)
from .stats import (
    DataStats as DataStats,
    FieldStats as FieldStats,
    Lengths as Lengths,
    measure_rows as measure_rows,
)
from .template import TaskTemplate as TaskTemplate, TemplateProcess as TemplateProcess
