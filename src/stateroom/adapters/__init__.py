"""Other frameworks on any store: LangGraph, the OpenAI Agents SDK and LangChain, each with its extra."""
