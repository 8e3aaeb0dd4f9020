"""Stores for sessions: the `Store` contract, its implementations, and the conformance suite for both."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
