"""Served agent whose tools have the names and results that the MCP conformance suite requires."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt
from pydantic import BaseModel

from capgraph import BaseCapability, build_graph, capability_node
from capgraph.base.errors import CapabilityError
from capgraph.base.ports import Caller
from capgraph.configs.settings import Settings
from capgraph.serve.app import create_app


@capability_node
async def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@capability_node
async def test_error_handling() -> str:
    """Fail."""
    raise CapabilityError("This tool intentionally returns an error for testing")


@capability_node
class Progress(BaseCapability):
    name = "test_tool_with_progress"
    description = "Report progress."

    async def execute(self) -> str:
        for fraction in (0.0, 0.5, 1.0):
            self.progress("Working", fraction)
            await asyncio.sleep(0.05)
        return "Done."


def _ask(message: str, properties: Mapping[str, Any], required: list[str]) -> Any:
    schema = {"type": "object", "properties": properties, "required": required}
    return interrupt({"message": message, "schema": schema})


class Message(BaseModel):
    message: str


@capability_node
class Elicitation(BaseCapability):
    name = "test_elicitation"
    description = "Ask for a user name and an address."
    Parameters = Message

    async def execute(self) -> str:
        text = {"type": "string"}
        fields = {
            "username": {**text, "description": "User's response"},
            "email": {**text, "description": "User's email address"},
        }
        return f"User response: {_ask(self.parameters.message, fields, [*fields])}"


@capability_node
async def test_elicitation_sep1034_defaults() -> str:
    """Ask for values that have defaults."""
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    }
    return f"Elicitation completed: {_ask('Check the values.', fields, [])}"


@capability_node
async def test_elicitation_sep1330_enums() -> str:
    """Ask for choices in every form that the protocol has."""
    titled = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
    options = ["option1", "option2", "option3"]
    fields = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": options, "enumNames": ["One", "Two", "Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return f"Elicitation completed: {_ask('Choose.', fields, [])}"


@capability_node
async def test_input_required_result_elicitation() -> str:
    """Ask for a name and greet."""
    answer = _ask("What is your name?", {"name": {"type": "string"}}, ["name"])
    return f"Hello, {answer['name']}!"


@capability_node
async def test_input_required_result_request_state() -> str:
    """Ask for a confirmation."""
    _ask("Please confirm", {"ok": {"type": "boolean"}}, ["ok"])
    return "state-ok"


@capability_node
async def test_input_required_result_tampered_state() -> str:
    """Ask for a confirmation."""
    _ask("Please confirm", {"ok": {"type": "boolean"}}, ["ok"])
    return "state-ok"


@capability_node
async def test_input_required_result_multi_round() -> str:
    """Ask for a name, then for a color."""
    name = _ask("Step 1: What is your name?", {"name": {"type": "string"}}, ["name"])
    color = _ask("Step 2: What is your favorite color?", {"color": {"type": "string"}}, ["color"])
    return f"{name['name']} likes {color['color']}."


CAPABILITIES: list[Any] = [
    test_simple_text,
    test_error_handling,
    Progress,
    Elicitation,
    test_elicitation_sep1034_defaults,
    test_elicitation_sep1330_enums,
    test_input_required_result_elicitation,
    test_input_required_result_request_state,
    test_input_required_result_tampered_state,
    test_input_required_result_multi_round,
]


class OneUser:
    """Identity of a server with one user, for clients that send no credentials."""

    async def caller(self, _: Mapping[str, Any]) -> Caller:
        return Caller("ann", authenticated=True)


def make_app(_: str) -> Any:
    """Return the application."""
    names = [capability.spec().name for capability in CAPABILITIES]
    graph = build_graph(
        CAPABILITIES,
        checkpointer=InMemorySaver(),
        settings=Settings(serve={"mcp": {"tools": names}}),
    )
    return create_app(graph, auth=OneUser(), host="127.0.0.1")
