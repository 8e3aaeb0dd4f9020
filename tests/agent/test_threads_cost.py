"""What a run of a thread costs: what the model is shown, and not all that was ever said."""

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
        self.operations = self.entries_read = self.bytes_read = 0

    async def around(self, operation: str, session: str | None, work: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.operations += 1
        result = await work(*args, **kwargs)
        found: list[Entry] = result if operation == "entries" else result.entries if operation == "load" else []
        self.entries_read += len(found)
        self.bytes_read += sum(len(entry.body) for entry in found)
        if isinstance(result, Loaded) and result.snapshot is not None:
            self.bytes_read += len(result.snapshot.body)
        return result


class Nods(Policy):
    """Says the same each time, and keeps how much it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[int] = []

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        self.shown.append(len(conversation))
        return [message("That is so, as far as I can see from here.")]


class Turns:
    """Runs a thread turn after turn, each time as a process would that knows nothing of it yet."""

    def __init__(self, store: Store, context: Context) -> None:
        self.counting = Counting(store)
        self.model = Nods()
        self.agent = Agent(self.model, context=context)
        self.costs: list[tuple[int, int, int]] = []
        """Operations, entries and bytes of each turn."""

    def threads(self) -> Threads:
        return Threads(Sessions(ThreadEnvironment(), self.counting))

    async def go(self, thread: str, number: int) -> None:
        counting = self.counting
        before = (counting.operations, counting.entries_read, counting.bytes_read)
        threads = self.threads()
        await threads.add(thread, f"Message {number:05}: what do you make of it?")
        assert (await threads.run(thread, self.agent)).status == "completed"
        after = (counting.operations, counting.entries_read, counting.bytes_read)
        self.costs.append(tuple(new - old for old, new in zip(before, after, strict=True)))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_long_thread_costs_no_more_to_run_than_a_short_one(fresh_url: Callable[[str], str], kind: str) -> None:
    async with open_store(fresh_url(kind)) as store:
        turns = Turns(store, Context(600))
        thread = (await turns.threads().create(instructions="You agree with everything.")).id
        for number in range(500):
            await turns.go(thread, number)
        early, late = turns.costs[50:100], turns.costs[-50:]
        for what in range(3):
            assert max(cost[what] for cost in late) <= 1.1 * max(cost[what] for cost in early)
        assert max(turns.model.shown) < 60
        assert len((await turns.threads().items(thread)).items) == 1001


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
