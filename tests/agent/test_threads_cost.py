"""What a run of a thread costs: what the model is shown, and not all that was ever said."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from stateroom import Sessions, open_store
from stateroom.agent import Agent, Context, ThreadEnvironment, Threads
from stateroom.model import Item, Policy, message
from stateroom.store import Entry, Loaded, Store, WrappedStore


class Counting(WrappedStore):
    """Counts what is read of logs: the entries, and the bytes of entries and snapshots."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.cost = Counter[str]()

    async def around(self, operation: str, session: str | None, work: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = await work(*args, **kwargs)
        found: list[Entry] = result if operation == "entries" else result.entries if operation == "load" else []
        snapshot = result.snapshot if isinstance(result, Loaded) else None
        size = sum(len(entry.body) for entry in found) + (len(snapshot.body) if snapshot else 0)
        self.cost.update(operations=1, entries=len(found), bytes=size)
        return result


class Nods(Policy):
    """Says the same each time, and keeps how much it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[int] = []

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        self.shown.append(len(conversation))
        return [message("That is so, as far as I can see from here.")]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_long_thread_costs_no_more_to_run_than_a_short_one(fresh_url: Callable[[str], str], kind: str) -> None:
    model, costs = Nods(), []
    async with open_store(fresh_url(kind)) as store:
        thread = await Threads(Sessions(ThreadEnvironment(), store)).create(instructions="You agree with everything.")
        for number in range(300):
            counting = Counting(store)
            threads = Threads(Sessions(ThreadEnvironment(), counting))  # as a process that knows nothing of it yet
            await threads.add(thread.id, f"Message {number:05}: what do you make of it?")
            assert (await threads.run(thread.id, Agent(model, context=Context(600)))).status == "completed"
            costs.append(counting.cost)
        reader = Threads(Sessions(ThreadEnvironment(), store))
        assert len((await reader.items(thread.id)).items) == 601
    for what in costs[0]:
        assert max(cost[what] for cost in costs[-50:]) <= 1.1 * max(cost[what] for cost in costs[50:100])
    assert max(model.shown) < 60


async def test_a_pinned_message_is_shown_however_long_the_thread() -> None:
    class Remembers(Policy):
        def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
            found = [place for place, item in enumerate(conversation) if "the key is 7" in str(item)]
            return [message(f"{len(conversation)} {found}")]

    async with Threads.open("memory://") as threads:
        agent = Agent(Remembers(), context=Context(300))
        for pin in (True, False):
            thread = await threads.create()
            await threads.add(thread, "the key is 7", pin=pin)
            for number in range(40):
                done = await threads.run(thread, agent)
                await threads.add(thread, f"and {number}?")
            assert ("[0]" in str(done.output[-1])) is pin
