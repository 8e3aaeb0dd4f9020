from stateroom import Episode
from stateroom.gallery import Counter, CounterEnvironment


class PlainCounterEnvironment(CounterEnvironment):
    """The counter, judged by its state alone: its verdict belongs to no response, and has no components."""

    name = "counter"

    def verify(self, state: Counter, episode: Episode) -> float:
        return float(state.value == episode.task.expected_count)
