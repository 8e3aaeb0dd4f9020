from pathlib import Path
from typing import Any

import pytest

from tests.more import IS_THERE

collect_ignore = [] if IS_THERE["torch"] else ["test_train.py", "test_learner.py"]


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for the counter with random weights."""
    from examples.training.small_model import make  # noqa: PLC0415 - needs torch

    folder = tmp_path_factory.mktemp("model")
    make("counter", folder)
    return folder


@pytest.fixture(scope="session")
def calling_model(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after some supervised steps: it calls tools, with random numbers."""
    from stateroom.training import Trainer, TrainOptions  # noqa: PLC0415 - needs torch

    folder = tmp_path_factory.mktemp("training")
    more: dict[str, Any] = {"steps": 0, "supervised": 40, "supervised_rate": 2e-3}
    Trainer(TrainOptions("counter", model=small_model, output=folder, **more)).run()
    return folder / "checkpoints" / "00040"
