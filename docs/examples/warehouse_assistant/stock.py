"""The warehouse: a SQLite database that knows nothing about capgraph."""

import sqlite3
from pathlib import Path

ITEMS = [
    ("bolt", 120, 500, 0.08),
    ("bracket", 14, 60, 2.40),
    ("cable", 35, 40, 6.90),
    ("sensor", 3, 12, 48.00),
]


def open_stock(path: Path) -> sqlite3.Connection:
    """Open the database. A new one is filled with four items."""
    stock = sqlite3.connect(path, check_same_thread=False)
    stock.row_factory = sqlite3.Row
    with stock:
        stock.execute(
            "CREATE TABLE IF NOT EXISTS items"
            " (name TEXT PRIMARY KEY, quantity INTEGER, target INTEGER, price REAL)"
        )
        stock.execute(
            "CREATE TABLE IF NOT EXISTS orders"
            " (key TEXT PRIMARY KEY, item TEXT, quantity INTEGER, total REAL)"
        )
        stock.executemany("INSERT OR IGNORE INTO items VALUES (?, ?, ?, ?)", ITEMS)
    return stock


def find_item(stock: sqlite3.Connection, name: str) -> sqlite3.Row | None:
    """Return the item with this name, in the singular or the plural."""
    names = (name.lower(), name.lower().removesuffix("s"))
    return stock.execute("SELECT * FROM items WHERE name IN (?, ?)", names).fetchone()


def place_order(stock: sqlite3.Connection, key: str, item: sqlite3.Row, quantity: int) -> float:
    """Order an item and return the total price. A repeated key orders nothing again."""
    total = round(item["price"] * quantity, 2)
    with stock:
        stock.execute(
            "INSERT OR IGNORE INTO orders VALUES (?, ?, ?, ?)",
            (key, item["name"], quantity, total),
        )
    return total
