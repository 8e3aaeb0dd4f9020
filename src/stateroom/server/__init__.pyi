from .access import (
    hosts_at as hosts_at,
    is_loopback as is_loopback,
)
from .app import Application as Application
from .keys import (
    Key as Key,
    read_keys as read_keys,
)
from .model import (
    ModelApplication as ModelApplication,
    run_model as run_model,
)
from .options import (
    Limits as Limits,
    Options as Options,
)
from .process import (
    ApplicationFactory as ApplicationFactory,
    bind as bind,
    run as run,
)
from .tokens import find_secrets as find_secrets
