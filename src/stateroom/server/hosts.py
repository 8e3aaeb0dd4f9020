"""Names that a server answers to.

A web page from elsewhere can reach a server on its reader's machine: it posts across origins, or gives its own name
the machine's address. A browser tells of both, in `Origin` and in `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from stateroom.errors import DefinitionError, Forbidden
from stateroom.server.http import Scope

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")

REMEMBERED = 256
"""Hosts whose names are looked up once and not with every request."""


class Hosts:
    """This machine's own names (`localhost` and loopback addresses), and others that are allowed."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {_checked(name) for name in names}
        self._allows = lru_cache(REMEMBERED)(self._allows_host)

    def refusal(self, scope: Scope) -> Forbidden | None:
        """The error about a request that is not meant for this server, if it is not."""
        stranger = self.stranger(scope)
        if stranger is None:
            return None
        names = ", ".join(["localhost", *sorted(self._names)])
        return Forbidden(
            f"this request {stranger}, and this server answers to {names} only; start it with --allow-host NAME if "
            "that is a name of its own"
        )

    def stranger(self, scope: Scope) -> str | None:
        """What shows that a request is not meant for this server; None if nothing does."""
        of_page = False
        for name, value in scope["headers"]:  # once: this is on the way of every call
            if name == b"host":
                if not self._allows(value):
                    return f"is for the host {_text(value)}"
            elif name == b"origin":
                of_page = True
        return self._foreign_page(scope) if of_page else None

    def _foreign_page(self, scope: Scope) -> str | None:
        """A page may be of this very server, or of an allowed name; another server of this machine is another site."""
        hosts = [value.lower() for name, value in scope["headers"] if name == b"host"]
        for origin in [value for name, value in scope["headers"] if name == b"origin"]:
            host = origin.lower().partition(b"://")[2]
            if host not in hosts and _name_of(host) not in self._names:
                return f"is of a web page of {_text(origin)}"
        return None

    def _allows_host(self, host: bytes) -> bool:
        name = _name_of(host)
        return name in self._names or name == "localhost" or is_loopback(name)


def hosts_at(address: str, allowed: Iterable[str]) -> tuple[str, ...] | None:
    """Names that requests to a server at this address may be for, besides this machine's own; None: any."""
    names = tuple(map(_checked, allowed))
    return names if names or is_loopback(address) else None


def is_loopback(address: str) -> bool:
    """Whether an IP address is one that only this machine can reach."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return (mapped or parsed).is_loopback


def _name_of(host: bytes) -> str:
    """The name or address in a host, without its port."""
    try:
        return urlsplit(f"//{_text(host)}").hostname or ""
    except ValueError:  # half of an IPv6 address
        return ""


def _checked(name: str) -> str:
    name = name.lower()
    if not _NAME.fullmatch(name):
        raise DefinitionError(f"{name!r} is not the name of a host; one is rooms.example, without a scheme and a port")
    return name


def _text(value: bytes) -> str:
    return value.decode("latin-1")
