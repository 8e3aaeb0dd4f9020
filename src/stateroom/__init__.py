"""Stateful environments for agents."""
