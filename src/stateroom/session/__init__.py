"""Sessions: calls that change state, the log, revisions, forks, rewinds and expiry."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
