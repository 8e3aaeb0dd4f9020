"""Sessions of the OpenAI Agents SDK on any store: `pip install 'stateroom[openai-agents]'`."""

from stateroom.adapters.openai_agents.session import StateroomSession, StateroomSessions

__all__ = ["StateroomSession", "StateroomSessions"]
