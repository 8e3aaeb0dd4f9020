"""Random programs, beside a model of what they must come to: those of the suite, with other seeds and no end."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, reproduce_failure, settings, strategies as st
from hypothesis.errors import DidNotReproduce

from tests.session.test_time_travel import check_program, programs
from tests.soak.rounds import Round
from tests.state import test_drafts_property as drafts
from tests.state.classes import check_generated_class

BLOB = re.compile(r"@reproduce_failure\('[^']*', (b'(?:[^'\\]|\\.)*')\)")
STATES: dict[str, Callable[[st.DataObject], None]] = {
    "drafts": lambda data: drafts.check_program(data.draw(drafts.worlds), data, drafts.places, 6),
    "classes": check_generated_class,
}
"""Programs that need no store."""


def play(round: Round) -> None:
    """Run `steps` programs on states alone, or on the sessions of a store; one that fails is made short."""

    def holds(data: st.DataObject) -> None:
        if round.store in STATES:
            STATES[round.store](data)
            return
        with round.place.fresh_store(round.store) as url:
            program: Any = data.draw(programs)
            check_program(url, **program)

    search(round, holds)


def search(round: Round, check: Callable[[st.DataObject], None]) -> None:
    """Look for one of `steps` programs that fails, and shorten it; or run the one program of the round's blob."""

    @hypothesis.seed(round.seed)
    @settings(
        max_examples=round.steps,
        phases=[Phase.generate, Phase.shrink],
        database=None,
        deadline=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        round.tally.operations += 1
        check(data)

    try:
        if round.blob is None:
            holds()
        else:
            reproduce_failure(hypothesis.__version__, round.blob)(holds)()
    except DidNotReproduce:
        return  # it is mended
    except Exception as error:
        found = BLOB.search("\n".join(getattr(error, "__notes__", [])))
        round.blob = literal_eval(found[1]) if found else round.blob
        raise
