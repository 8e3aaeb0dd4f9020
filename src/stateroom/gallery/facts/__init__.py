"""facts: check a claim against sources that contradict each other, and cite the one that decides."""

from stateroom.gallery.facts.environment import Desk, FactsEnvironment, FactsTask

__all__ = ["Desk", "FactsEnvironment", "FactsTask"]
