"""Where an endpoint is, what its model is called there, and with which key it is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from stateroom.errors import NotFound

OPENAI = "https://api.openai.com/v1"
NO_KEY = "none"
"""What is sent where no key is asked for, as the header must have something in it."""

SECRET = 16
"""Characters that a key has at least, if it is a secret and not a word such as `ollama`."""

_MODEL_AT = re.compile(r"(?P<model>.+?)@(?P<url>https?://.*)", re.DOTALL)
_KEY = re.compile(r"[!-~]+")
"""What can stand in a header."""


class Address:
    """A model, a URL and a key, which nobody is shown."""

    def __init__(self, model: str, url: str, key: str = NO_KEY) -> None:
        self.model = model
        self.url = _checked_url(url)
        self.key = key
        if not _KEY.fullmatch(key):
            raise NotFound("OPENAI_API_KEY has characters in it that no key has")

    @classmethod
    def of_openai(cls, model: str, variables: Mapping[str, str]) -> Address:
        """A model of OpenAI's, or of whoever the environment variable `OPENAI_BASE_URL` names."""
        key = _key(variables)
        if key is None:
            raise NotFound(f"openai:{model} needs a key: set the environment variable OPENAI_API_KEY")
        return cls(model, variables.get("OPENAI_BASE_URL") or OPENAI, key)

    @classmethod
    def of_text(cls, text: str, variables: Mapping[str, str]) -> Address:
        """The address in `NAME@http://host/v1`."""
        found = _MODEL_AT.fullmatch(text)
        if found is None:
            raise NotFound("say which model at which address, for example: chat:llama-3@http://127.0.0.1:8000/v1")
        return cls(found["model"], found["url"], _key(variables) or NO_KEY)

    def __repr__(self) -> str:
        return f"Address({self.model!r}, {self.url!r})"

    def hidden(self, text: str) -> str:
        """A text without the key, wherever it comes from."""
        return text if self.key == NO_KEY else text.replace(self.key, "***")

    def hidden_in_answer(self, text: str) -> str:
        """An answer without the key, unless that may as well be a word, or a number, of the answer's own."""
        return self.hidden(text) if len(self.key) >= SECRET else text


def _key(variables: Mapping[str, str]) -> str | None:
    return variables.get("OPENAI_API_KEY", "").strip() or None


def _checked_url(url: str) -> str:
    """A URL that may be shown to anyone."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # whose text may have a password
        raise NotFound(
            "the address of a model cannot be understood; it is for example http://127.0.0.1:8000/v1"
        ) from None
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise NotFound(
            f"the address of a model at {host} has more than a host and a path; its key goes into OPENAI_API_KEY"
        )
    if parts.scheme not in ("http", "https") or not host:
        raise NotFound(f"{url!r} is not the address of a model; it is for example http://127.0.0.1:8000/v1")
    return url.rstrip("/")
