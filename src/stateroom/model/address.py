"""The address and the API key of a remote model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from stateroom.errors import InvalidModel

OPENAI = "https://api.openai.com/v1"
OPENAI_KEY = "OPENAI_API_KEY"
"""The environment variable with the OpenAI key, which is sent to no other host."""

NO_KEY = "none"
"""The key for servers without authentication; the header must not be empty."""

MIN_SECRET_LENGTH = 16
"""Minimum length of a secret key; a shorter one is a word such as `ollama`."""

_MODEL_AT = re.compile(r"(?P<model>.+?)@(?P<urls>https?://.*)", re.DOTALL)
_KEY = re.compile(r"[!-~]+")
"""Characters that a header may contain."""


class ModelAddress:
    """The name, URL and key of a model. The key never appears in messages."""

    def __init__(self, model: str, url: str, key: str = NO_KEY, variable: str = OPENAI_KEY) -> None:
        self.model = model
        self.url = _checked_url(url)
        self.key = key
        self.variable = variable
        """The environment variable for the key."""
        if not _KEY.fullmatch(key):
            raise InvalidModel(f"{variable} contains characters that are invalid in a key")

    @classmethod
    def of_openai(cls, model: str, variables: Mapping[str, str], variable: str | None = None) -> ModelAddress:
        """An OpenAI model, or one at the address in the environment variable `OPENAI_BASE_URL`.

        `variable` names the environment variable with the key, by default `OPENAI_API_KEY`.
        """
        variable = variable or OPENAI_KEY
        key = _key(variables, variable)
        if key is None:
            raise InvalidModel(f"openai:{model} needs a key: set the environment variable {variable}")
        return cls(model, variables.get("OPENAI_BASE_URL") or OPENAI, key, variable)

    @classmethod
    def of_text(cls, text: str, variables: Mapping[str, str], variable: str | None = None) -> list[ModelAddress]:
        """Parse `NAME@http://host/v1`, or `NAME@URL,URL` for a model on several servers.

        `variable` names the environment variable with the key, by default a separate one per host.
        """
        match = _MODEL_AT.fullmatch(text)
        urls = match["urls"].split(",") if match else []
        if match is None or not all(url.startswith(("http://", "https://")) for url in urls):  # a part may be a secret
            raise InvalidModel("give a model and its address, such as chat:llama-3@http://127.0.0.1:8000/v1")
        addresses = []
        for url in urls:
            own = variable or key_variable(url)
            key = _key(variables, own)
            if key is None and variable is not None:
                raise InvalidModel(f"{match['model']} needs a key: set the environment variable {variable}")
            addresses.append(cls(match["model"], url, key or NO_KEY, own))
        if len({address.url for address in addresses}) < len(urls):
            raise InvalidModel(f"the addresses of {match['model']} contain the same server twice")
        return addresses

    def __repr__(self) -> str:
        return f"ModelAddress({self.model!r}, {self.url!r})"

    def hidden(self, text: str) -> str:
        """A text without the key."""
        return text if self.key == NO_KEY else text.replace(self.key, "***")

    def hidden_in_answer(self, text: str) -> str:
        """An answer without the key, unless the key is so short that it may be an ordinary word."""
        return self.hidden(text) if len(self.key) >= MIN_SECRET_LENGTH else text


def key_variable(url: str) -> str:
    """The environment variable with the key for the host of a URL."""
    host = urlsplit(_checked_url(url)).hostname or ""
    if host == urlsplit(OPENAI).hostname:
        return OPENAI_KEY
    return f"API_KEY_{re.sub(r'[^A-Z0-9]', '_', host.upper())}"


def _key(variables: Mapping[str, str], variable: str) -> str | None:
    return variables.get(variable, "").strip() or None


def _checked_url(url: str) -> str:
    """A URL that is safe to show."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # the error may contain a password
        raise InvalidModel("the address of the model is invalid; an example is http://127.0.0.1:8000/v1") from None
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise InvalidModel(
            f"the address of the model at {host} may have only a host and a path; put a key in an environment variable"
        )
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidModel(f"{url!r} is not a valid model address, such as http://127.0.0.1:8000/v1")
    return url.rstrip("/")
