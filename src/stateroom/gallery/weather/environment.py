"""A weather service: one call, no state."""

from __future__ import annotations

from random import Random
from typing import Any

from stateroom import Environment, Episode, Verdict, tool
from stateroom.gallery.weather.policies import NoisyPolicy, ReferencePolicy

CITIES = ("Bergen", "Cairo", "Hanoi", "Lima", "Montreal", "Nairobi", "Osaka", "Perth", "Porto", "Tallinn")
SKIES = ("clear", "cloudy", "foggy", "rainy", "snowy", "sunny", "windy")


class WeatherEnvironment(Environment):
    """Tell the weather of a city."""

    examples = "tasks.jsonl"
    policies = {"reference": ReferencePolicy, "noisy": NoisyPolicy}

    @tool(effect="read")
    def get_weather(self, city: str) -> dict[str, str]:
        """The weather in a city.

        Args:
            city: The city's name.
        """
        seed = city.encode("utf-8", "surrogatepass")  # any text, also half a surrogate pair
        sky = Random(seed).choice(SKIES)  # the same city has the same weather
        return {"city": city, "weather_description": f"The weather in {city} is {sky}."}

    def verify(self, episode: Episode) -> Verdict:
        items = (episode.response or {}).get("output", [])
        names = [item["name"] for item in items if item.get("type") == "function_call"]
        asked = any(name == "get_weather" or name.endswith("__get_weather") for name in names)  # bare, or over MCP
        return Verdict(1.0, metrics={"asked": float(asked)})

    @classmethod
    def generate(cls, rng: Random) -> dict[str, Any]:
        """A new task: one city."""
        city = rng.choice(CITIES)
        return {"responses_create_params": {"input": f"What is the weather in {city}?"}}
