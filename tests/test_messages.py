from tests.messages import MESSAGES


def test_every_recorded_text_is_of_a_test() -> None:
    assert MESSAGES.without_test() == set()
