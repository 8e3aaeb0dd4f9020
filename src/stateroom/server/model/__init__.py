"""A model over HTTP, with OpenAI's Responses and Chat Completions APIs."""

from stateroom.server.model.app import ModelApplication, run_model

__all__ = ["ModelApplication", "run_model"]
