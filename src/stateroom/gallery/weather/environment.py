"""A weather service: one call, no state."""

from __future__ import annotations

from random import Random
from typing import Any

from stateroom import Environment, Episode, tool
from stateroom.gallery.weather.policies import NoisyPolicy, ReferencePolicy
from stateroom.model import calls_of

CITIES = ("Bergen", "Cairo", "Hanoi", "Lima", "Montreal", "Nairobi", "Osaka", "Perth", "Porto", "Tallinn")


class WeatherEnvironment(Environment):
    """Report the weather of a city."""

    examples = "tasks.jsonl"
    policies = {"reference": ReferencePolicy, "noisy": NoisyPolicy}

    @tool(effect="read")
    def get_weather(self, city: str) -> dict[str, str]:
        """The weather in a city.

        Args:
            city: The city's name.
        """
        return {"city": city, "weather_description": f"The weather in {city} is cold."}

    def verify(self, episode: Episode) -> float:
        """1 if the weather was looked up, else 0."""
        return float(bool(calls_of(episode.response, "get_weather")))

    @classmethod
    def generate(cls, rng: Random) -> dict[str, Any]:
        """A new task: one city."""
        city = rng.choice(CITIES)
        return {"responses_create_params": {"input": f"What is the weather in {city}?"}}
