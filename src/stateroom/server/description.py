"""What the server says of itself: an OpenAPI document and a page to read."""

from __future__ import annotations

from collections.abc import Sequence

from stateroom.server.hosted import Endpoint, Hosted


class Description:
    """The description of some environments."""

    def __init__(self, hosted: Sequence[Hosted]) -> None:
        self.hosted = hosted

    def routes(self) -> dict[tuple[str, str], Endpoint]:
        """The endpoints by method and path."""
        return {}
