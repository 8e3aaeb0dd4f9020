"""A model that says what it was told to."""

from stateroom.errors import ModelFailed, ModelUnavailable
from stateroom.model import Answer, Request, Scripted, Usage, answer_of, function_call, message
from tests.messages import raises


async def test_each_step_has_its_answer_in_whichever_order_they_are_asked_for() -> None:
    call = function_call("add", "c", number=1)
    model = Scripted([[call], Answer([message("Done.")], Usage(3, 2)), "Goodbye."])
    assert (await answer_of(model, Request([], step=2))).items == [message("Goodbye.")]
    assert (await answer_of(model, Request([], step=0))).items == [call]
    assert (await answer_of(model, Request([], step=1))).usage == Usage(3, 2)


async def test_an_exception_is_raised() -> None:
    with raises(ModelUnavailable):
        await answer_of(Scripted([ModelUnavailable("asleep")]), Request([]))


async def test_a_script_ends() -> None:
    with raises(ModelFailed):
        await answer_of(Scripted(["Hi."]), Request([], step=1))
