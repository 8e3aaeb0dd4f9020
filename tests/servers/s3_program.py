"""The process of an S3 server: moto's, with one request at a time."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

from tests.servers.process import die_with_parent


class Handler(MotoRequestHandler):
    """Keeps connections, and says nothing."""

    protocol_version = "HTTP/1.1"

    def log_request(self, *_: object) -> None:
        return


def serve(port: int, *, careless: bool) -> None:
    """Serve for ever."""
    die_with_parent()
    os.environ["MOTO_PORT"] = str(port)
    application: Any = create_backend_app("s3")
    turn = threading.Lock()

    def one_at_a_time(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """S3 judges a condition and writes in one step, moto in two."""
        if careless and environ["REQUEST_METHOD"] == "PUT":
            environ = {
                name: value for name, value in environ.items() if name not in ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")
            }
        with turn:
            return list(application(environ, start_response))

    run_simple("127.0.0.1", port, one_at_a_time, threaded=True, request_handler=Handler)


if __name__ == "__main__":
    serve(int(sys.argv[1]), careless="careless" in sys.argv)
