"""Batches: how many of the writes that wait are sent together."""

FEW = 8
"""Writes that are not worth two batches."""


def first_batch(waiting: int) -> int:
    """How many of the writes that wait after a pause go first: half of them.

    After a pause, all sessions are in step. From then on, one half makes its next calls while the other is written.
    """
    return waiting if waiting <= FEW else (waiting + 1) // 2
