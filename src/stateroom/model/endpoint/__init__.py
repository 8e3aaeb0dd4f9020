"""Models behind an address: any server that speaks OpenAI's Responses or Chat Completions.

What needs the `openai` SDK is in modules of its own: `endpoint`, `responses` and `chat`.
"""

from stateroom.model.endpoint.address import Address
from stateroom.model.endpoint.limits import Limits
from stateroom.model.endpoint.persistence import Timing

__all__ = ["Address", "Limits", "Timing"]
