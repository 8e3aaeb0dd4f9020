"""counter: bring a counter to a value. The smallest stateful environment."""

from stateroom.gallery.counter.environment import Counter, CounterEnvironment, CounterTask

__all__ = ["Counter", "CounterEnvironment", "CounterTask"]
