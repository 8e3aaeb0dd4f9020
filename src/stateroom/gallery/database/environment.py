"""A SQLite database: answer questions with a query, and make changes with statements."""

from __future__ import annotations

from datetime import datetime
from math import isfinite
from random import Random
from typing import Any

from stateroom import Clock, Environment, Episode, Task, ToolError, Verdict, tool
from stateroom.gallery.database.policies import NoisyPolicy, ReferencePolicy
from stateroom.gallery.database.questions import RULES, draw
from stateroom.gallery.database.shop import shop
from stateroom.gallery.database.sqlite import Database

MAX_ROWS = 50
"""The most rows of a result that the model sees."""

MAX_BYTES = 1 << 20
"""The memory limit of these rows, in bytes."""

MAX_ANSWER = 10_000
"""The most rows of an answer that are compared."""


class DatabaseTask(Task):
    gold: list[dict[str, Any]]
    """The calls that solve the task: `submit_query`, `execute` or both."""
    ordered: bool = False
    """Whether the order of the rows counts."""


class SQLEnvironment(Environment[Database, DatabaseTask]):
    """Answer questions about a SQLite database, and change it. A subclass provides the database as its `world`."""

    def variant(self) -> Database:
        """A second database, on which a submitted query must also be right; by default the world."""
        world: Database = self.world()
        return world

    @tool(effect="read")
    def schema(self, state: Database) -> list[str]:
        """Show the statements that created the tables, indexes and views."""
        with state.connection() as connection:
            return [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_schema WHERE sql NOT NULL")]

    @tool(effect="read")
    def query(self, state: Database, clock: Clock, sql: str) -> dict[str, Any]:
        """Run a query. Returns its columns, its first 50 rows, and whether there are more.

        Args:
            sql: One SELECT statement.
        """
        columns, rows = state.select(sql, clock.now(), MAX_ROWS + 1, most_bytes=MAX_BYTES)
        shown = [[_shown(cell) for cell in row] for row in rows[:MAX_ROWS]]
        return {"columns": columns, "rows": shown, "more": len(rows) > MAX_ROWS}

    @tool
    def execute(self, state: Database, clock: Clock, sql: str) -> dict[str, int]:
        """Run statements that change the database, all of them or none. Returns the number of changed rows.

        Args:
            sql: One or more statements, separated by semicolons.
        """
        return {"changed": state.change(sql, clock.now())}

    @tool
    def submit_query(self, state: Database, clock: Clock, sql: str) -> dict[str, bool]:
        """Submit the query whose rows are the answer. The last call counts.

        Args:
            sql: One SELECT statement.
        """
        state.select(sql, clock.now(), most=1)
        state.query = sql
        return {"success": True}

    async def verify(self, state: Database, episode: Episode, clock: Clock) -> Verdict:
        """1 if the tables are as expected and the submitted query is right on two databases, else 0."""
        gold, now = await episode.after(episode.task.gold), clock.now()
        wrong = state.differences(gold, now)
        answered = gold.query is None or all(
            _is_right(state.query or "", gold.query, database, now, ordered=episode.task.ordered)
            for database in (gold, self.variant())
        )
        reasons = [f"the {part} is wrong" for part in wrong]
        reasons += [] if answered else ["the query is wrong" if state.query else "no query was submitted"]
        return Verdict(
            reward=float(not reasons),
            components={"data": float(not wrong), "answer": float(answered)},
            reason="; ".join(reasons) or "all as expected",
        )


class DatabaseEnvironment(SQLEnvironment):
    """Answer questions about the SQLite database of a shop, and make requested changes."""

    examples = "tasks.jsonl"
    policies = {"reference": ReferencePolicy, "noisy": NoisyPolicy}

    def world(self) -> Database:
        return Database(pages=[*shop("shop")])

    def variant(self) -> Database:
        return Database(pages=[*shop("variant")])

    @classmethod
    def generate(cls, rng: Random) -> dict[str, Any]:
        """A new task: a question with an answer, or a change with an effect."""
        database, now = cls().world(), datetime.min
        while True:
            question, values = draw(rng)
            sql = question.sql.format(**values)
            if database.change(sql, now) if question.changes else database.select(sql, now, most=1).rows:
                break
        asked = question.words.format(**values)
        return {
            "responses_create_params": {
                "input": [{"role": "system", "content": RULES}, {"role": "user", "content": asked}]
            },
            "gold": [{"name": question.tool, "arguments": {"sql": sql}}],
            "ordered": question.ordered,
        }


def _is_right(sql: str, gold: str, database: Database, now: datetime, *, ordered: bool) -> bool:
    """Whether a query has the result of the gold query."""
    expected = database.select(gold, now, MAX_ANSWER)
    try:
        return database.select(sql, now, len(expected.rows) + 1).is_same(expected, ordered=ordered)
    except ToolError:
        return False


def _shown(cell: Any) -> Any:
    """A cell as JSON data."""
    if isinstance(cell, bytes):
        return f"x'{cell.hex()}'"
    return str(cell) if isinstance(cell, float) and not isfinite(cell) else cell
