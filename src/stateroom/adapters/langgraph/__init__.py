"""LangGraph threads in any store: `pip install 'stateroom[langgraph]'`."""

from stateroom.adapters.langgraph.saver import StateroomSaver

__all__ = ["StateroomSaver"]
