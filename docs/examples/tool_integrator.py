"""An agent over tools and agents of other programs: an MCP server and an A2A agent.

    python tool_integrator.py --miles 12
    python tool_integrator.py --miles 12 --yes
    python tool_integrator.py --a2a http://127.0.0.1:8123 --token TOKEN "How many bolts are left?"

The MCP server is a separate program that is started over stdio (`python tool_integrator.py --serve`).
The A2A agent can be any agent that publishes a card, for example the warehouse assistant of these
examples, served by `capgraph serve --auth`. The integrator treats both alike: their tools are planned,
validated, approved, limited, and recorded like its own capabilities, and their results are untrusted.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from langgraph.types import Command
from mcp import StdioServerParameters
from mcp.server import MCPServer
from mcp_types import ToolAnnotations
from pydantic import Field

from capgraph import build_graph
from capgraph.adapters import agent_card, mcp_capabilities, remote_capability
from capgraph.stores import open_saver

KILOMETERS_PER_MILE = 1.609344
READS = ToolAnnotations(read_only_hint=True)


def tool_server() -> MCPServer:
    """Return the MCP server: one tool that reads, and one that writes."""
    server = MCPServer("travel")

    @server.tool(annotations=READS)
    async def convert_distance(
        miles: Annotated[float, Field(ge=0, description="Distance in miles")],
    ) -> float:
        """Convert miles to kilometers."""
        return round(miles * KILOMETERS_PER_MILE, 3)

    @server.tool()
    async def book_taxi(
        kilometers: Annotated[float, Field(gt=0, le=200, description="Distance of the ride")],
    ) -> str:
        """Book a taxi for a ride."""
        return f"A taxi is booked for {kilometers:g} km."

    return server


@asynccontextmanager
async def open_integrator(
    database: Path, a2a_url: str | None = None, token: str | None = None
) -> AsyncIterator[Any]:
    """Connect to the tools and the agent, and yield the graph.

    Args:
        database: SQLite file of the threads.
        a2a_url: URL of an A2A agent.
        token: Bearer token for that agent. It is sent to the agent's own origin only.
    """
    program = StdioServerParameters(command=sys.executable, args=[__file__, "--serve"])
    capabilities = []
    if a2a_url is not None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        card = await agent_card(a2a_url, headers=headers)
        capabilities.append(remote_capability(card, "remote_agent", headers=headers))
    tools = await mcp_capabilities(
        program,
        prefix="travel",
        requires_approval={"book_taxi": True},
        examples={"convert_distance": ["convert 12 miles to kilometers", "how far is 3 miles?"]},
    )
    async with tools, open_saver(f"sqlite:///{database}") as saver:
        yield build_graph([*tools, *capabilities], checkpointer=saver)


def taxi_plan(miles: float) -> dict[str, Any]:
    """Return a plan of two remote tools: the second one reads the result of the first."""
    ride = {"$from": "distance.result"}
    steps = [
        {
            "context_key": "distance",
            "capability": "travel_convert_distance",
            "parameters": {"miles": miles},
        },
        {
            "context_key": "taxi",
            "capability": "travel_book_taxi",
            "parameters": {"kilometers": ride},
        },
    ]
    return {"steps": steps}


def remote_plan(question: str) -> dict[str, Any]:
    """Return a plan that asks the A2A agent."""
    step = {"context_key": "answer", "capability": "remote_agent", "task_objective": question}
    return {"steps": [step]}


async def run(graph: Any, question: str, plan: dict[str, Any], *, approve: bool) -> str:
    """Run a plan, answer its approval requests, and return the answer."""
    config = {"configurable": {"thread_id": "integrator"}}
    request = {"messages": [("user", question)], "planning_execution_plan": plan}
    out = await graph.ainvoke(request, config)
    while questions := out.get("__interrupt__"):
        for step in questions[0].value["steps"]:
            print(f"Approval request for {step['capability']}: {step.get('reason') or 'declared'}")
        decision = "approve" if approve else "reject"
        out = await graph.ainvoke(Command(resume=decision), config)
    return out["messages"][-1].text


async def answer(options: argparse.Namespace) -> str:
    """Connect, and answer the question of the command line."""
    database = Path(tempfile.mkdtemp()) / "threads.db"
    plan = remote_plan(options.question) if options.a2a else taxi_plan(options.miles)
    async with open_integrator(database, options.a2a, options.token) as graph:
        return await run(graph, options.question, plan, approve=options.yes)


def main() -> None:
    """Serve the tools, or answer one question."""
    # Without a model, the build warns that it cannot fill in the tools' parameters. The plans do.
    logging.getLogger("capgraph").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description="Use remote tools and agents in one plan.")
    parser.add_argument("question", nargs="?", default="Book a taxi for the ride")
    parser.add_argument("--serve", action="store_true", help="serve the tools over stdio")
    parser.add_argument("--a2a", help="URL of an A2A agent to ask")
    parser.add_argument("--token", help="bearer token for the A2A agent")
    parser.add_argument("--miles", type=float, default=12.0, help="distance of the ride")
    parser.add_argument("--yes", action="store_true", help="approve all requests")
    options = parser.parse_args()
    if options.serve:
        tool_server().run("stdio")
    else:
        print(asyncio.run(answer(options)))


if __name__ == "__main__":
    main()
