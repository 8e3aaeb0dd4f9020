"""Stores: the `Store` contract, the places where state lives, and the suite that every store passes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
