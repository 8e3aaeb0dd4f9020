from .access import (
    check_operator as check_operator,
    hosts_at as hosts_at,
    is_for_this_machine as is_for_this_machine,
    is_loopback as is_loopback,
)
from .admin import AdminAPI as AdminAPI
from .admin_actions import Action as Action
from .agent import agent_for as agent_for
from .api import (
    Amount as Amount,
    MethodRoute as MethodRoute,
    Nothing as Nothing,
    Parameters as Parameters,
    RouteEndpoint as RouteEndpoint,
    Text as Text,
    agent_status as agent_status,
    http_request as http_request,
    json_body as json_body,
    read_body as read_body,
    read_query as read_query,
    route as route,
)
from .app import Application as Application
from .description.schemas import (
    Schema as Schema,
    as_json as as_json,
    operation as operation,
    query as query,
    taken as taken,
)
from .environment import ServedEnvironment as ServedEnvironment
from .keys import read_keys as read_keys
from .launch import start_server as start_server
from .model.app import (
    ModelApplication as ModelApplication,
    run_model as run_model,
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
from .request import HTTPRequest as HTTPRequest
from .routes import Extension as Extension
from .services import Services as Services
from .tokens import find_secrets as find_secrets
