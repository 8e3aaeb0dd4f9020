"""NeMo Gym's own SimpleAgent as a server, in a Python of its own: `test_nemo_gym.py` starts it.

It does what Gym does to serve an agent, except that it starts no Ray cluster, which SimpleAgent has no use for. The
configuration comes in the environment variables that Gym itself gives its servers, and the socket from whoever starts
this: its file descriptor is the only argument.
"""

import socket
import sys

import uvicorn
from nemo_gym.global_config import get_global_config_dict
from nemo_gym.server_utils import ServerClient
from responses_api_agents.simple_agent.app import SimpleAgent

if __name__ == "__main__":
    client = ServerClient(
        head_server_config=ServerClient.load_head_server_config(), global_config_dict=get_global_config_dict()
    )
    agent = SimpleAgent(config=SimpleAgent.load_config_from_global_config(), server_client=client)
    app = agent.setup_webserver()
    agent.setup_liveness(app)
    agent.setup_exception_middleware(app)
    # Gym repeats a request without end while it cannot connect: an end must not wait for that.
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run([socket.socket(fileno=int(sys.argv[1]))])
