"""What a trainer learns from: exact token sequences, advantages from groups and trees, and exports."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
