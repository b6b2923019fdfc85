"""pydantic-ai and litellm against a served agent; see ``openai_clients_program.py``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver

from capgraph import build_graph
from capgraph.serve.app import create_app
from capgraph.testing import ScriptedModel
from tests.conformance.kits import install_python_packages, run_command
from tests.conformance.mcp_agent import OneUser
from tests.conformance.report import Result, read_checks
from tests.support.listening import on_loopback
from tests.support.served import READ, read_level

PACKAGES = ("pydantic-ai-slim[openai]==2.68.0", "litellm==1.83.0")
_PROGRAM = Path(__file__).with_name("openai_clients_program.py")
_SECONDS = 240.0
_REPORT = "Report by a call."


def run() -> list[Result]:
    """Run the checks of the program."""
    python = install_python_packages("openai-clients", *PACKAGES)
    return [asyncio.run(_run(python))]


async def _run(python: Path) -> Result:
    async with on_loopback(_make_app) as url:
        done = await asyncio.to_thread(run_command, python, _PROGRAM, url, timeout_seconds=_SECONDS)
    suite = f"OpenAI clients, {', '.join(PACKAGES).replace('==', ' ')}"
    return read_checks(suite, "v1", done)


def _make_app(_: str) -> Any:
    graph = build_graph(
        [read_level], checkpointer=InMemorySaver(), model=ScriptedModel(responses=_respond)
    )
    return create_app(graph, auth=OneUser(), host="127.0.0.1")


def _respond(request: Any) -> Any:
    """Return what the model of the agent writes: a task, a plan, a report, or a text."""
    if request.schema == "answer":
        report = {"litres": 7}
        call = {"call": {"name": "final_result", "arguments": report}}
        return call if _REPORT in request.prompt else report
    if request.schema is None:
        return "It is warm." if "31 degrees" in request.prompt else "Unknown."
    if "steps" not in request.prompt:
        return {"task": _REPORT if _REPORT in request.prompt else "How warm is it in Rome?"}
    if "get_weather" not in request.prompt:
        return READ
    parameters = {"city": "Rome"}
    step = {"context_key": "w", "capability": "get_weather", "task_objective": "Look."}
    return {"steps": [{**step, "parameters": parameters}]}
