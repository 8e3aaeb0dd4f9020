"""Tokens: what a client holds of its session, signed so that nobody can make or alter one.

A token is `subject.issued.signature`, or `subject.issued-key.signature` where an API key was needed. The signature
covers the environment too, so that a token of one environment is worth nothing in another.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from secrets import token_urlsafe

from stateroom.errors import CannotWrite, DefinitionError, Unauthorized

DAY = 24 * 3600.0

VARIABLE = "STATEROOM_SECRET"
"""The environment variable with the secret; several, separated by commas, when one takes over from another."""

MOST_KNOWN = 10_000
"""So many tokens are remembered, to be checked once and not at every call."""

SHORTEST = 16
"""A secret of fewer characters could be guessed."""


class Signer:
    """Makes and reads the tokens of one environment. The first secret signs; tokens of the others are still good.

    A token lives a day longer than a session that is left alone, so that the session says itself that it has expired;
    when half a day old, or if an older secret signed it, it is renewed on its way.
    """

    def __init__(
        self, secrets: Sequence[str], environment: str, ttl: float, now: Callable[[], float] = time.time
    ) -> None:
        check_secrets(secrets)
        self.life = ttl + DAY
        self.now = now
        self._known: dict[bytes, tuple[str, float]] = {}
        """Tokens that were found good, with their subject and the time until which they need not be renewed."""
        self._keys = [_key(secret, f"session of {environment}") for secret in secrets]
        self._seed_keys = [_key(secret, f"seeding of {environment}") for secret in secrets]
        self._id_keys = [_key(secret, f"ids of {environment}") for secret in secrets]

    def sign(self, subject: str, key: str = "") -> bytes:
        """A token for a subject, from now on; `key` names the API key that it was made with."""
        text = f"{subject}.{int(self.now()):x}{f'-{key}' if key else ''}".encode()
        return text + b"." + _mac(self._keys[0], text).encode()

    def read(self, token: bytes) -> tuple[str, bytes]:
        """The subject of a token, and the token to go on with."""
        known = self._known.get(token)
        if known is not None and known[1] > self.now():
            return known[0], token
        text, _, signature = token.rpartition(b".")
        for key in self._keys:
            if compare_digest(_mac(key, text).encode(), signature):
                renewed = key is not self._keys[0]
                break
        else:
            raise Unauthorized("this session token was not made here: seed a session, and use the token it gives")
        subject, _, said = text.decode().rpartition(".")
        issued, _, name = said.partition("-")
        age = self.now() - int(issued, 16)
        if age > self.life:
            raise Unauthorized("this session token is out of date: seed a new session")
        if renewed or age > DAY / 2:
            return subject, self.sign(subject, name)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[token] = subject, int(issued, 16) + DAY / 2
        return subject, token

    def seed_key(self, subject: str) -> str:
        """What whoever seeded a session is given to seed it again; it does not follow from the token."""
        return _mac(self._seed_keys[0], subject.encode())

    def is_seed_key(self, subject: str, given: str) -> bool:
        """True when this is what `seed_key` gave, now or by an older secret."""
        return given.isascii() and any(compare_digest(_mac(key, subject.encode()), given) for key in self._seed_keys)

    def session_ids(self, name: str) -> list[str]:
        """The session ids that a client's own name for a session stands for: the one for now, and by older secrets."""
        text = name.encode("utf-8", "surrogatepass")
        return [blake2b(text, key=key, digest_size=12).hexdigest() for key in self._id_keys]


def key_of(token: bytes) -> str:
    """The name of the API key in a good token; empty if there is none."""
    return token.rpartition(b".")[0].rpartition(b".")[2].partition(b"-")[2].decode()


def _key(secret: str, purpose: str) -> bytes:
    said = secret.encode("utf-8", "surrogateescape")  # as the system had it
    return blake2b(purpose.encode(), key=blake2b(said).digest(), digest_size=32).digest()


def _mac(key: bytes, text: bytes) -> str:
    return blake2b(text, key=key, digest_size=20).hexdigest()


def find_secrets() -> tuple[Sequence[str], str]:
    """The secrets to sign with, and where they came from: the environment variable, or a file made on first use."""
    given = [secret.strip() for secret in os.environ.get(VARIABLE, "").split(",") if secret.strip()]
    if given:
        return check_secrets(given, VARIABLE), VARIABLE
    path = secret_file()
    try:
        return check_secrets(_from_file(path), str(path)), str(path)
    except OSError as error:
        raise CannotWrite(f"no secret to sign with: cannot use {path}: {error.strerror}; set {VARIABLE}") from error


def check_secrets(secrets: Sequence[str], origin: str = "the secrets to sign with") -> Sequence[str]:
    """The secrets; an error if there is none, or one of them is too short to be any. `origin` names them in it."""
    if not secrets or any(len(secret) < SHORTEST for secret in secrets):
        raise DefinitionError(
            f"{origin}: a secret must have {SHORTEST} characters or more; make one with: openssl rand -hex 32"
        )
    return secrets


def secret_file() -> Path:
    """Where the secret lies that is made on first use: in the user's data folder."""
    try:
        data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    except RuntimeError as error:
        raise CannotWrite(
            f"no secret to sign with: this user has no home folder to keep one in; set {VARIABLE}"
        ) from error
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
    text = path.read_text("utf-8", "surrogateescape")
    return [line.strip() for line in text.splitlines() if line.strip()]
