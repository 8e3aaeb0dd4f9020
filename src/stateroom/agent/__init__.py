"""Who acts: the tool loop, its record and its limits; what a model is shown; threads."""

from stateroom.agent.agent import MAX_STEPS, Agent
from stateroom.agent.calls import Outcome, Place, call_tool, output_text
from stateroom.agent.context import Anchor, Context
from stateroom.agent.conversation import Conversation
from stateroom.agent.loop import Trajectory, act, run
from stateroom.agent.record import Record, recall
from stateroom.agent.simulated_user import SimulatedUser, UserSide
from stateroom.agent.strategies import ClearToolResults, DropOldest, KeepLastTurns
from stateroom.agent.summary import Summarise
from stateroom.agent.task import TaskState
from stateroom.agent.threads import Thread, Threads
from stateroom.agent.tokens import Estimate, Tiktoken, TokenizerFile

__all__ = [
    "MAX_STEPS",
    "Agent",
    "Anchor",
    "ClearToolResults",
    "Context",
    "Conversation",
    "DropOldest",
    "Estimate",
    "KeepLastTurns",
    "Outcome",
    "Place",
    "Record",
    "SimulatedUser",
    "Summarise",
    "TaskState",
    "Thread",
    "Threads",
    "Tiktoken",
    "TokenizerFile",
    "Trajectory",
    "UserSide",
    "act",
    "call_tool",
    "output_text",
    "recall",
    "run",
]
