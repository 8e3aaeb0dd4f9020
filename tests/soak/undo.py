"""Undo and redo among calls, turns, edits, forks and rewinds, beside a list of what was seen after each step."""

from __future__ import annotations

import asyncio

from hypothesis import strategies as st

from tests.session.test_undo import carry_out, programs
from tests.soak.programs import search
from tests.soak.rounds import Round


def play(round: Round) -> None:
    """Run `steps` programs on a store."""

    def holds(data: st.DataObject) -> None:
        with round.place.fresh_store(round.store) as url:
            asyncio.run(carry_out(url, data.draw(programs)))

    search(round, holds)
