"""refund: a customer wants money back, and has to be asked for what and why. The smallest multi-turn environment."""

from stateroom.gallery.refund.environment import Desk, RefundEnvironment, RefundTask

__all__ = ["Desk", "RefundEnvironment", "RefundTask"]
