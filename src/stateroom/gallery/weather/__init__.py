"""weather: ask for a city's weather. The smallest stateless environment."""

from stateroom.gallery.weather.environment import WeatherEnvironment

__all__ = ["WeatherEnvironment"]
