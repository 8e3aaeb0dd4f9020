"""An environment whose sessions share states: of their user, and of the app. What `environment` says holds here too."""

from typing import Annotated

from stateroom import Environment, Merge, State, Task, tool


class Visit(State):
    bought: list[str] = []


class Profile(State):
    points: int = 0
    tags: Annotated[set[str], Merge("union")] = set()


class Stock(State):
    left: dict[str, int] = {"tea": 10}


class VisitTask(Task):
    user: str


class ShopEnvironment(Environment[Visit, VisitTask]):
    """Sells, and remembers to whom."""

    @tool
    def buy(self, state: Visit, user: Profile, app: Stock, what: str) -> int:
        """Buy something."""
        app.left[what] -= 1
        user.points += 10
        user.tags.add(what)
        state.bought.append(what)
        return user.points

    def verify(self, user: Profile) -> float:
        return float(user.points)
