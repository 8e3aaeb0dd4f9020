"""Waiting in tests: for what must happen, with a limit that only ends a hang."""

PATIENCE = 120.0
"""Seconds after which something is taken to hang, on a machine however busy."""
