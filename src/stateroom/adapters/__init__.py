"""Adapters for LangGraph, the OpenAI Agents SDK and LangChain on any store, each with its own extra."""
