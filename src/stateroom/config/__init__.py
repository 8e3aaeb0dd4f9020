"""Configuration files: YAML with the place of each value, and the files of NeMo Gym."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
