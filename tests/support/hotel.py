"""A hotel desk whose next step depends on the last result, and a model that reads its prompt."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import HumanMessage

from capgraph import capability_node
from capgraph.testing import ModelCall

HOTELS: Mapping[str, list[dict[str, Any]]] = {
    "Basel": [{"id": "H7", "price": 140}, {"id": "H3", "price": 80}, {"id": "H9", "price": 95}],
    "Bern": [{"id": "H1", "price": 120}, {"id": "H2", "price": 60}],
    "Chur": [],
}
_RESULT = re.compile(
    r"^(\S+) = (\w+)\(.*\n  -> \S+(?: \S+)?:(?: (.+)|((?:\n.+ \| .+)+))", re.MULTILINE
)


class Desk:
    """What was done at the desk, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def capabilities(self, **booking: Any) -> list[Any]:
        @capability_node
        async def search_hotels(city: str) -> list[dict[str, Any]]:
            """Search the hotels of a city."""
            self.done.append(f"search {city}")
            return HOTELS[city]

        @capability_node(effect="once", **booking)
        async def book_hotel(hotel_id: str) -> dict[str, str]:
            """Book a room."""
            self.done.append(f"book {hotel_id}")
            return {"booking": f"B-{hotel_id}"}

        @capability_node
        async def read_reviews(hotel_id: str) -> dict[str, Any]:
            """Read what guests say about a hotel."""
            self.done.append(f"reviews {hotel_id}")
            return {"hotel": hotel_id, "stars": int(hotel_id[1:])}

        return [search_hotels, book_hotel, read_reviews]


def request_of(call: ModelCall) -> str:
    """Return the request that a prompt asks for."""
    text = str(call.messages[-1].text)
    found = re.search(r"<request>\n(.*?)\n</request>", text, re.DOTALL)
    return found[1] if found else text


def results_of(call: ModelCall, capability: str) -> list[Any]:
    """Return the results of a capability that a prompt shows for this turn."""
    text = str(call.messages[-1].text)
    return [
        json.loads(shown) if shown else rows_of(table)
        for _, name, shown, table in _RESULT.findall(text)
        if name == capability
    ]


def rows_of(table: str) -> list[dict[str, Any]]:
    """Return the rows of a table in a prompt, whose first line has the names of the columns."""
    columns, *rows = [line.split(" | ") for line in table.strip().splitlines()]
    return [dict(zip(columns, map(_value_of, row), strict=True)) for row in rows]


def _value_of(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def plan(*steps: Any, **more: Any) -> dict[str, Any]:
    """Return a plan of ``(capability, parameters)`` pairs."""
    return {"steps": [{"capability": n, "parameters": p} for n, p in steps], **more}


def book_cheapest(call: ModelCall) -> Any:
    """Search, then book the cheapest of what was found."""
    city = request_of(call).split()[-1]
    if booked := results_of(call, "book_hotel"):
        return plan(answer=f"Booked: {booked[-1]['booking']}.")
    found = results_of(call, "search_hotels")
    if not found:
        return plan(("search_hotels", {"city": city}))
    if not found[-1]:
        return plan(answer=f"No hotel in {city} has a room.")
    cheapest = min(found[-1], key=lambda hotel: hotel["price"])
    return plan(("book_hotel", {"hotel_id": cheapest["id"]}))


def said_before(call: ModelCall) -> str:
    """Return what the person said in earlier turns."""
    earlier = call.messages[:-1]
    return "\n".join(str(m.text) for m in earlier if isinstance(m, HumanMessage))


def in_mode(mode: str, answer: Callable[[ModelCall], Any]) -> Callable[[ModelCall], Any]:
    """Return a script that asks to look where the mode leaves that to the reply."""

    def reply(call: ModelCall) -> Any:
        found = answer(call)
        asks = mode == "auto" and isinstance(found, dict) and found["steps"]
        return {**found, "look": True} if asks else found

    return reply


async def run_until_killed(url: str, place: str) -> None:
    """Ask for a booking on a thread in a database, and end the process at a place."""
    from capgraph import build_graph
    from capgraph.configs.settings import load_settings
    from capgraph.stores import open_saver
    from capgraph.testing import ScriptedModel

    desk = Desk()

    def script(call: ModelCall) -> Any:
        place_now = "look" if results_of(call, "search_hotels") else "plan"
        if place == place_now:
            os._exit(9)
        return book_cheapest(call)

    async with open_saver(url) as saver:
        settings = load_settings(planning={"mode": "look"})
        model = ScriptedModel(responses=script)
        graph = build_graph(desk.capabilities(), model, saver, settings=settings)
        request = {"messages": [("user", "Book the cheapest room in Basel")]}
        config: Any = {"configurable": {"thread_id": "1"}}
        await graph.ainvoke(request, config, durability="sync")


if __name__ == "__main__":
    asyncio.run(run_until_killed(*sys.argv[1:]))
