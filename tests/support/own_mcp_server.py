"""Our capabilities as an MCP server, for tests: `python own_mcp_server.py LOG`, over stdio."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from capgraph import CapabilityContext, bind, capability_node
from capgraph.adapters import as_mcp_server
from capgraph.base.argument_injection import Progress
from capgraph.base.errors import CapabilityError
from capgraph.engine.services import Services


class Place(CapabilityContext):
    name: str


class Weather(CapabilityContext):
    place: str
    celsius: float


def capabilities(log: Path) -> list[Any]:
    def note(text: str) -> None:
        with log.open("a") as stream:
            stream.write(text + "\n")

    @capability_node
    async def weather(place: Place, days: int = 1) -> Weather:
        """Tell the weather of a place."""
        return Weather(place=place.name, celsius=20.5 + days)

    @capability_node(effect="once", requires_approval=True)
    def pay(amount: int) -> str:
        """Pay an amount."""
        note(f"pay {amount}")
        return f"paid {amount}"

    @capability_node(effect="once", permission="full_access")
    def erase(name: str) -> str:
        """Erase a file."""
        note(f"erase {name}")
        return "erased"

    @capability_node(max_attempts=1)
    async def broken() -> str:
        """Fail."""
        raise CapabilityError("The valve is stuck.", fix="Free it by hand.")

    @capability_node
    async def slowly(progress: Progress) -> str:
        """Say how far it is."""
        progress("part 1", 0.5)
        progress("part 2", 1.0)
        return "done"

    return [weather, pay, erase, broken, slowly]


def services(log: Path, **options: Any) -> Services:
    return bind(capabilities(log), **options)


if __name__ == "__main__":
    as_mcp_server(services(Path(sys.argv[1]))).run("stdio")
