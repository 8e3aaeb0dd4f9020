import pytest

pytest.register_assert_rewrite("stateroom.store.conformance")
