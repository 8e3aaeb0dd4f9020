"""Where state lives: the `Store` contract, the stores, and the suite that every store passes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
