"""Tokens: a client's access to its session, signed so that nobody else can make or change one.

A token is `subject.issued.signature`, or `subject.issued-key.signature` where an API key was needed. The signature
covers the environment too, so that a token of one environment is not valid in another.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from secrets import token_urlsafe
from typing import NamedTuple

from stateroom.errors import IS_POSIX, CannotWrite, DefinitionError, Unauthorized
from stateroom.server.http import HTTPRequest

DAY_SECONDS = 24 * 3600.0

VARIABLE = "STATEROOM_SECRET"
"""The environment variable with the secret, or with several separated by commas while one replaces another."""

MIN_SECRET_CHARACTERS = 16
"""Characters of a secret, at least: a shorter one could be guessed."""

COOKIE = b"stateroom_"
"""Start of the names of all session cookies; the environment's name follows."""

TOKEN_HEADER = b"x-nemo-gym-session-token"
"""The header in which MCP clients, which have no cookies, send the token."""

INSECURE = b"; Path=/; HttpOnly; SameSite=Lax"
SECURE = INSECURE + b"; Secure"
"""The attributes of the cookie, without and with TLS."""

MAX_KNOWN, MAX_KNOWN_SIZE = 10_000, 1024
"""Cookie headers per environment that are remembered, so that each is verified once and not at every call; and the
size of one."""


class Signer:
    """Makes and reads the tokens of one environment. The first secret signs; tokens of the others stay valid.

    A token lives a day longer than an unused session, so that the client learns that the session has expired. A
    token that is half a day old, or that an older secret signed, is renewed with the next response.
    """

    def __init__(
        self, secrets: Sequence[str], environment: str, ttl: float, now: Callable[[], float] = time.time
    ) -> None:
        check_secrets(secrets)
        self.life = ttl + DAY_SECONDS
        self.now = now
        self._signing_keys, self._handle_keys, self._seed_keys, self._id_keys = (
            [_key(secret, f"{purpose} of {environment}") for secret in secrets]
            for purpose in ("session", "tools", "seeding", "ids")
        )

    def sign(self, subject: str, key: str = "") -> bytes:
        """A token for a subject, issued now; `key` names the API key that the session was made with."""
        return self._signed(f"{subject}.{int(self.now()):x}{f'-{key}' if key else ''}", self._signing_keys)

    def read(self, token: bytes) -> tuple[str, bytes]:
        """The subject of a token, and the token to use from now on."""
        subject, name, age, key = self._verified(token, self._signing_keys)
        renewed = key is not self._signing_keys[0] or age > DAY_SECONDS / 2
        return subject, self.sign(subject, name) if renewed else token

    def handle(self, subject: str) -> str:
        """A token that a model may see: it gives access to the tools over MCP, and to nothing else."""
        return self._signed(f"{subject}.{int(self.now()):x}", self._handle_keys).decode()

    def read_handle(self, handle: str) -> str:
        """The subject of a handle, or of a token: who may do all may call tools."""
        return self._verified(handle.encode("utf-8", "replace"), [*self._handle_keys, *self._signing_keys])[0]

    def _signed(self, text: str, keys: Sequence[bytes]) -> bytes:
        return text.encode() + b"." + _mac(keys[0], text.encode()).encode()

    def _verified(self, token: bytes, keys: Sequence[bytes]) -> tuple[str, str, float, bytes]:
        """The subject of a token, its API key's name, its age and the key that signed it."""
        text, _, signature = token.rpartition(b".")
        key = next((key for key in keys if compare_digest(_mac(key, text).encode(), signature)), None)
        if key is None:
            raise Unauthorized("invalid session token; seed a session, and send the token from the reply")
        subject, _, rest = text.decode().rpartition(".")
        issued, _, name = rest.partition("-")
        age = self.now() - int(issued, 16)
        if age > self.life:
            raise Unauthorized("this session token has expired; seed a new session")
        return subject, name, age, key

    def seed_key(self, subject: str) -> str:
        """The key with which a client can seed its session again; it does not follow from the token."""
        return _mac(self._seed_keys[0], subject.encode())

    def is_seed_key(self, subject: str, given: str) -> bool:
        """Whether `seed_key` gave this, with the current secret or an older one."""
        return given.isascii() and any(compare_digest(_mac(key, subject.encode()), given) for key in self._seed_keys)

    def session_ids(self, name: str) -> list[str]:
        """The session ids for a client's own name of a session, by each secret; the first is for new sessions."""
        text = name.encode("utf-8", "surrogatepass")
        return [blake2b(text, key=key, digest_size=12).hexdigest() for key in self._id_keys]


def api_key_of(token: bytes) -> str:
    """The name of the API key in a valid token; empty if it has none."""
    return token.rpartition(b".")[0].rpartition(b".")[2].partition(b"-")[2].decode()


def _key(secret: str, purpose: str) -> bytes:
    raw = secret.encode("utf-8", "surrogateescape")  # as the system has it
    return blake2b(purpose.encode(), key=blake2b(raw).digest(), digest_size=32).digest()


def _mac(key: bytes, text: bytes) -> str:
    return blake2b(text, key=key, digest_size=20).hexdigest()


class VerifiedToken(NamedTuple):
    """A token that was found valid, and the `Set-Cookie` that sends it back."""

    subject: str
    token: bytes
    set_cookie: bytes
    until: float
    """When it is to be read again, because it may be out of date."""


class SessionCookies:
    """The cookies in which an environment's clients hold their session tokens."""

    def __init__(self, environment: str, signer: Signer) -> None:
        self.signer = signer
        self._start = COOKIE + f"{environment}=".encode()
        self.name = self._start[:-1].decode()
        self.known: dict[tuple[bytes, bool], VerifiedToken] = {}
        """Verified tokens by the request's `Cookie` header, and whether its client uses TLS."""

    def read(self, request: HTTPRequest) -> VerifiedToken | None:
        """The token in a request's cookie, which goes back with the response; None without a cookie.

        Raises `Unauthorized` if the token is not valid.
        """
        verified = self._verified(request)
        if verified is not None:
            request.set_cookie = verified.set_cookie
        return verified

    def hand_out(self, request: HTTPRequest, subject: str) -> None:
        """Send a new token with the response."""
        request.set_cookie = self._set_cookie(request, self.signer.sign(subject, request.key))

    def missing(self, request: HTTPRequest) -> bytes | None:
        """The `Set-Cookie` for a valid token in a request, if the response does not send it back yet."""
        if (request.set_cookie or b"").startswith(self._start):
            return None
        with suppress(Unauthorized):
            verified = self._verified(request)
            return None if verified is None else verified.set_cookie
        return None

    def _verified(self, request: HTTPRequest) -> VerifiedToken | None:
        place = (request.cookies, request.secure)
        known = self.known.get(place)
        if known is not None and known.until > self.signer.now():
            return known
        given = self._given(request)
        if given is None:
            return None
        subject, token = self.signer.read(given)
        verified = VerifiedToken(subject, token, self._set_cookie(request, token), issued_at(token) + DAY_SECONDS / 2)
        if token == given and len(request.cookies) <= MAX_KNOWN_SIZE:  # else the client sends the new one next time
            if len(self.known) >= MAX_KNOWN:
                self.known.clear()
            self.known[place] = verified
        return verified

    def _set_cookie(self, request: HTTPRequest, token: bytes) -> bytes:
        return self._start + token + (SECURE if request.secure else INSECURE)

    def _given(self, request: HTTPRequest) -> bytes | None:
        """The token in the request's cookie, valid or not."""
        for cookie in request.cookies.split(b";"):
            given = cookie.strip()
            if given.startswith(self._start):
                return given[len(self._start) :]
        return None


def issued_at(token: bytes) -> float:
    """When a valid token was issued."""
    return float(int(token.rpartition(b".")[0].rpartition(b".")[2].partition(b"-")[0], 16))


# Secrets.


def find_secrets() -> tuple[Sequence[str], str]:
    """Return the signing secrets and their origin: the environment variable, or a file created on first use."""
    given = [secret.strip() for secret in os.environ.get(VARIABLE, "").split(",") if secret.strip()]
    if given:
        return check_secrets(given, VARIABLE), VARIABLE
    path = secret_file()
    try:
        return check_secrets(_from_file(path), str(path)), str(path)
    except OSError as error:
        raise CannotWrite(f"cannot read or create the secret {path}: {error.strerror}; set {VARIABLE}") from error


def check_secrets(secrets: Sequence[str], origin: str = "the secrets to sign with") -> Sequence[str]:
    """Return the secrets, or raise if there is none or one is too short; `origin` names them in the error."""
    if not secrets or any(len(secret) < MIN_SECRET_CHARACTERS for secret in secrets):
        raise DefinitionError(
            f"{origin}: a secret must have at least {MIN_SECRET_CHARACTERS} characters; "
            "create one with: openssl rand -hex 32"
        )
    return secrets


def secret_file() -> Path:
    """The file with the secret that is created on first use, in the user's data folder."""
    try:
        data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    except RuntimeError as error:
        raise CannotWrite(f"this user has no home folder to store a secret in; set {VARIABLE}") from error
    return Path(data) / "stateroom" / "secret"


def _from_file(path: Path) -> list[str]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"secret.{token_urlsafe(8)}")
    if not path.exists():
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token_urlsafe(32) + "\n")
        try:
            os.link(draft, path)  # whole, or not at all; of two processes that start at once, one wins
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    if IS_POSIX and path.stat().st_mode & 0o077:  # Windows has other permissions
        raise DefinitionError(f"other users can read {path}; run chmod 600 on it, or remove it and start again")
    text = path.read_text("utf-8", "surrogateescape")
    return [line.strip() for line in text.splitlines() if line.strip()]
