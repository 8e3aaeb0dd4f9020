"""The address of a remote model, and its key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from stateroom.errors import InvalidModel

OPENAI = "https://api.openai.com/v1"
OPENAI_KEY = "OPENAI_API_KEY"
"""The environment variable with the key of OpenAI, which no other host gets."""

NO_KEY = "none"
"""The key for servers that need none; the header must not be empty."""

MIN_SECRET_LENGTH = 16
"""Minimum length of a secret key; a shorter one is a word such as `ollama`."""

_MODEL_AT = re.compile(r"(?P<model>.+?)@(?P<urls>https?://.*)", re.DOTALL)
_KEY = re.compile(r"[!-~]+")
"""Characters that a header may contain."""


class ModelAddress:
    """A model's name, URL and key. The key never shows in messages."""

    def __init__(self, model: str, url: str, key: str = NO_KEY, variable: str = OPENAI_KEY) -> None:
        self.model = model
        self.url = _checked_url(url)
        self.key = key
        self.variable = variable
        """The environment variable that the key is from, or should be in."""
        if not _KEY.fullmatch(key):
            raise InvalidModel(f"{variable} contains characters that no key has")

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
        """The addresses in `NAME@http://host/v1`, or in `NAME@URL,URL` for a model on several servers.

        `variable` names the environment variable with the key, by default the one of each host.
        """
        match = _MODEL_AT.fullmatch(text)
        urls = match["urls"].split(",") if match else []
        if match is None or not all(url.startswith(("http://", "https://")) for url in urls):  # a part may be a secret
            raise InvalidModel("name a model and its address, for example: chat:llama-3@http://127.0.0.1:8000/v1")
        addresses = []
        for url in urls:
            own = variable or key_variable(url)
            key = _key(variables, own)
            if key is None and variable is not None:
                raise InvalidModel(f"there is no key of {match['model']}: set the environment variable {variable}")
            addresses.append(cls(match["model"], url, key or NO_KEY, own))
        if len({address.url for address in addresses}) < len(urls):
            raise InvalidModel(f"the addresses of {match['model']} name one server twice")
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
    """The environment variable with the key of a URL's host: each host has its own."""
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
    except ValueError:  # its text may contain a password
        raise InvalidModel("the address of a model cannot be read; an example is http://127.0.0.1:8000/v1") from None
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise InvalidModel(
            f"the address of a model at {host} has more than a host and a path; put the key in an environment variable"
        )
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidModel(f"{url!r} is not the address of a model; an example is http://127.0.0.1:8000/v1")
    return url.rstrip("/")
