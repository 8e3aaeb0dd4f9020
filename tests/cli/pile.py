"""An environment of one's own, with policies that are good, lazy or broken: tests copy it to where they run."""

from stateroom import Environment, State, Verdict, tool
from stateroom.model import Policy, function_call, message, outputs_of


class Pile(State):
    stones: list[str] = []


class PileEnvironment(Environment[Pile]):
    """Pile up stones."""

    @tool
    def put(self, state: Pile, colour: str) -> dict:
        """Put a stone."""
        state.stones.append(colour)
        return {"height": len(state.stones)}

    @tool(effect="read")
    def look(self, state: Pile) -> list[str]:
        """Look at the pile."""
        return [*state.stones]

    def verify(self, state: Pile, episode) -> Verdict:
        reward = 0.5 * len(state.stones)
        return Verdict(reward, {"height": reward, "style": 0.25}, reason=f"{len(state.stones)} of 2 stones")


class PileAbstract(Environment[Pile]):
    """Needs an argument."""

    def __init__(self, size):
        pass

    def verify(self, state: Pile) -> float:
        return 1.0


class Puts(Policy):
    """Puts as many stones as the prompt says, and looks once in between."""

    def respond(self, conversation, tools):
        wanted, done = int(conversation[0]["content"]), len(outputs_of(conversation))
        if wanted == 9:
            raise RuntimeError("no such number")
        if done == 1:
            return [function_call("look", "call_look")]
        if done <= wanted:
            return [function_call("put", f"call_{done}", colour="red")]
        return [message("Done. " + "It is a very fine pile. " * 60)]


class Lazy(Puts):
    """Puts only one stone."""

    def respond(self, conversation, tools):
        if len(outputs_of(conversation)) == 2:
            return [message("One will do.")]
        return super().respond(conversation, tools)


class Raises(Policy):
    def respond(self, conversation, tools):
        raise RuntimeError("my [bold] mistake")


class Idle(Policy):
    pass
