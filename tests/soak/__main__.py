"""`make soak`, or `python -m tests.soak [PART…] --minutes 30`: looks for what breaks, for as long as there is time.

Parts take turns, and stores within a part; the one that has had the least time is next. A round that fails is
shortened and written as a test in `tests/found`, and is the last of its kind. The same seed gives the same programs.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from random import SystemRandom

from hypothesis.configuration import set_hypothesis_home_dir
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from tests.soak import chaos, conversations, engines, fuzz, leaks, programs, studio, undo, users
from tests.soak.rounds import Place, Play, Round, Tally, shortest, write_test

STORES = ("memory", "sqlite", "file", "s3", "redis", "postgresql", "tiered")
PARTS: dict[str, tuple[Play, tuple[str, ...], int]] = {
    "programs": (programs.play, (*programs.STATES, *STORES), 10),
    "chaos": (chaos.play, STORES, 12),
    "fuzz": (fuzz.play, ("sqlite",), 200),
    "leaks": (leaks.play, ("memory", "sqlite"), 8),
    "undo": (undo.play, STORES, 10),
    "users": (users.play, STORES, 10),
    "studio": (studio.play, ("memory", "sqlite", "redis", "postgresql"), 100),
    "conversations": (conversations.play, ("sqlite", "file", "redis", "postgresql"), 40),
    "engines": (engines.play, ("sqlite", "redis", "postgresql"), 5),
}
"""How each part is played, on which stores, and how many steps a round has."""
SHORTENED = (chaos.play, fuzz.play, studio.play, conversations.play)
"""The parts whose rounds are tried with fewer steps when they fail. Hypothesis shortens those of random programs."""
LONGEST_WATCH = 64
LONGEST_ROUND = 600
"""Seconds after which a round hangs; Hypothesis shortens what fails for up to 300."""
EVERY = 5.0
"""Seconds between two lines of progress."""


class Soak:
    """A run of the parts, and what has come of it."""

    def __init__(self, parts: list[str], seed: int, examples: int | None) -> None:
        self.seed = seed
        self.examples = examples
        self.tallies = {(part, store): Tally() for part in parts for store in PARTS[part][1]}
        self.now = ("", "")
        self.started = time.monotonic()

    def run(self, minutes: float) -> None:
        """Play rounds until the time is over, or Ctrl-C is pressed."""
        over = threading.Event()
        threading.Thread(target=self.report, args=(over,), daemon=True).start()
        try:
            with Place() as place, suppress(KeyboardInterrupt):
                set_hypothesis_home_dir(place.folder)
                place.callback(set_hypothesis_home_dir, None)
                while time.monotonic() < self.started + 60 * minutes and (due := self.next()) is not None:
                    self.play(place, *due)
        finally:
            over.set()

    def next(self) -> tuple[str, str] | None:
        """The part, and the store within it, that have had the least time; None when all have failed."""
        spent: defaultdict[str, float] = defaultdict(float)
        for (part, _), tally in self.tallies.items():
            spent[part] += tally.seconds
        due = [key for key, tally in self.tallies.items() if not tally.failures]
        return min(due, key=lambda key: (spent[key[0]], self.tallies[key].seconds), default=None)

    def play(self, place: Place, part: str, store: str) -> None:
        """Play one round; if it fails, shorten it, and write a test."""
        self.now = part, store
        tally, (play, _, steps) = self.tallies[part, store], PARTS[part]
        if part == "programs":  # those that need no store are quick
            steps = (self.examples or steps) * (10 if store in programs.STATES else 1)
        if part == "leaks":  # the longer, the slower the leaks that are seen
            steps = min(steps << tally.rounds, LONGEST_WATCH)
        round = Round(place, store, f"{self.seed}/{part}/{store}/{tally.rounds}", steps, tally)
        began = time.monotonic()
        signal.alarm(LONGEST_ROUND)
        try:
            play(round)
        except Exception as error:  # noqa: BLE001 (whatever a broken promise leads to)
            self.fail(play, round, error)
        except KeyboardInterrupt:
            if time.monotonic() - began < LONGEST_ROUND:
                raise
            self.fail(play, round, TimeoutError(f"the round did not end within {LONGEST_ROUND} seconds"))
        finally:
            signal.alarm(0)
            tally.seconds += time.monotonic() - began
        tally.rounds += 1

    def fail(self, play: Play, round: Round, error: BaseException) -> None:
        round.tally.failures.append(round.seed)
        say(f"FAILED: seed {round.seed}: {type(error).__name__}: {str(error)[:2000]}")
        path = write_test(play, round, error)
        if play in SHORTENED and not isinstance(error, TimeoutError):
            round.steps = shortest(play, round)
            write_test(play, round, error)
        say(f"written as {path}, with {round.steps} steps")

    def report(self, over: threading.Event) -> None:
        """Say every few seconds how far it is."""
        while not over.wait(EVERY):
            tallies = self.tallies.values()
            seconds = int(time.monotonic() - self.started)
            say(
                f"{seconds // 60:3}:{seconds % 60:02} {' on '.join(self.now)}, round {self.tallies[self.now].rounds}; "
                f"{sum(tally.operations for tally in tallies):,} operations, {sum(tally.kills for tally in tallies):,} "
                f"kills, {sum(len(tally.failures) for tally in tallies)} failures"
            )

    def table(self) -> Table:
        table = Table(box=MARKDOWN)  # for a page
        table.add_column("part", no_wrap=True)
        table.add_column("store")
        for name in ("rounds", "operations", "kills", "lost", "doubled", "failures"):
            table.add_column(name, justify="right")
        table.add_column("seed", overflow="fold")
        for (part, store), tally in self.tallies.items():
            figures = (tally.rounds, tally.operations, tally.kills, tally.lost, tally.doubled, len(tally.failures))
            table.add_row(part, store, *(f"{figure:,}" for figure in figures), *tally.failures or [str(self.seed)])
        return table


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Soak; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; all by default")
    parser.add_argument("--minutes", type=float, default=30, help="how long (30)")
    parser.add_argument("--examples", type=int, help="random programs a round on a store (10)")
    parser.add_argument("--seed", type=int, help="what decides the programs; another one each time by default")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    for ending in (signal.SIGALRM, signal.SIGTERM):  # a round that hangs, a soak that is told to end
        signal.signal(ending, lambda *_: signal.raise_signal(signal.SIGINT))
    soak = Soak(
        given.parts or [*PARTS], SystemRandom().randrange(10**6) if given.seed is None else given.seed, given.examples
    )
    say(f"soaking for {given.minutes:g} minutes with seed {soak.seed}")
    soak.run(given.minutes)
    say(f"{time.monotonic() - soak.started:,.0f} s, seed {soak.seed}:")
    Console(width=100).print(soak.table())
    return int(any(tally.failures for tally in soak.tallies.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
