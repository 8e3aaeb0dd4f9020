"""Training on episodes: token sequences, advantages from groups and trees, exports, and a small training loop."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
