from collections.abc import Callable

import pytest

Snapshots = Callable[[int], None]


@pytest.fixture
def snapshots_after(monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    """Sets after how many bytes of patches the state is written whole, however large it is."""

    def after(size: int) -> None:
        monkeypatch.setattr("stateroom.session.cached_session.MIN_SNAPSHOT", size)
        monkeypatch.setattr("stateroom.session.cached_session.SNAPSHOT_RATIO", 0)

    return after


@pytest.fixture
def many_snapshots(snapshots_after: Snapshots) -> None:
    """The state is written whole every few calls."""
    snapshots_after(100)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every state counts as large: going back to one that is not in memory does not read it."""
    monkeypatch.setattr("stateroom.session.cached_session.SMALL_STATE_BYTES", 0)
