"""Environments without a state: they touch no store, and their sessions have no history."""

from typing import Any

import pytest

from stateroom import Environment, Sessions, Task, tool
from stateroom.errors import DefinitionError, SessionClosed, SessionError, UnknownSession
from stateroom.store import Store
from tests.messages import raises


def _refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("the store was touched")


Untouchable = type("Untouchable", (Store,), dict.fromkeys(Store.__abstractmethods__, _refuse))


class Weather(Task):
    city: str


class WeatherEnvironment(Environment[None, Weather]):
    """Tells the weather."""

    @tool
    def weather(self, city: str) -> dict[str, str]:
        """The weather in a city."""
        return {"city": city}

    @tool
    async def roll(self, rng, new_id) -> list[Any]:
        """Luck."""
        return [rng.random(), new_id()]

    @tool(effect="external")
    def send(self) -> str:
        """Reach outside."""
        return "sent"

    def verify(self, episode) -> float:
        return float(episode.response == episode.task.city)


@pytest.fixture
def sessions() -> Sessions[None]:
    return Sessions(WeatherEnvironment(), Untouchable())


async def test_a_stateless_session_touches_no_store(sessions: Sessions[None]) -> None:
    session = await sessions.seed({"city": "Bergen"})
    result = await session.call("weather", {"city": "Oslo"}, call_id="c")
    assert result.output == {"city": "Oslo"}
    assert (await session.call("send")).output == "sent"
    assert (await session.verify("Bergen")).reward == 1.0
    assert (session.state, session.revision, session.parent, session.task.city) == (None, 0, None, "Bergen")
    assert [entry async for entry in session.log()] == []
    assert session.id in repr(session)
    await session.close()


async def test_failures_are_results_here_too(sessions: Sessions[None]) -> None:
    session = await sessions.seed({"city": "Bergen"})
    for name, arguments in (("weather", {}), ("rain", {}), ("weather", {"city": 1}), ("weather", ["Oslo"])):
        result = await session.call(name, arguments)  # type: ignore[arg-type]
        assert not result.ok
        assert result.error


async def test_history_is_refused(sessions: Sessions[None]) -> None:
    session = await sessions.seed({"city": "Bergen"})
    for attempt in (
        lambda: session.fork(at=1),
        lambda: session.fork(n=2),
        lambda: session.rewind(to=1),
        session.undo,
        lambda: session.checkpoint("here"),
        lambda: session.state_at(1),
        lambda: anext(session.events(after=1)),
    ):
        with raises(SessionError):
            await attempt()


async def test_a_closed_one_is_closed_and_none_can_be_opened(sessions: Sessions[None]) -> None:
    session = await sessions.seed({"city": "Bergen"})
    await session.close()
    with pytest.raises(SessionClosed):
        await session.call("send")
    with pytest.raises(SessionClosed):
        await session.verify()
    with pytest.raises(UnknownSession):
        await sessions.open(session.id)


async def test_luck_follows_from_the_seed_and_changes_from_call_to_call(sessions: Sessions[None]) -> None:
    first, second = [await sessions.seed({"city": "Bergen"}, seed=3) for _ in range(2)]
    rolls = [(await first.call("roll")).output for _ in range(3)]
    assert [(await second.call("roll")).output for _ in range(3)] == rolls
    assert len({number for number, _ in rolls}) == len({name for _, name in rolls}) == 3


async def test_luck_of_a_call_with_an_id_follows_from_the_id(sessions: Sessions[None]) -> None:
    first, second = [await sessions.seed({"city": "Bergen"}, seed=3) for _ in range(2)]
    luck = {call_id: (await first.call("roll", call_id=call_id)).output for call_id in ("a", "b", "c")}
    assert len({number for number, _ in luck.values()}) == 3
    for call_id in ("c", "a", "b"):  # whatever came before
        assert (await second.call("roll", call_id=call_id)).output == luck[call_id]


def test_a_tool_without_a_state_has_no_session() -> None:
    with raises(DefinitionError):

        class Asking(Environment):
            """Asks."""

            @tool
            def ask(self, session) -> str:
                """Ask for what is not there."""
                return str(session.task)

            def verify(self) -> float:
                return 0.0
