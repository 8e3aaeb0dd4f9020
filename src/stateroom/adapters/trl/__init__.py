"""Environments for TRL's GRPOTrainer: `pip install 'stateroom[trl]'`.

`spec("counter")` has what the trainer takes: `train_dataset`, `environment_factory` and `reward_funcs`. Each rollout is
a session. TRL generates and calls the tools; the session's log has the calls, so the rollout can be replayed.

TRL makes a tool's schema from a method's signature and docstring. It equals that of `Environment.tool_definitions()`
except for this:

- `strict` and `additionalProperties` do not exist, `required` is left out if it would be empty, and tools are in
  alphabetical order.
- A parameter with a default is not required, and need not be null instead.
- Only types and choices are described: objects have no fields, and limits such as `minimum` are not told. The arguments
  are validated nevertheless.
- A parameter without a description is described by its name.

TRL's loop has no user: where the environment would reply to a message of the agent, the episode ends.

With `spec.rollout_func()` our own agent loop acts in the sessions instead, users reply, and TRL only generates. A
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
