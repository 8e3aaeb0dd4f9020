"""Chat histories of LangChain on any store: `pip install 'stateroom[langchain]'`."""

from stateroom.adapters.langchain.history import StateroomHistories, StateroomHistory

__all__ = ["StateroomHistories", "StateroomHistory"]
