from collections.abc import Iterator

import pytest

from tests.model.endpoints import Host, Server, hosting


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    with hosting() as started:
        yield started


@pytest.fixture
def server(host: Host) -> Server:
    """A server of models, that is yet to be told what to reply."""
    return host.new_server()


@pytest.fixture(params=["chat", "responses"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which API a model speaks."""
    return str(request.param)
