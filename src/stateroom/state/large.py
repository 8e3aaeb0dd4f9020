"""Large values: texts and bytes that are stored by themselves, once, under the digest of their content.

Where one stands in a state or in a log, its digest and size are written. Data that was decoded holds a `Large` in its
place, until the contents are put in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

DIGEST_BYTES = 16


class Large(msgspec.Struct, frozen=True, gc=False):
    """Stands for a large value."""

    digest: str
    """Of its content, by which that is stored."""
    size: int
    """Of its content, in bytes."""
    is_text: bool

    def value(self, content: bytes) -> str | bytes:
        """The value itself."""
        return content.decode("utf-8", "surrogatepass") if self.is_text else content


def digest_of(content: bytes) -> str:
    """The name under which a content is stored."""
    return blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def content_of(value: str | bytes) -> bytes:
    """What is stored of a large value. Half a surrogate pair is no Unicode, but a text can have it."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def large_in(value: Any) -> Iterator[Large]:
    """What is missing in plain data. A set has none, and neither have the keys of a dict."""
    kind = type(value)
    if kind is Large:
        yield value
    elif kind is dict:
        for part in value.values():
            if type(part) in _HOLDERS:
                yield from large_in(part)
    elif kind is list or kind is tuple:
        for part in value:
            if type(part) in _HOLDERS:
                yield from large_in(part)


def put_in(value: Any, values: Mapping[Large, Any]) -> Any:
    """The data with the values of what is missing, which are put in where it can be changed."""
    kind = type(value)
    if kind is Large:
        return values[value]
    if kind is tuple:
        return tuple([put_in(part, values) for part in value])
    if kind is dict:
        for key, part in value.items():
            if type(part) in _HOLDERS:
                value[key] = put_in(part, values)
    elif kind is list:
        for index, part in enumerate(value):
            if type(part) in _HOLDERS:
                value[index] = put_in(part, values)
    return value


_HOLDERS = frozenset({Large, dict, list, tuple})
"""Types of which a value can be missing, or have something missing in it."""
