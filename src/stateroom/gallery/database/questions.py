"""Questions and changes for the shop's database, in words, with the right SQL for each."""

from __future__ import annotations

import re
from random import Random
from typing import NamedTuple

from stateroom.gallery.database.shop import CATEGORIES, CITIES, CUSTOMERS, FIRST_NAMES, LAST_NAMES, YEARS

RULES = """You work with the SQLite database of a shop. Prices are in cents, and days are texts such as 2025-03-14.
If you are asked a question, submit one query whose rows are the answer, with the columns that are asked for, in that
order. It is also tried on another database with the same tables, so it has to find the answer, not to state it.
If you are asked for a change, make it with execute. Change nothing else."""


class Question(NamedTuple):
    """A kind of question or change, with placeholders for values in its words and its SQL."""

    words: str
    sql: str
    changes: bool = False
    ordered: bool = False
    """Whether the order of the rows counts."""

    @property
    def tool(self) -> str:
        """The tool that takes the SQL."""
        return "execute" if self.changes else "submit_query"


QUESTIONS = (
    Question(
        "How many orders of {year} are there from customers in {city}, by status? Give the status and the number of "
        "orders, for each status that occurs.",
        "SELECT status, count(*) FROM orders JOIN customers ON customers.id = customer_id "
        "WHERE city = '{city}' AND day LIKE '{year}-%' GROUP BY status",
    ),
    Question(
        "Which {number} products have brought in the most money in shipped orders of {year}, at today's prices? Give "
        "the name and the sum, the largest sum first, and by name where sums are equal.",
        "SELECT name, sum(quantity * price) AS money FROM order_lines JOIN products ON products.id = product_id "
        "JOIN orders ON orders.id = order_id WHERE status = 'shipped' AND day LIKE '{year}-%' "
        "GROUP BY products.id ORDER BY money DESC, name LIMIT {number}",
        ordered=True,
    ),
    Question(
        "Which customers in {city} have no shipped order? Give their ids.",
        "SELECT id FROM customers WHERE city = '{city}' "
        "AND id NOT IN (SELECT customer_id FROM orders WHERE status = 'shipped')",
    ),
    Question(
        "Which products of the category {category} are in no order of {month}, whatever its status? Give their names.",
        "SELECT name FROM products WHERE category = '{category}' AND id NOT IN "
        "(SELECT product_id FROM order_lines JOIN orders ON orders.id = order_id WHERE day LIKE '{month}-%')",
    ),
    Question(
        "Which customers have ordered at least {number} different products of the category {category}, not counting "
        "cancelled orders? Give their id and the number of products.",
        "SELECT customer_id, count(DISTINCT product_id) AS number FROM orders JOIN order_lines ON order_id = orders.id "
        "JOIN products ON products.id = product_id WHERE status <> 'cancelled' AND category = '{category}' "
        "GROUP BY customer_id HAVING number >= {number}",
    ),
    Question(
        "What has each customer in {city} spent in shipped orders of {year}, at today's prices? Give the id and the "
        "sum, of those who have such orders, by id.",
        "SELECT customer_id, sum(quantity * price) FROM orders JOIN customers ON customers.id = customer_id "
        "JOIN order_lines ON order_id = orders.id JOIN products ON products.id = product_id "
        "WHERE city = '{city}' AND status = 'shipped' AND day LIKE '{year}-%' GROUP BY customer_id ORDER BY 1",
        ordered=True,
    ),
    Question(
        "Raise the price of all products of the category {category} by {cents} cents.",
        "UPDATE products SET price = price + {cents} WHERE category = '{category}'",
        changes=True,
    ),
    Question(
        "Cancel all open orders of customer {customer}, and put what is in them back into stock.",
        "UPDATE products SET stock = stock + (SELECT sum(quantity) FROM order_lines JOIN orders "
        "ON orders.id = order_id WHERE product_id = products.id AND status = 'open' AND customer_id = {customer}) "
        "WHERE id IN (SELECT product_id FROM order_lines JOIN orders ON orders.id = order_id "
        "WHERE status = 'open' AND customer_id = {customer}); "
        "UPDATE orders SET status = 'cancelled' WHERE status = 'open' AND customer_id = {customer}",
        changes=True,
    ),
    Question(
        "Customers {customer} and {other} are one person. Give the orders of the second one to the first one, and "
        "delete the second one.",
        "UPDATE orders SET customer_id = {customer} WHERE customer_id = {other}; "
        "DELETE FROM customers WHERE id = {other}",
        changes=True,
    ),
    Question(
        "Delete the customers in {city} who have no order.",
        "DELETE FROM customers WHERE city = '{city}' AND id NOT IN (SELECT customer_id FROM orders)",
        changes=True,
    ),
    Question(
        "Fill up the stock of each product of the category {category} to {number}, where it is less.",
        "UPDATE products SET stock = {number} WHERE category = '{category}' AND stock < {number}",
        changes=True,
    ),
    Question(
        "Add a customer with the id {new}: {name} in {city}, who joined on {year}-06-01.",
        "INSERT INTO customers VALUES ({new}, '{name}', '{city}', '{year}-06-01')",
        changes=True,
    ),
)


def draw(rng: Random) -> tuple[Question, dict[str, str]]:
    """A random question, with values for its placeholders."""
    customer, other = rng.sample(range(1, CUSTOMERS + 1), 2)
    values = {
        "category": rng.choice(sorted(CATEGORIES)),
        "cents": rng.randrange(5, 100, 5),
        "city": rng.choice(CITIES),
        "customer": customer,
        "month": f"{rng.choice(YEARS)}-{rng.randint(1, 12):02}",
        "name": f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}",
        "new": rng.randint(CUSTOMERS + 1, 999),
        "number": rng.randint(3, 9),
        "other": other,
        "year": rng.choice(YEARS),
    }
    return rng.choice(QUESTIONS), {name: str(value) for name, value in values.items()}


def recognised(words: str) -> tuple[Question, dict[str, str]]:
    """The question with these words, and the values of its placeholders."""
    for question in QUESTIONS:
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+?)", re.escape(question.words))
        if match := re.fullmatch(pattern, words):
            return question, match.groupdict()
    raise LookupError(f"unknown question: {words!r}")
