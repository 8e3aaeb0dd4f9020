"""Ray clusters on this machine: a head and other nodes, each with processes of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any

import pytest


@contextmanager
def ray_folder() -> Iterator[None]:
    """Ray keeps its files in a folder in which no other program looks for a cluster to join, as NeMo Gym would."""
    with (
        TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,  # the path must be short
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield


@contextmanager
def ray_cluster(nodes: int) -> Iterator[Any]:
    """A cluster of nodes with one core each; its `address` is for drivers in other processes."""
    with ray_folder(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", token_hex(32))
        patch.setenv("PYTHONPATH", os.getcwd())
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - only `make test-more` installs it

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        try:
            for _ in range(nodes - 1):
                cluster.add_node(num_cpus=1)
            yield cluster
        finally:
            cluster.shutdown()
