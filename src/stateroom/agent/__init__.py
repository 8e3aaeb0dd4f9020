"""Who acts: the tool loop."""

from stateroom.agent.loop import MAX_STEPS, Outcome, Place, Trajectory, act, call_tool, output_text

__all__ = ["MAX_STEPS", "Outcome", "Place", "Trajectory", "act", "call_tool", "output_text"]
