"""Agents: the tool loop, its log and limits, what a model sees of a conversation, and threads."""

from stateroom.agent.agent import MAX_STEPS, Agent, AgentLog, Outcome, Workspace
from stateroom.agent.calls import call_tool, output_text
from stateroom.agent.context import Anchor, Context
from stateroom.agent.conversation import Conversation
from stateroom.agent.loop import Trajectory, act, run
from stateroom.agent.loop import TurnStatus as TurnStatus
from stateroom.agent.simulated_user import SimulatedUser, UserSide
from stateroom.agent.strategies import ClearToolResults, DropOldest, KeepLastTurns, Summarise
from stateroom.agent.task import TaskState
from stateroom.agent.threads import OnItems as OnItems
from stateroom.agent.threads import Thread, Threads
from stateroom.agent.threads import ThreadEnvironment as ThreadEnvironment
from stateroom.agent.tokens import Estimate, Tiktoken, TokenizerFile
from stateroom.agent.transcript import Utterance as Utterance
from stateroom.agent.transcript import recall
from stateroom.agent.transcript import transcript as transcript

__all__ = [
    "MAX_STEPS",
    "Agent",
    "AgentLog",
    "Anchor",
    "ClearToolResults",
    "Context",
    "Conversation",
    "DropOldest",
    "Estimate",
    "KeepLastTurns",
    "Outcome",
    "SimulatedUser",
    "Summarise",
    "TaskState",
    "Thread",
    "Threads",
    "Tiktoken",
    "TokenizerFile",
    "Trajectory",
    "UserSide",
    "Workspace",
    "act",
    "call_tool",
    "output_text",
    "recall",
    "run",
]
