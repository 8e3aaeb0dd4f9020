"""Policies for the fact checker."""

from __future__ import annotations

import json
import re
from typing import Any, cast, get_args

from stateroom.gallery.facts.archive import Document, Kind, decisive, values_in
from stateroom.model import (
    Item,
    Noisy,
    Policy,
    function_call,
    last_user_text,
    message,
    newest_turn,
    outputs_of,
    text_of,
)


class ReferencePolicy(Policy):
    """Reads every document on the subject, and judges by the rules."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        results = outputs_of(newest_turn(conversation))
        call_id = f"call_{len(outputs_of(conversation))}"
        [(about, claimed)] = values_in(last_user_text(conversation)).items()
        if not results:
            return [function_call("search", call_id, query=about[1])]
        listed, *read = results
        if len(read) < len(listed):
            return [function_call("read_document", call_id, document_id=listed[len(read)]["id"])]
        if len(read) > len(listed):
            return [message("I have given my verdict.")]
        archive = {shown["id"]: _judged(each, about, claimed) for shown, each in zip(listed, read, strict=True)}
        citation = decisive(archive, _ranking(conversation))
        verdict = "true" if archive[citation].supports else "false"
        return [function_call("give_verdict", call_id, verdict=verdict, citation=citation)]


class NoisyPolicy(Noisy):
    """Gives the opposite verdict in some episodes."""

    better = ReferencePolicy

    def err(self, items: list[Item]) -> list[Item]:
        if items[0].get("name") != "give_verdict":
            return items
        arguments = json.loads(items[0]["arguments"])
        opposite = "false" if arguments["verdict"] == "true" else "true"
        return [function_call("give_verdict", items[0]["call_id"], **arguments | {"verdict": opposite})]


def _judged(shown: dict[str, Any], about: tuple[str, str], claimed: str) -> Document:
    """A document with its relation to the claim, derived from its text."""
    value = values_in(shown["text"]).get(about)
    withdrawn = re.search(r"Document (\S+) is withdrawn", shown["text"])
    return Document(**shown, supports=None if value is None else value == claimed, withdraws=withdrawn and withdrawn[1])


def _ranking(conversation: list[Item]) -> list[Kind]:
    """The kinds in the order of the rules."""
    rules = " ".join(text_of(item) for item in conversation if item.get("role") == "system")
    return cast(list[Kind], re.findall("|".join(get_args(Kind)), rules))
