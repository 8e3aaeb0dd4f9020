"""`keys=env:NAME` or `keys=file:PATH`: bodies encrypted with AES-GCM in a store.

Keys are lines, or parts between commas, of `id:base64`, each of 16, 24 or 32 random bytes. The first encrypts, all of
them decrypt. To rotate, put a new key first, and remove the old ones once nothing needs them. This makes one:

    python -c "import base64, os; print('k1:' + base64.b64encode(os.urandom(32)).decode())"

A body is stored as `MARK` + `e`, the length of the key's id, the id, a random nonce of 96 bits, and the ciphertext with
its tag. The tag covers where the body belongs: its session, whether it is an entry (of which kind and call), a snapshot
or a blob, and its revision or name. So a body that was altered or moved is refused. A blob is named by a keyed digest,
so that its name reveals nothing; its own digest is encrypted with it.

Not hidden: ids, owners, times, call ids, the phases of agents, rewards, and the length of each body. Not detected: that
a session, or its newest entries, were removed or reset to an earlier state. With random nonces a key is good for some
billion bodies; replace it before that.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stateroom.errors import BadData, UnknownStore
from stateroom.store.contract import Store
from stateroom.store.records import Blobs
from stateroom.store.wrapper import MARK, Location, TransformedStore, location_name

FORM = MARK + b"e"
NONCE_BYTES = 12
"""Bytes of a nonce."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_pack = msgspec.msgpack.Encoder().encode


class EncryptionKey:
    """A key, ready for use."""

    def __init__(self, name: str, secret: bytes) -> None:
        self.cipher = AESGCM(secret)
        self.start = FORM + bytes([len(name)]) + name.encode()
        """The first bytes of all that it encrypts."""
        self._for_names = blake2b(b"names of blobs", key=secret).digest()

    def name(self, session: str, digest: str) -> str:
        """The name under which a session's blob is stored."""
        return blake2b(_pack((session, digest)), key=self._for_names, digest_size=32).hexdigest()


class EncryptedStore(TransformedStore):
    """Another store, with bodies encrypted by the first of its keys."""

    def __init__(self, store: Store, keys: Mapping[str, bytes]) -> None:
        super().__init__(store)
        self._keys = {name: EncryptionKey(name, secret) for name, secret in keys.items()}
        self._first = next(iter(self._keys.values()))

    def write(self, body: bytes, location: Location) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return self._first.start + nonce + self._first.cipher.encrypt(nonce, body, _pack(location))

    def read(self, kept: bytes, location: Location) -> bytes:
        if not kept.startswith(FORM):
            raise BadData(
                f"{location_name(location)} is not encrypted, but the store's URL has keys=; "
                "copy the data to an encrypted store with `stateroom store copy`, and use that store"
            )
        nonce_at = len(FORM) + 1 + int.from_bytes(kept[len(FORM) : len(FORM) + 1])
        name = kept[len(FORM) + 1 : nonce_at].decode(errors="replace")
        key = self._keys.get(name)
        if key is None:
            raise BadData(f"{location_name(location)} is encrypted with the key {name!r}; add that key to keys=")
        body_at = nonce_at + NONCE_BYTES
        try:
            return key.cipher.decrypt(kept[nonce_at:body_at], kept[body_at:], _pack(location))
        except (InvalidTag, ValueError) as error:  # a ValueError: it is cut short
            raise BadData(
                f"{location_name(location)} cannot be decrypted with the key {name!r}: "
                "the data was altered or moved, or this id now belongs to another key"
            ) from error

    # Blobs, under their keyed names.

    def write_blobs(self, session: str, blobs: Blobs) -> Blobs:
        return super().write_blobs(
            session, {self._first.name(session, digest): _pack((digest, body)) for digest, body in blobs.items()}
        )

    def read_blobs(self, session: str, kept: Blobs) -> dict[str, bytes]:
        named = super().read_blobs(session, kept).values()
        return dict(msgspec.msgpack.decode(blob, type=tuple[str, bytes]) for blob in named)

    async def blobs(self, session: str, digests: Sequence[str] | None = None) -> dict[str, bytes]:
        if digests is not None:
            digests = [key.name(session, digest) for key in self._keys.values() for digest in digests]
        return await super().blobs(session, digests)


def read_keys(source: str) -> dict[str, bytes]:
    """The keys in `env:NAME` or `file:PATH`, by their ids. No message shows any part of a key."""
    lines = [line.strip() for line in _text_of(source).replace(",", "\n").splitlines() if line.strip()]
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        name, _, encoded = line.rpartition(":")
        if not _ID.fullmatch(name):
            raise UnknownStore(
                f"keys={source}: key {number} must be written as id:base64; "
                "an id has at most 64 letters, digits, dots, _ and -"
            )
        try:
            secret = b64decode(encoded, validate=True)
        except ValueError as error:
            raise UnknownStore(f"keys={source}: the key {name!r} is not valid base64: {error}") from None
        if len(secret) not in (16, 24, 32):
            raise UnknownStore(f"keys={source}: the key {name!r} has {len(secret)} bytes; a key has 16, 24 or 32")
        if name in keys:
            raise UnknownStore(f"keys={source}: two keys have the id {name!r}")
        keys[name] = secret
    if not keys:
        raise UnknownStore(f"keys={source}: no keys found; write one id:base64 per line")
    return keys


def _text_of(source: str) -> str:
    kind, _, where = source.partition(":")
    if kind == "env" and where:
        if where not in os.environ:
            raise UnknownStore(f"keys={source}: the environment variable {where} is not set")
        return os.environ[where]
    if kind == "file" and where:
        try:
            return Path(where).read_text()
        except OSError as error:
            raise UnknownStore(f"keys={source}: the file cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise UnknownStore(f"keys={source}: the file is not text; write one id:base64 per line") from None
    raise UnknownStore("keys= must name an environment variable or a file: keys=env:NAME or keys=file:PATH")
