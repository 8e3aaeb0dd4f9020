from .rows import (
    DataReport as DataReport,
    DataStats as DataStats,
    FieldStats as FieldStats,
    Lengths as Lengths,
    Part as Part,
    check_rows as check_rows,
    measure_rows as measure_rows,
    split_rows as split_rows,
)
from .template import TaskTemplate as TaskTemplate, TemplateProcess as TemplateProcess
