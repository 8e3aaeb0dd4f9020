"""A model in this process: any GGUF file, run by llama.cpp, with no key and nothing to download at run time."""

from stateroom.model.local.model import LocalModel

__all__ = ["LocalModel"]
