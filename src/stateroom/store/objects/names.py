"""What the objects are called. Ids are any text; a name is letters that every place keeps apart, and not too long."""

from __future__ import annotations

import re
import secrets
import struct
from hashlib import sha256
from typing import NamedTuple

from stateroom.store.contract import Head

MARK = "stateroom"
HEADS, RECENT, FORKS, DATA = "heads", "recent", "forks", "data"
FOLDERS = (HEADS, RECENT, FORKS, DATA)

_PLAIN = re.compile("[a-z0-9_-]{1,64}")
_ALL_ONES = (1 << 64) - 1


def new_name() -> str:
    """A name that nobody else makes."""
    return secrets.token_hex(8)


def key_of(session: str) -> str:
    """What stands for an id in a name: the id itself where that is harmless, else its digest."""
    if _PLAIN.fullmatch(session):
        return f"i-{session}"
    return f"h-{sha256(session.encode('utf-8', 'surrogatepass')).hexdigest()}"


def head_name(key: str) -> str:
    """The head of the session that a key stands for."""
    return f"{HEADS}/{key}"


def data_folder(key: str, life: str) -> str:
    """Where the segments and blobs of one life of a session are."""
    return f"{DATA}/{key}.{life}"


def forks_folder(key: str) -> str:
    """Where those note themselves who fork a session."""
    return f"{FORKS}/{key}"


def fork_name(parent: str, session: str, life: str) -> str:
    """A fork's note at its parent."""
    return f"{forks_folder(key_of(parent))}/{key_of(session)}.{life}"


def age_of(created: float) -> str:
    """A time such that later ones sort before earlier ones."""
    (bits,) = struct.unpack(">Q", struct.pack(">d", created + 0.0))  # -0.0 is 0.0
    ascending = bits ^ _ALL_ONES if bits >> 63 else bits | 1 << 63
    return f"{ascending ^ _ALL_ONES:016x}"


def environment_of(environment: str) -> str:
    """A few letters by which most other environments can be told apart."""
    return sha256(environment.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def recent_name(head: Head, life: str) -> str:
    """A session's place among all of them, the newest first."""
    return f"{RECENT}/{age_of(head.created)}.{key_of(head.id)}.{environment_of(head.environment)}.{life}"


class Owner(NamedTuple):
    """Whose an object is: a life of a session."""

    key: str
    life: str


def owner_of(name: str) -> Owner | None:
    """Whose a note or a piece of data is, by its name; None if no store gives such names."""
    folder, _, rest = name.partition("/")
    match folder, rest.split("/"):
        case "recent", [note] if note.count(".") == 3:
            _, key, _, life = note.split(".")
        case "forks", [_, note] if note.count(".") == 1:
            key, life = note.split(".")
        case "data", [owner, _] if owner.count(".") == 1:
            key, life = owner.split(".")
        case _:
            return None
    return Owner(key, life)
