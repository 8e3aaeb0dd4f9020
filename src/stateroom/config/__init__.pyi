from .document import (
    Node as Node,
    Origin as Origin,
    merged as merged,
    overrides_of as overrides_of,
    read_document as read_document,
)
from .nemo_gym import (
    GymImport as GymImport,
    import_gym as import_gym,
)
