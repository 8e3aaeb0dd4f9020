"""The price of a call: what Stateroom adds to validating, calling and encoding."""

from __future__ import annotations

import json

from pydantic import BaseModel

from benchmarks.environments import seed_counter
from benchmarks.timing import Figure, interleaved, repeated, slowdown
from stateroom import open_store
from stateroom.gallery import Counter, CounterEnvironment


class Arguments(BaseModel):
    count: int


async def calls() -> list[Figure]:
    """A call of the counter in process, against the same by hand.

    By hand means `Model.model_validate(arguments)`, the function, and `json.dumps(result)`: no state, no log, no lock.
    """
    environment = CounterEnvironment()
    counter = Counter()

    async def by_hand() -> str:
        arguments = Arguments.model_validate({"count": 1})
        return json.dumps(environment.increment_counter(counter, arguments.count))

    async with open_store("memory://") as store:
        session = await seed_counter(store)

        async def call() -> None:
            await session.call("increment_counter", {"count": 1})

        await repeated(call, 50)
        bare, ours = await interleaved(lambda: repeated(by_hand, 2000), lambda: repeated(call, 2000))
    return [slowdown("a call in process against the same by hand", ours, bare, 5)]
