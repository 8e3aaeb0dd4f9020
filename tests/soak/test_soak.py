"""Each part of the soak for a few rounds, and what becomes of a round that fails."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.soak import (
    __main__ as soak,
    chaos,
    conversations,
    engines,
    fuzz,
    leaks,
    programs,
    rounds,
    studio,
    undo,
    users,
)
from tests.soak.rounds import Play, replay


@pytest.mark.parametrize(
    ("play", "store", "steps"),
    [
        (programs.play, "drafts", 2),
        (programs.play, "memory", 2),
        (chaos.play, "memory", 4),
        (chaos.play, "sqlite", 3),
        (fuzz.play, "sqlite", 16),
        (leaks.play, "memory", 1),
        (undo.play, "memory", 2),
        (users.play, "memory", 2),
        (studio.play, "memory", 40),
        (studio.play, "sqlite", 20),
        (conversations.play, "sqlite", 12),
        (engines.play, "sqlite", 1),
    ],
    ids=lambda value: value.__module__.rpartition(".")[2] if callable(value) else str(value),
)
def test_a_round_keeps_its_promises(play: Play, store: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "SESSIONS", 10)
    tally = replay(play, store, "1/test", steps)
    assert tally.operations >= steps
    assert (tally.lost, tally.doubled) == (0, 0)


def test_a_server_is_restarted_under_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    restarted: list[Any] = []
    restart = rounds.RedisServer.restart
    monkeypatch.setattr(rounds.RedisServer, "restart", lambda server: restarted.append(restart(server)))
    replay(chaos.play, "redis", "5/chaos/redis/0", steps=2)
    assert restarted


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where tests are written, of a soak that has one job."""
    monkeypatch.setattr(rounds, "FOUND", tmp_path / "found")
    monkeypatch.setattr(soak, "PARTS", {"chaos": (chaos.play, ("memory",), 4)})
    return tmp_path / "found"


def test_a_round_that_fails_is_shortened_and_written_as_a_test(
    found: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def lose(store: Any, said: Any, tally: Any) -> None:
        tally.lost += 1
        assert tally.kills < 2, "a call was lost"

    with monkeypatch.context() as patch:
        patch.setattr(chaos, "account", lose)
        assert soak.main(["--minutes", "1", "--seed", "7"]) == 1
        [path] = found.iterdir()
        again = runpy.run_path(str(path))["test_chaos_on_memory_7_0"]
        with pytest.raises(AssertionError, match="a call was lost"):
            again()
    again()  # as soon as it is mended
    assert "steps=2" in path.read_text()
    printed = capsys.readouterr().out.splitlines()
    assert any("7/chaos/memory/0" in line for line in printed)
    assert max(map(len, printed[-6:])) <= 100


def test_a_soak_without_failures_ends_with_its_table(found: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--minutes", "0.001"]) == 0
    assert not found.exists()
    assert "chaos" in capsys.readouterr().out


def test_what_grows_from_wave_to_wave_is_a_leak() -> None:
    steady = [{"KiB": 100_000 + 3000 * (wave % 4), "threads": 10, "files": 15} for wave in range(16)]
    leaks.check_plateau(steady)
    for what in ("KiB", "threads", "files"):
        growing = [each | {what: each[what] * (wave + 1)} for wave, each in enumerate(steady)]
        with pytest.raises(AssertionError, match=f"{what} grew"):
            leaks.check_plateau(growing)


def test_the_same_seed_gives_the_same_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setitem(programs.STATES, "drafts", lambda data: drawn.append(data.draw(programs.programs)))
    for _ in range(2):
        replay(programs.play, "drafts", "1/programs/drafts/0", steps=5)
    assert drawn[: len(drawn) // 2] == drawn[len(drawn) // 2 :]
