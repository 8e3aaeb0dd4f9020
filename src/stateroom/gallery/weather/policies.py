"""Policies for the weather."""

from __future__ import annotations

from stateroom.model import Item, Noisy, Policy, function_call, last_user_text, message, newest_turn, outputs_of


class ReferencePolicy(Policy):
    """Looks up the weather of the city in the prompt, and reports it."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        results = outputs_of(newest_turn(conversation))
        if results:
            return [message(results[-1].get("weather_description", "I could not find out."))]
        city = last_user_text(conversation).rstrip("?!. ").rpartition(" in ")[2]
        return [function_call("get_weather", f"call_{len(outputs_of(conversation))}", city=city)]


class NoisyPolicy(Noisy):
    """Answers without looking in some episodes."""

    better = ReferencePolicy

    def err(self, items: list[Item]) -> list[Item]:
        return [message("It is probably fine.")]
