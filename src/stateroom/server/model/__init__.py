"""A model over HTTP, with OpenAI's Responses and Chat Completions APIs."""
