"""Run by NeMo Gym's Python: Gym's own check of a resources server's sessions, against the server at a URL.

`python nemo_gym_conformance.py URL`. Gym checks an application in its own process, so this one forwards each request.
"""

import sys

import httpx
from fastapi import FastAPI, Request, Response
from nemo_gym.base_resources_server import ResourcesSeedSessionRequest
from nemo_gym.testing.session_conformance import check_resources_session_contract

KEPT = ("content-type", "cookie", "set-cookie")


def forwarding(url: str) -> FastAPI:
    app = FastAPI()

    @app.post("/{path:path}")
    async def forward(path: str, request: Request) -> Response:
        headers = {name: value for name, value in request.headers.items() if name in KEPT}
        async with httpx.AsyncClient() as client:
            reply = await client.post(f"{url}/{path}", content=await request.body(), headers=headers)
        headers = {name: value for name, value in reply.headers.items() if name in KEPT}
        return Response(reply.content, reply.status_code, headers)

    return app


if __name__ == "__main__":
    seed = ResourcesSeedSessionRequest(
        resources_session_id="resources-session-1",
        episode_id={"rollout_id": "rollout-1", "attempt": 0},
        task_id={"taskset": "counter", "task_id": "1"},
        task_data={"initial_count": 3, "expected_count": 5},
    )
    check_resources_session_contract(forwarding(sys.argv[1]), seed, keeps_state=True)
