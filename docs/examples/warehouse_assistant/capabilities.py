"""What the assistant can do: look up stock, list shortages, and order goods."""

import asyncio
import os
import re
import sqlite3
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from capgraph import CapabilityContext, capability_node
from capgraph.base import IdempotencyKey
from warehouse_assistant.stock import find_item, open_stock, place_order


class StockLevel(CapabilityContext):
    """Quantity of one item, in pieces."""

    item: str
    quantity: int
    target: int

    def get_summary(self) -> str:
        return f"There are {self.quantity} pieces of {self.item} in stock (target: {self.target})."


class Shortages(CapabilityContext):
    """Items below their target."""

    missing: dict[str, int]

    def get_summary(self) -> str:
        items = ", ".join(f"{item} ({count})" for item, count in self.missing.items())
        return f"Missing pieces: {items}." if items else "Nothing is missing."


class Order(CapabilityContext):
    """An order that was placed. The total is in euros."""

    item: str
    quantity: int
    total: float

    def get_summary(self) -> str:
        return f"Ordered {self.quantity} pieces of {self.item} for {self.total:.2f} €."


@cache
def stock() -> sqlite3.Connection:
    """Open the database of the environment variable WAREHOUSE, once per process."""
    return open_stock(Path(os.environ.get("WAREHOUSE", "warehouse.db")))


def known_item(name: str) -> sqlite3.Row:
    """Return an item, or fail with the names that exist."""
    item = find_item(stock(), name)
    if item is None:
        names = [row["name"] for row in stock().execute("SELECT name FROM items ORDER BY name")]
        raise ValueError(f"There is no item {name!r}. Items: {', '.join(names)}.")
    return item


def parameters_of(request: str) -> dict[str, Any]:
    """Read the item and the quantity from a request, for runs without a model."""
    names = [row["name"] for row in stock().execute("SELECT name FROM items")]
    item = re.search(rf"\b({'|'.join(map(re.escape, names))})s?\b", request, re.IGNORECASE)
    quantity = re.search(r"\b\d+\b", request)
    found: dict[str, Any] = {"item": item[1].lower()} if item else {}
    return {**found, "quantity": int(quantity[0])} if quantity else found


def item_of(request: str) -> dict[str, Any]:
    """Read only the item from a request."""
    return {name: value for name, value in parameters_of(request).items() if name == "item"}


@capability_node(
    parameters_from=item_of,
    examples=["how many bolts are left?", "how many sensors do we have?", "stock of cables"],
)
async def stock_level(
    item: Annotated[str, Field(description="Name of the item, such as 'bolt'")],
) -> StockLevel:
    """Look up how many pieces of an item are in stock."""
    row = await asyncio.to_thread(known_item, item)
    return StockLevel(item=row["name"], quantity=row["quantity"], target=row["target"])


@capability_node(examples=["what is missing?", "which items are below their target?"])
async def list_shortages() -> Shortages:
    """List the items that are below their target, with the number of missing pieces."""
    query = "SELECT name, target - quantity AS missing FROM items WHERE missing > 0 ORDER BY name"
    rows = await asyncio.to_thread(lambda: stock().execute(query).fetchall())
    return Shortages(missing={row["name"]: row["missing"] for row in rows})


@capability_node(
    examples=["order 40 bolts", "buy 2 new sensors"],
    effect="once",
    requires_approval=True,
    parameters_from=parameters_of,
)
async def order_goods(
    item: Annotated[str, Field(description="Name of the item, such as 'bolt'")],
    quantity: Annotated[int, Field(description="Number of pieces", gt=0, le=1000)],
    key: IdempotencyKey,
) -> Order:
    """Order pieces of an item from its supplier."""
    row = await asyncio.to_thread(known_item, item)
    total = await asyncio.to_thread(place_order, stock(), key, row, quantity)
    return Order(item=row["name"], quantity=quantity, total=total)
