"""Whatever is asked of a store, and in whatever order, it answers as a model in plain dicts does."""

from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from stateroom.store.conformance.stateful import check_against_model
from tests.examples import share
from tests.servers.postgresql import fresh_schema


def test_memory_does_what_a_model_does() -> None:
    check_against_model(lambda: "memory://", examples=share(1))


def test_sqlite_does_what_a_model_does(tmp_path: Path) -> None:
    check_against_model(lambda: f"sqlite:///{tmp_path / uuid4().hex}.db", examples=share(0.4))


def test_redis_does_what_a_model_does(redis_url: str) -> None:
    check_against_model(lambda: f"{redis_url}?prefix={uuid4().hex}:", examples=share(0.4))


def test_postgresql_does_what_a_model_does(postgresql_url: str) -> None:
    with ExitStack() as schemas:
        check_against_model(lambda: schemas.enter_context(fresh_schema(postgresql_url)), examples=share(0.4))


def test_a_folder_does_what_a_model_does(tmp_path: Path) -> None:
    check_against_model(lambda: f"file://{tmp_path / uuid4().hex}", examples=share(0.4))


@pytest.mark.more("time")
def test_s3_does_what_a_model_does(s3_url: str) -> None:
    address, _, options = s3_url.partition("?")
    check_against_model(lambda: f"{address}/{uuid4().hex}?{options}", examples=share(0.1))
