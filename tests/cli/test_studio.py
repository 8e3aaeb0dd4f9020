"""`stateroom studio`: what a user may get wrong. How it serves is tested in `tests/studio`."""

from pathlib import Path

import pytest

from tests.cli.conftest import Refuses


@pytest.mark.parametrize(
    "command",
    [
        "studio --host 0.0.0.0 --port 0",
        "serve counter --studio --host 0.0.0.0 --port 0",
        "studio --store sqlite:///none.db",
        "studio nothing",
        "studio --runs none",
    ],
)
def test_a_mistake_is_a_short_message(
    refuses: Refuses, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STATEROOM_SECRET", "a secret that is only good for tests")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    refuses(*command.split())
