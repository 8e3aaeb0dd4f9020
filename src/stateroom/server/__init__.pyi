from .access import (
    check_operator as check_operator,
    hosts_at as hosts_at,
    is_for_this_machine as is_for_this_machine,
    is_loopback as is_loopback,
    read_keys as read_keys,
)
from .admin import AdminAPI as AdminAPI
from .admin_actions import Action as Action
from .agent import agent_for as agent_for
from .api import (
    AgentReply as AgentReply,
    Amount as Amount,
    Parameters as Parameters,
    Text as Text,
)
from .app import Application as Application
from .environment import ServedEnvironment as ServedEnvironment
from .http import HTTPRequest as HTTPRequest
from .launch import start_server as start_server
from .model.app import (
    ModelApplication as ModelApplication,
    run_model as run_model,
)
from .operation import (
    Operation as Operation,
    get as get,
    http_request as http_request,
    post as post,
    routes_of as routes_of,
)
from .options import (
    ApplicationOptions as ApplicationOptions,
    Key as Key,
    Limits as Limits,
    ListenOptions as ListenOptions,
    ServeOptions as ServeOptions,
    ServingOptions as ServingOptions,
)
from .process import (
    ApplicationFactory as ApplicationFactory,
    bind as bind,
    run as run,
    run_stdio as run_stdio,
)
from .routes import Extension as Extension
from .services import Services as Services
from .tokens import find_secrets as find_secrets
