"""Environments for TRL's GRPOTrainer: `pip install 'stateroom[trl]'`.

`spec("counter")` has the arguments of the trainer: `train_dataset`, `environment_factory` and `reward_funcs`. Each
rollout is a session. TRL generates and calls the tools; the session's log has the calls, so a rollout can be replayed.

TRL derives the schema of a tool from the signature and docstring of a method. It equals the schema in
`Environment.tool_definitions()` with these exceptions:

- `strict` and `additionalProperties` do not exist, an empty `required` is omitted, and tools are in alphabetical order.
- A parameter with a default is not required, and need not be null instead.
- Only types and choices are described: objects have no fields, and limits such as `minimum` are omitted. Arguments are
  still validated.
- A parameter without a description is described by its name.

TRL's loop has no user: the episode ends where the environment would reply to a message of the agent.

With `spec.rollout_func()`, Stateroom's agent loop acts in the sessions instead, users reply, and TRL only generates. A
`StateroomTrainer` then learns from an advantage for each token.
"""

from stateroom.adapters.trl.environment import PooledEnvironment, verified_reward
from stateroom.adapters.trl.spec import EnvironmentFactory, Spec, spec
from stateroom.adapters.trl.trainer import RolloutFunction, StateroomTrainer, rollout_reward

__all__ = [
    "EnvironmentFactory",
    "PooledEnvironment",
    "RolloutFunction",
    "Spec",
    "StateroomTrainer",
    "rollout_reward",
    "spec",
    "verified_reward",
]
