"""The randomly generated database of a shop."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import date, timedelta
from functools import cache
from random import Random

from stateroom.gallery.database.sqlite import Database

SCHEMA = """
PRAGMA page_size = 1024; -- a change of one row stores whole pages: small ones are cheaper
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL, joined TEXT NOT NULL);
CREATE TABLE products (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, category TEXT NOT NULL, price INTEGER NOT NULL,
    stock INTEGER NOT NULL CHECK (stock >= 0)
);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customers (id), day TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('open', 'shipped', 'cancelled'))
);
CREATE TABLE order_lines (
    order_id INTEGER NOT NULL REFERENCES orders (id), product_id INTEGER NOT NULL REFERENCES products (id),
    quantity INTEGER NOT NULL CHECK (quantity > 0), PRIMARY KEY (order_id, product_id)
) WITHOUT ROWID;
CREATE INDEX orders_by_customer ON orders (customer_id);
CREATE INDEX order_lines_by_product ON order_lines (product_id);
"""

CITIES = ("Bergen", "Cairo", "Hanoi", "Lima", "Osaka", "Perth", "Porto", "Tallinn")
CATEGORIES = {
    "books": ("atlas", "cookbook", "diary", "dictionary", "novel", "poems"),
    "garden": ("hose", "rake", "seeds", "shears", "spade", "trowel"),
    "kitchen": ("bowl", "grater", "kettle", "ladle", "pan", "whisk"),
    "music": ("drum", "flute", "guitar", "metronome", "recorder", "violin"),
    "toys": ("blocks", "doll", "kite", "marbles", "puzzle", "yo-yo"),
}
MAKERS = ("Arden", "Boreal", "Corvo")
FIRST_NAMES = ("Amara", "Boris", "Chen", "Dana", "Emil", "Fatima", "Goran", "Hana", "Ines", "Jonas", "Kofi", "Lena")
LAST_NAMES = ("Adeyemi", "Berg", "Costa", "Diaz", "Eriksen", "Fischer", "Haddad", "Ito", "Kaya", "Novak", "Silva")
YEARS = (2023, 2024, 2025)
CUSTOMERS, ORDERS = 150, 900


@cache
def shop(seed: str) -> tuple[bytes, ...]:
    """The pages of a shop's database, the same for the same seed."""
    rng, database = Random(seed), Database()
    products = [
        (f"{maker} {name}", category) for category, names in CATEGORIES.items() for name in names for maker in MAKERS
    ]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        connection.executemany(
            "INSERT INTO customers VALUES (?, ?, ?, ?)",
            [
                (number, f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}", rng.choice(CITIES), _day(rng))
                for number in range(1, CUSTOMERS + 1)
            ],
        )
        connection.executemany(
            "INSERT INTO products VALUES (?, ?, ?, ?, ?)",
            [
                (number, name, category, rng.randint(3, 400) * 25, rng.randint(0, 40))
                for number, (name, category) in enumerate(products, 1)
            ],
        )
        statuses = ("open", "shipped", "shipped", "shipped", "cancelled")
        for number in range(1, ORDERS + 1):
            order = (number, min(rng.randint(1, CUSTOMERS), rng.randint(1, CUSTOMERS)), _day(rng), rng.choice(statuses))
            connection.execute("INSERT INTO orders VALUES (?, ?, ?, ?)", order)
            for product in rng.sample(range(1, len(products) + 1), rng.randint(1, 4)):
                connection.execute("INSERT INTO order_lines VALUES (?, ?, ?)", (number, product, rng.randint(1, 5)))
        connection.commit()
        database.keep(connection)
    return tuple(database.pages)


def _day(rng: Random) -> str:
    return str(date(YEARS[0], 1, 1) + timedelta(days=rng.randrange(365 * len(YEARS))))
