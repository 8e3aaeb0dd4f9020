"""What LangGraph asks of every saver, by its own suite, on each kind of store."""

from collections.abc import AsyncGenerator

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer
from langgraph.checkpoint.conformance.validate import validate

from stateroom.adapters.langgraph import StateroomSaver

pytestmark = pytest.mark.every_store


@pytest.mark.parametrize("capability", [each.value for each in Capability])
async def test_the_saver_can_do_all_that_a_saver_may(url: str, capability: str) -> None:
    async def made() -> AsyncGenerator[BaseCheckpointSaver[int], None]:
        async with StateroomSaver.from_url(url) as saver:
            yield saver

    report = await validate(RegisteredCheckpointer("stateroom", made), capabilities={capability})
    result = report.results[capability]
    assert result.failures == []
    assert result.passed
    assert result.tests_passed >= 5
