"""State: typed models, drafts that record their changes, patches, and their encoding."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
