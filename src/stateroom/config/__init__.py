"""Configuration files: YAML that knows the place of each value, and the import of NeMo Gym's files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
