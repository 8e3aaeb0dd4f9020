"""Stateful environments for agents: every episode gets its own room."""

from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - slow to import, and rarely needed

        return version(__name__)
    return _load(name)
