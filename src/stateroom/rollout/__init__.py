"""Collect episodes: tasks, runs and their files, metrics, branches, rescoring, replay and checks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
