from tests.cli.conftest import stateroom
from tests.server.conftest import serve

__all__ = ["serve", "stateroom"]  # fixtures
