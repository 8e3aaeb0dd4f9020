"""How many examples a property is tried with: `STATEROOM_EXAMPLES`, or as many as a run of all tests has time for."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "stateroom",
    max_examples=int(os.environ.get("STATEROOM_EXAMPLES", "30")),
    deadline=None,  # a busy machine is no failure
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("stateroom")


def share(part: float) -> int:
    """The number for a property whose examples take longer than most, or less long."""
    return max(1, round(settings().max_examples * part))
