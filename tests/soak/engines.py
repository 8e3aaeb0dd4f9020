"""Runs by worker processes that are killed and stopped, whose driver is killed and whose Redis is restarted.

Each row is there once, and is the one of the same run in a single process.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.faults.test_engines import Disturbed, come_to_the_same, errands, rows, run_undisturbed
from tests.soak.rounds import Round

EPISODES_PER_HARM, LAST_EPISODES = 25, 60
"""The last ones are left alone."""


def play(round: Round) -> None:
    """Run episodes while about `steps` processes or servers are harmed."""
    with round.place.fresh_folder() as folder, round.place.fresh_store(round.store) as url:
        round.place.runner.run(harm_run(round, folder, url))


async def harm_run(round: Round, folder: Path, url: str) -> None:
    luck = Random(round.seed)
    episodes = EPISODES_PER_HARM * round.steps + LAST_EPISODES
    options = errands(episodes, luck.randrange(2**31))
    server = round.place.servers.get("redis") if round.store == "redis" else None
    store = url if server is None else f"{url}&timeout=60"
    disturbed = Disturbed(folder, store, "processes:3", options, episodes)
    undisturbed = await run_undisturbed(folder, options)
    try:
        await come_to_the_same(disturbed, undisturbed, luck, {} if server is None else {"redis": server.restart})
    finally:
        round.tally.kills += disturbed.harms
        written = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows(disturbed.files.rollouts)]
        round.tally.operations += len(written)
        round.tally.doubled += len(written) - len({*written})
        round.tally.lost += max(0, len(rows(undisturbed.rollouts)) - len({*written}))
