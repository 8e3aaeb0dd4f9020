"""Two that ask for the weather without a model."""

from __future__ import annotations

from stateroom.model import Item, Noisy, Policy, function_call, last_user_text, message, outputs_of


class ReferencePolicy(Policy):
    """Asks for the weather of the city that the user names, and passes it on."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        results = outputs_of(conversation)
        if results:
            return [message(results[-1].get("weather_description", "I could not find out."))]
        city = last_user_text(conversation).rstrip("?!. ").rpartition(" in ")[2]
        return [function_call("get_weather", "call_0", city=city)]


class NoisyPolicy(Noisy):
    """Answers out of its own head, in some episodes."""

    better = ReferencePolicy

    def err(self, items: list[Item]) -> list[Item]:
        return [message("It is probably fine.")]
