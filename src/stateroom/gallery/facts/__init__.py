"""facts: check a claim against contradictory sources, and cite the decisive one."""

from stateroom.gallery.facts.environment import Desk, FactsEnvironment, FactsTask

__all__ = ["Desk", "FactsEnvironment", "FactsTask"]
