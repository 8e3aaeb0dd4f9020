"""Policies for the database."""

from __future__ import annotations

import json

from stateroom.gallery.database.questions import recognised
from stateroom.model import Item, Noisy, Policy, function_call, last_user_text, message, newest_turn, outputs_of


class ReferencePolicy(Policy):
    """Knows the SQL for each kind of question; it reads the schema, and tries a query before submitting it."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        question, values = recognised(last_user_text(conversation))
        names = ["schema", "execute"] if question.changes else ["schema", "query", "submit_query"]
        step = len(outputs_of(newest_turn(conversation)))
        if step == len(names):
            return [message("It is done.")]
        arguments = {"sql": question.sql.format(**values)} if step else {}
        return [function_call(names[step], f"call_{len(outputs_of(conversation))}", **arguments)]


class NoisyPolicy(Noisy):
    """Loses the first row of an answer, or skips a change, in some episodes."""

    better = ReferencePolicy

    def err(self, items: list[Item]) -> list[Item]:
        match items[0].get("name"):
            case "submit_query":
                sql = json.loads(items[0]["arguments"])["sql"]
                short = f"SELECT * FROM ({sql}) LIMIT -1 OFFSET 1"
                return [function_call("submit_query", items[0]["call_id"], sql=short)]
            case "execute":
                return [message("It is done.")]
            case _:
                return items
