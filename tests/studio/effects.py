"""What a page does after it has drawn something."""

EFFECTS = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
"""Waits until what is shown has bound its keys, and what was closed is gone: Preact does that after a frame."""
