"""Models, policies, and the items of a conversation."""

import lazy_loader

__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)

NEED_TORCH = ("Decoder", "TransformersModel", "device_name", "load_network")

__all__ = [name for name in _names if name not in NEED_TORCH]  # `import *` must not need an extra
