"""What is committed is what any process reads, whatever the class of the state."""

from hypothesis import HealthCheck, given, settings, strategies as st

from tests.state.classes import check_generated_class


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_a_session_writes_is_what_every_other_reads(data: st.DataObject) -> None:
    check_generated_class(data)
