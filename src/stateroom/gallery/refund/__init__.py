"""refund: settle a customer's returns after asking what and why. The smallest multi-turn environment."""

from stateroom.gallery.refund.environment import Desk, RefundEnvironment, RefundTask

__all__ = ["Desk", "RefundEnvironment", "RefundTask"]
