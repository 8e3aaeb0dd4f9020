"""Task data: check, measure and split files of rows, and create tasks with templates."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
