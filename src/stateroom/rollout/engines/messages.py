"""What a driver and its workers tell each other."""

from __future__ import annotations

import msgspec

from stateroom.model import RequestReport
from stateroom.rollout.rows import Key, Row


class Assign(msgspec.Struct, frozen=True):
    """To a worker: the rows of episodes to run. Those of a group are given together."""

    rows: list[Row]
    resumes: bool
    """Whether another worker, or an earlier process, may have begun them."""


class Ack(msgspec.Struct, frozen=True):
    """To a worker: the rows of these episodes are in the run's files, so that their sessions can be closed."""

    keys: list[Key]


class Finished(msgspec.Struct, frozen=True):
    """From a worker: an episode has ended, or waits."""

    key: Key
    line: bytes
    """Its row, as a line of the rollouts or of the failures."""
    error: str | None
    """Why it failed, in a line; None if it did not."""
    transient: bool
    """Whether it failed for a reason that may pass, so that a resumed run tries it again."""
    waits_in: str | None
    """Its session, if it waits for input."""
    cost: float = 0.0
    """What the model's tokens have cost, as far as its row tells."""


class ToolFailed(msgspec.Struct, frozen=True):
    """From a worker: a tool call failed because of the author's code."""

    failure: Row


class RequestPermit(msgspec.Struct, frozen=True):
    """From a worker: it would like to send a request to a model's server."""

    number: int
    """Of this worker's requests."""
    endpoint: str
    tokens: int


class Withdrawn(msgspec.Struct, frozen=True):
    """From a worker: a request that it has asked for will not be sent."""

    number: int


class Released(msgspec.Struct, frozen=True):
    """From a worker: how a request went that was permitted."""

    number: int
    report: RequestReport


class Permitted(msgspec.Struct, frozen=True):
    """To a worker: it may send a request, or must not."""

    number: int
    error: str | None
    """Why it is no use to wait."""


class Refused(msgspec.Struct, frozen=True):
    """From a worker: it cannot work."""

    why: str
    transient: bool
    """Whether another one may have no such trouble, a little later."""


ToWorker = Assign | Ack | Permitted
AboutRequest = RequestPermit | Withdrawn | Released
FromWorker = Finished | ToolFailed | AboutRequest
