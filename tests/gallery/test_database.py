"""database: a real SQLite database that is saved, forked and rewound with its session, and SQL that cannot escape."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from stateroom import Environment, Sessions
from stateroom.gallery import Database, DatabaseEnvironment, SQLEnvironment
from stateroom.rollout import generate_tasks
from stateroom.session import Result, Session, Verdict
from stateroom.state import encode_patch
from stateroom.store import Store, open_store
from tests.examples import share

COUNT = "SELECT city, count(*) FROM customers GROUP BY city"
RAISE = "UPDATE products SET price = price + 5 WHERE category = 'toys'"
RENAMED = (
    "CREATE TABLE copy AS SELECT order_id, product_id, quantity AS amount FROM order_lines; DROP TABLE order_lines; "
    "CREATE TABLE order_lines AS SELECT * FROM copy; DROP TABLE copy"
)
REBUILT = (
    "CREATE TABLE copy AS SELECT * FROM order_lines; DROP TABLE order_lines; "
    "create table order_lines (order_id INTEGER NOT NULL REFERENCES orders (id), "
    "product_id INTEGER NOT NULL REFERENCES products (id), quantity INTEGER NOT NULL CHECK (quantity > 0), "
    "PRIMARY KEY (order_id, product_id)) without rowid; INSERT INTO order_lines SELECT * FROM copy; DROP TABLE copy; "
    "CREATE INDEX order_lines_by_product ON order_lines (product_id)"
)
STOCK = "SELECT stock FROM products WHERE id = 1"


def submits(sql: str) -> dict[str, Any]:
    return {"name": "submit_query", "arguments": {"sql": sql}}


def executes(sql: str) -> dict[str, Any]:
    return {"name": "execute", "arguments": {"sql": sql}}


async def seeded(store: Store, *gold: dict[str, Any], **more: Any) -> Session[Database]:
    return await Sessions(DatabaseEnvironment(), store).seed({"gold": list(gold), **more})


async def run(session: Session[Database], sql: str, tool: str = "execute") -> Result:
    return await session.call(tool, {"sql": sql})


async def value(session: Session[Database], sql: str) -> Any:
    result = await run(session, sql, "query")
    assert result.ok, result.error
    return result.output["rows"][0][0]


async def judged(store: Store, gold: dict[str, Any], *calls: dict[str, Any], ordered: bool = False) -> Verdict:
    session = await seeded(store, gold, ordered=ordered)
    for call in calls:
        await session.call(call["name"], call["arguments"])
    return await session.verify()


@pytest.mark.every_store
async def test_forks_rewinds_and_other_processes_have_the_database_of_their_revision(store: Store) -> None:
    session = await seeded(store)
    pages, before = list(session.state.pages), await value(session, STOCK)
    assert (await run(session, "UPDATE products SET stock = 1000 WHERE id = 1")).output == {"changed": 1}
    fork = await session.fork()
    await run(fork, "UPDATE products SET stock = 2000 WHERE id = 1; CREATE TABLE notes (text); DROP TABLE order_lines")
    await run(session, "DELETE FROM order_lines; DELETE FROM orders; DELETE FROM customers")
    assert (await value(session, STOCK), await value(fork, STOCK)) == (1000, 2000)
    resumed = await Sessions(DatabaseEnvironment(), store).open(fork.id)  # with nothing in memory, as after a restart
    assert await value(resumed, STOCK) == 2000
    assert "CREATE TABLE notes (text)" in (await resumed.call("schema")).output
    await session.rewind(to=2)
    assert (await value(session, STOCK), await value(session, "SELECT count(*) FROM orders")) == (1000, 900)
    await session.rewind(to=1)
    assert await value(session, STOCK) == before
    assert session.state.pages == pages


STATEMENTS = st.sampled_from(
    [
        "INSERT INTO customers SELECT max(id) + 1, 'x', 'Lima', '2025-01-01' FROM customers",
        "UPDATE orders SET day = '2020-01-01' WHERE id % 7 = 0",
        "DELETE FROM order_lines WHERE quantity = 5",
        "DELETE FROM order_lines",
        "CREATE TABLE IF NOT EXISTS more AS SELECT * FROM order_lines; INSERT INTO more SELECT * FROM more LIMIT 9000",
        "DROP TABLE IF EXISTS more",
        "CREATE INDEX IF NOT EXISTS days ON orders (day)",
    ]
)


@settings(max_examples=share(1))
@given(st.lists(STATEMENTS, max_size=6))
async def test_it_is_what_sqlite_makes_of_the_same_statements(statements: list[str]) -> None:
    alone = sqlite3.connect(":memory:")
    async with open_store("memory://") as store:
        session = await seeded(store)
        alone.deserialize(b"".join(session.state.pages))
        for statement in statements:
            alone.executescript(statement)
            assert (await run(session, statement)).ok
        with session.state.connection() as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert [*connection.iterdump()] == [*alone.iterdump()]
    alone.close()


def test_pages_follow_a_database_that_grows_and_shrinks() -> None:
    database, connection = Database(), sqlite3.connect(":memory:", isolation_level=None)
    sizes = []
    connection.execute("PRAGMA auto_vacuum = FULL")
    for sql in ("CREATE TABLE x (y)", "INSERT INTO x VALUES (zeroblob(90000))", "DELETE FROM x"):
        connection.execute(sql)
        database.keep(connection)
        assert b"".join(database.pages) == connection.serialize()
        sizes.append(len(database.pages))
    connection.close()
    assert sizes[0] == sizes[2] < sizes[1]


class LargeEnvironment(SQLEnvironment):
    """A database of 2,500 pages."""

    def world(self) -> Database:
        connection, database = sqlite3.connect(":memory:"), Database()
        connection.execute("CREATE TABLE logs (id INTEGER PRIMARY KEY, text TEXT)")
        connection.executemany("INSERT INTO logs VALUES (?, ?)", ((number, "x" * 900) for number in range(10_000)))
        connection.commit()
        database.keep(connection)
        connection.close()
        return database


@pytest.mark.parametrize(
    ("environment", "sql", "most"),
    [
        (DatabaseEnvironment(), "UPDATE customers SET city = 'Lima' WHERE id = 75", 2_500),
        (LargeEnvironment(), "UPDATE logs SET text = 'y' WHERE id = 5000", 9_000),
        (LargeEnvironment(), "INSERT INTO logs VALUES (10000, 'y')", 9_000),
    ],
)
async def test_a_change_of_one_row_stores_two_pages(
    store: Store, environment: Environment[Any, Any], sql: str, most: int
) -> None:
    session = await Sessions[Any](environment, store).seed({"gold": []})
    assert (await run(session, sql)).ok
    [entry] = [entry async for entry in session.log(kinds={"call"})]
    assert len(encode_patch(entry.patch)) < most < sum(map(len, session.state.pages)) / 20


BOMB = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"

SORT = """
from datetime import datetime
from pathlib import Path
from stateroom.gallery import DatabaseEnvironment
database = DatabaseEnvironment().world()
sql = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 20000) SELECT x, hex(zeroblob(2400)) FROM n"
def peak():
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])
before = peak()
database.select(f"{sql} ORDER BY x DESC", datetime.min, 1)
print(peak() - before)
"""


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("UPDATE products SET stock = 7; UPDATE products SET stock = -1", "CHECK constraint failed"),
        ("UPDATE products SET stock = 7; DELETE FROM customers", "FOREIGN KEY constraint failed"),
        ("UPDATE products SET stock = 7; UPDATE nowhere SET x = 1", "no such table: nowhere"),
        ("UPDATE products SET stock = 7; SELEC", "syntax error"),
        ("BEGIN; UPDATE products SET stock = 7", "not committed"),
        (f"UPDATE products SET stock = 7; CREATE TABLE t AS {BOMB} SELECT x FROM n", "too long"),  # cut off
        ("UPDATE products SET stock = 7; " + "-" * 20_000, "too large"),
        ("UPDATE products SET stock = 7\0", ""),
        ("UPDATE products SET stock = 7 WHERE name = '\ud800'", ""),
    ],
)
async def test_a_statement_that_fails_or_is_cut_off_changes_nothing(store: Store, sql: str, told: str) -> None:
    session = await seeded(store)
    pages = list(session.state.pages)
    result = await run(session, sql)
    assert (result.code, told in (result.error or "")) == ("tool_error", True)
    assert (session.revision, session.state.pages) == (1, pages)


async def test_a_transaction_may_be_written_out(store: Store) -> None:
    session = await seeded(store)
    pages = list(session.state.pages)
    await run(session, "BEGIN; UPDATE products SET stock = 7; ROLLBACK")
    assert session.state.pages == pages
    assert (await run(session, "BEGIN; UPDATE products SET stock = 7 WHERE id = 1; COMMIT")).ok
    assert await value(session, STOCK) == 7


@pytest.mark.parametrize("tool", ["query", "execute", "submit_query"])
@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH 'FOLDER/x.db' AS x",
        "ATTACH ':memory:' AS x",
        "VACUUM INTO 'FOLDER/x.db'",
        "PRAGMA writable_schema = ON",
        "PRAGMA journal_mode = WAL",
        "PRAGMA temp_store_directory = 'FOLDER'",
        "PRAGMA page_size",
        "ALTER TABLE products ADD COLUMN x",
        "SELECT * FROM pragma_database_list",
        "SELECT load_extension('FOLDER/x.so')",
        "SELECT LOAD_EXTENSION('FOLDER/x.so')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('FOLDER/x', 'x')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT random()",
        "SELECT hex(randomblob(4))",
        "SELECT current_timestamp",
        "SELECT printf('%.*c', 100000000, 'x')",  # one step that takes long
        "INSERT INTO sqlite_master VALUES ('table', 'x', 'x', 2, 'CREATE TABLE x (y)')",
        "UPDATE sqlite_schema SET sql = 'CREATE TABLE x (y)'",
        "CREATE VIRTUAL TABLE x USING fts5 (y)",
        "CREATE TEMP TABLE x (y)",
        "CREATE TRIGGER x AFTER UPDATE ON products BEGIN DELETE FROM order_lines; END",
        f"{BOMB} SELECT count(*) FROM n",
        f"{BOMB} SELECT 1 FROM n a, n b WHERE a.x + b.x < 0",
        "SELECT zeroblob(1000000000)",
        f"{BOMB} SELECT group_concat(x) FROM n",
        "SELECT " + "(" * 3000 + "1" + ")" * 3000,
        "SELECT 1 WHERE 'x' LIKE '" + "%x" * 1000 + "'",
    ],
)
async def test_tricks_are_refused_or_bounded(store: Store, tmp_path: Path, tool: str, sql: str) -> None:
    session = await seeded(store)
    result = await run(session, sql.replace("FOLDER", str(tmp_path)), tool)
    assert result.code == "tool_error", result
    assert (session.revision, os.listdir(tmp_path)) == (1, [])


@pytest.mark.parametrize(
    "sql", ["DELETE FROM order_lines", "CREATE TABLE x (y)", "DROP TABLE order_lines", "BEGIN", RAISE]
)
async def test_a_query_only_reads(store: Store, sql: str) -> None:
    session = await seeded(store)
    for tool in ("query", "submit_query"):
        assert (await run(session, sql, tool)).code == "tool_error"
    assert ((await run(session, "-- nothing", "query")).code, session.revision) == ("tool_error", 1)


async def test_the_database_cannot_grow_without_end(store: Store) -> None:
    session = await seeded(store)
    await run(session, "CREATE TABLE x (y); INSERT INTO x VALUES (zeroblob(4000))")
    results = [await run(session, "INSERT INTO x SELECT y FROM x") for _ in range(14)]
    assert (results[0].ok, results[-1].error) == (True, "database or disk is full")


async def test_a_result_is_refused_before_it_is_too_large(store: Store) -> None:
    session = await seeded(store)
    wide = f"{BOMB} SELECT {', '.join(['hex(zeroblob(2400))'] * 99)} FROM n"
    assert (await run(session, wide, "query")).code == "tool_error"
    assert (await run(session, f"{wide} LIMIT 2", "query")).ok


def test_what_is_sorted_takes_no_memory() -> None:
    """A query in a process of its own, which prints by how many kilobytes it grew."""
    done = subprocess.run([sys.executable, "-c", SORT], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40_000


async def test_columns_of_the_same_name_are_all_shown(store: Store) -> None:
    session = await seeded(store, submits(COUNT))
    shown = (await run(session, "SELECT 1 AS a, 2 AS a, 3 AS a", "query")).output
    assert (shown["columns"], shown["rows"]) == (["a", "a", "a"], [[1, 2, 3]])


async def test_a_model_is_shown_the_first_rows_of_a_result_as_json(store: Store) -> None:
    session = await seeded(store)
    many = await run(session, "SELECT id FROM orders ORDER BY id", "query")
    assert (len(many.output["rows"]), many.output["more"]) == (50, True)
    odd = await run(session, "SELECT 1 AS a, NULL AS b, x'00ff' AS c, 9e999 AS d, 'é' AS e", "query")
    shown = {"columns": [*"abcde"], "rows": [[1, None, "x'00ff'", "inf", "é"]], "more": False}
    assert json.loads(json.dumps(odd.output)) == shown


async def test_time_is_the_sessions(store: Store) -> None:
    session = await Sessions(DatabaseEnvironment(), store).seed({"gold": []}, began=86_400.0)
    for sql in (
        "SELECT date('now')",
        "SELECT DATE()",
        "SELECT strftime('%Y-%m-%d')",
        "SELECT date('NOW', 'localtime')",
    ):
        assert await value(session, sql) == "1970-01-02"
    assert await value(session, "SELECT strftime('%Y', '2024-05-06')") == "2024"


@pytest.mark.parametrize(
    "sql",
    [
        COUNT,
        f"{COUNT} ORDER BY 2",  # in any order
        "SELECT city AS place, sum(1) AS number FROM customers GROUP BY city",
        "SELECT DISTINCT city, count(*) OVER (PARTITION BY city) FROM customers",
    ],
)
async def test_an_answer_is_judged_by_its_rows(store: Store, sql: str) -> None:
    verdict = await judged(store, submits(COUNT), submits("SELECT 1"), submits(sql))
    assert (verdict.reward, verdict.components) == (1.0, {"data": 1.0, "answer": 1.0})


async def test_the_order_counts_where_it_is_asked_for(store: Store) -> None:
    gold = submits(f"{COUNT} ORDER BY city")
    assert (await judged(store, gold, gold, ordered=True)).reward == 1.0
    assert (await judged(store, gold, submits(f"{COUNT} ORDER BY city DESC"), ordered=True)).reward == 0.0


@pytest.mark.parametrize(
    ("sql", "reward"),
    [
        (RAISE, 1.0),
        ("UPDATE products SET price = price + 2 WHERE category = 'toys'; " + RAISE.replace("5", "3"), 1.0),
        (f"{RAISE}; CREATE INDEX by_price ON products (price)", 0.0),
        (f"{RAISE}; CREATE VIEW cheap AS SELECT * FROM products WHERE price < 10", 0.0),
        (f"{RAISE}; {REBUILT}", 1.0),
        (f"{RAISE}; {REBUILT.replace(', PRIMARY KEY (order_id, product_id)) without rowid', ')')}", 0.0),
        (f"{RAISE}; {REBUILT.replace(' REFERENCES products (id)', '')}", 0.0),
        (f"{RAISE}; {REBUILT.replace('NOT NULL', '')}", 0.0),
        (f"{RAISE}; {REBUILT.replace('CHECK (quantity > 0)', '')}", 0.0),
        (RAISE.replace("5", "6"), 0.0),
        (RAISE.partition(" WHERE")[0], 0.0),
        (f"{RAISE}; UPDATE customers SET city = 'Lima' WHERE id = 1", 0.0),
        (f"{RAISE}; CREATE TABLE x (y)", 0.0),
        (f"{RAISE}; DROP TABLE order_lines", 0.0),
        (f"{RAISE}; {RENAMED}", 0.0),
    ],
)
async def test_a_change_is_judged_by_the_tables_after_it(store: Store, sql: str, reward: float) -> None:
    session = await seeded(store, executes(RAISE))
    assert (await run(session, sql)).ok
    verdict = await session.verify()
    assert (verdict.reward, verdict.components) == (reward, {"data": reward, "answer": 1.0})


@pytest.mark.parametrize(
    ("gold", "calls"),
    [
        (COUNT, []),  # an empty episode
        (COUNT, [("submit_query", "SELECT city, count(*) FROM customers")]),
        (COUNT, [("schema", None), ("query", COUNT)]),  # found, but not submitted
        (COUNT, [("submit_query", COUNT), ("execute", "DELETE FROM order_lines")]),
        (RAISE, []),
        (RAISE, [("schema", None), ("query", "SELECT * FROM products")]),  # read, but not changed
        (RAISE, [("submit_query", "SELECT price + 5 FROM products")]),
    ],
)
async def test_no_trick_gets_a_reward(store: Store, gold: str, calls: Any) -> None:
    session = await seeded(store, submits(gold) if gold == COUNT else executes(gold))
    for tool, sql in calls:
        assert (await session.call(tool, {"sql": sql} if sql else {})).ok
    assert (await session.verify()).reward == 0.0


async def test_an_answer_that_is_written_down_instead_of_found_gets_no_reward(store: Store) -> None:
    session = await seeded(store, submits(COUNT))
    found = (await run(session, COUNT, "query")).output["rows"]
    assert (
        await run(session, "VALUES " + ", ".join(f"('{city}', {number})" for city, number in found), "submit_query")
    ).ok
    assert (await session.verify()).components == {"data": 1.0, "answer": 0.0}


def test_tasks_are_of_all_kinds_and_more_than_a_hundred() -> None:
    rows = generate_tasks(DatabaseEnvironment, 300, seed=7)
    prompts = {row["responses_create_params"]["input"][1]["content"] for row in rows}
    assert len(prompts) > 150
    assert {row["gold"][0]["name"] for row in rows} == {"execute", "submit_query"}
