"""Tokens: what a client holds of its session, signed so that nobody can make or alter one.

A token is `subject.issued.signature`. The signature covers the environment too, so that a token of one environment is
worth nothing in another.
"""

from __future__ import annotations

import os
import time
from base64 import b32encode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from secrets import token_urlsafe

from stateroom.errors import CannotWrite, DefinitionError, Unauthorized

DAY = 24 * 3600.0

VARIABLE = "STATEROOM_SECRET"
"""The environment variable with the secret; several, separated by commas, when one takes over from another."""

SHORTEST = 16
"""A secret of fewer characters could be guessed."""


class Signer:
    """Makes and reads the tokens of one environment. The first secret signs; tokens of the others are still good.

    A token lives a day longer than a session that is left alone, so that the session says itself that it has expired;
    `renewed` says when it is time to give a new one.
    """

    def __init__(
        self, secrets: Sequence[str], environment: str, ttl: float, now: Callable[[], float] = time.time
    ) -> None:
        self.life = ttl + DAY
        self.now = now
        self._keys = [_key(secret, f"session of {environment}") for secret in secrets]
        self._seed_keys = [_key(secret, f"seeding of {environment}") for secret in secrets]
        self._id_keys = [_key(secret, f"ids of {environment}") for secret in secrets]

    def sign(self, subject: str) -> bytes:
        """A token for a subject, from now on."""
        text = f"{subject}.{int(self.now()):x}".encode()
        return text + b"." + _mac(self._keys[0], text)

    def read(self, token: bytes) -> tuple[str, bytes]:
        """The subject of a token, and the token to go on with."""
        text, _, signature = token.rpartition(b".")
        if not any(compare_digest(_mac(key, text), signature) for key in self._keys):
            raise Unauthorized(
                "this session token was not made here: seed a session, and send the cookie that it gives"
            )
        subject, _, issued = text.rpartition(b".")
        age = self.now() - int(issued, 16)
        if age > self.life:
            raise Unauthorized("this session token is out of date")
        name = subject.decode()
        return name, self.sign(name) if age > DAY / 2 else token

    def seed_key(self, subject: str) -> str:
        """What whoever seeded a session is given to seed it again; it does not follow from the token."""
        return _mac(self._seed_keys[0], subject.encode()).decode()

    def is_seed_key(self, subject: str, given: str) -> bool:
        text = given.encode("utf-8", "replace")
        return any(compare_digest(_mac(key, subject.encode()), text) for key in self._seed_keys)

    def session_ids(self, name: str) -> list[str]:
        """The session ids that a client's own name for a session stands for: the one for now, and by older secrets."""
        return [
            b32encode(blake2b(name.encode("utf-8", "surrogatepass"), key=key, digest_size=15).digest()).decode().lower()
            for key in self._id_keys
        ]


def _key(secret: str, purpose: str) -> bytes:
    return blake2b(purpose.encode(), key=blake2b(secret.encode()).digest(), digest_size=32).digest()


def _mac(key: bytes, text: bytes) -> bytes:
    return urlsafe_b64encode(blake2b(text, key=key, digest_size=21).digest())


def find_secrets() -> tuple[list[str], str]:
    """The secrets to sign with, and where they came from: the environment variable, or a file made on first use."""
    given = [secret.strip() for secret in os.environ.get(VARIABLE, "").split(",") if secret.strip()]
    if given:
        return check_secrets(given), VARIABLE
    path = secret_file()
    try:
        return check_secrets(_from_file(path)), str(path)
    except OSError as error:
        raise CannotWrite(f"no secret to sign with: cannot use {path}: {error.strerror}; set {VARIABLE}") from error


def check_secrets(secrets: list[str]) -> list[str]:
    """The secrets; an error if one of them is too short to be any."""
    if not secrets or any(len(secret) < SHORTEST for secret in secrets):
        raise DefinitionError(f"a secret must have {SHORTEST} characters or more; make one with: openssl rand -hex 32")
    return secrets


def secret_file() -> Path:
    """Where the secret lies that is made on first use: in the user's data folder."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "stateroom" / "secret"


def _from_file(path: Path) -> list[str]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"secret.{token_urlsafe(8)}")
    if not path.exists():
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token_urlsafe(32) + "\n")
        try:
            os.link(draft, path)  # whole, or not at all; of two that start at once, one wins
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    if path.stat().st_mode & 0o077:
        raise DefinitionError(f"{path} can be read by others: chmod 600 it, or remove it and start again")
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]
