"""Two policies in place of a model: one that keeps the rules, and one that does not."""

import re

from stateroom.model import Policy, function_call, message, outputs_of, text_of


class Clerk(Policy):
    """Asks what is wanted, looks it up, and does what the rules allow."""

    def respond(self, conversation, tools):
        heard = " ".join(text_of(item) for item in conversation if item.get("role") == "user")
        wanted = re.search(r"(cancel|move) (\w\d)(?: to (\w+))?", heard)
        if wanted is None:
            return [message("What can I do for you?")]
        what, booking, flight = wanted.groups()
        return self.settle(what, booking, flight, outputs_of(conversation), "Yes" in heard)

    def settle(self, what, booking, flight, results, agreed):
        if not results:
            return [function_call("look_up", "look", booking_id=booking)]
        ticket = results[0]
        if ticket["cabin"] == "basic" if what == "move" else not (ticket["insured"] or ticket["flight"]["cancelled"]):
            return [message("I am sorry: the rules forbid that.")]
        return self.act(what, booking, flight, agreed, done=len(results) > 1)

    def act(self, what, booking, flight, agreed, done):
        if done:
            return [message("It is done.")]
        if not agreed:
            return [message(f"Shall I {what} it now?")]
        if what == "move":
            return [function_call("change", "do", booking_id=booking, flight=flight)]
        return [function_call("cancel", "do", booking_id=booking)]


class Hasty(Clerk):
    """Does what it is asked, and looks nothing up."""

    def settle(self, what, booking, flight, results, agreed):
        return self.act(what, booking, flight, True, done=bool(results))
