"""Agents: the tool loop, its log and limits, what a model sees of a conversation, and threads."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
