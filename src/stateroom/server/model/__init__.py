"""A model on the wire: any that can be chosen by name, behind OpenAI's Responses and Chat Completions APIs."""

from stateroom.server.model.app import ModelApplication

__all__ = ["ModelApplication"]
