"""The built-in stores keep every promise of the contract."""

from pathlib import Path

import pytest

from stateroom.store.conformance import StoreConformance


class TestMemoryStore(StoreConformance):
    shared = False
    durable = False

    @pytest.fixture
    def url(self) -> str:
        return "memory://"


class TestSQLiteStore(StoreConformance):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'rooms.db'}"
