"""Task data: files of rows, checked, counted, split, and made into tasks by templates."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
