"""Stateful environments for agents: every episode gets its own room."""

import lazy_loader

__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)

__all__ = [name for name in _names if name != "open"]  # `import *` must not hide the built-in function
