"""AG-UI's JavaScript client against a served agent; see ``agui_client.mjs``."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from langgraph.checkpoint.memory import InMemorySaver

from capgraph import BaseCapability, build_graph, capability_node
from capgraph.base.errors import CapabilityError
from capgraph.configs.settings import Settings
from capgraph.serve.app import create_app
from capgraph.state import AgentState, CallerInput
from tests.conformance.kits import (
    UnavailableError,
    install_npm_packages,
    run_command,
)
from tests.conformance.mcp_agent import OneUser
from tests.conformance.report import Result, read_checks
from tests.support.listening import on_loopback
from tests.support.served import Level, OpenValve, read_level

VERSION = "1.0.0"
_SCRIPT = Path(__file__).with_suffix(".mjs")
_SECONDS = 120.0


class Shared(AgentState, total=False):
    """State with a key that clients share."""

    color: Annotated[str, CallerInput]


@capability_node
class ChooseColor(BaseCapability):
    name = "choose_color"
    description = "Choose a color."

    async def execute(self) -> dict[str, Any]:
        return {"color": "blue"}


@capability_node(examples=["fill the tank"])
async def fill_tank() -> Level:
    """Fill the tank, which takes a moment."""
    await asyncio.sleep(1.5)
    return Level(litres=9)


@capability_node
async def find_leak() -> Level:
    """Find the leak."""
    raise CapabilityError("The tank has no leak.")


@capability_node
class Valve(OpenValve):
    requires: Any = []


CAPABILITIES: list[Any] = [read_level, fill_tank, find_leak, ChooseColor, Valve]


def run() -> list[Result]:
    """Run the checks of the script."""
    if (node := shutil.which("node")) is None:
        raise UnavailableError("Node.js is not installed.")
    folder = install_npm_packages("agui", f"@ag-ui/client@{VERSION}")
    # Node.js looks for packages in the folders above a script.
    script = Path(shutil.copy(_SCRIPT, folder))
    return [asyncio.run(_run(Path(node), script))]


async def _run(node: Path, script: Path) -> Result:
    async with (
        on_loopback(partial(make_app, stops=False)) as url,
        on_loopback(partial(make_app, stops=True)) as stopping_url,
    ):
        done = await asyncio.to_thread(
            run_command, node, script, url, stopping_url, timeout_seconds=_SECONDS
        )
    return read_checks(f"AG-UI client, @ag-ui/client {VERSION}", "1.0", done)


def make_app(_: str, *, stops: bool, capabilities: Sequence[Any] = CAPABILITIES) -> Any:
    """Return the application."""
    graph = build_graph(
        capabilities,
        checkpointer=InMemorySaver(),
        settings=Settings(serve={"agui": {"stop_on_disconnect": stops}}),
        state_schema=Shared,
    )
    return create_app(graph, auth=OneUser(), host="127.0.0.1")
