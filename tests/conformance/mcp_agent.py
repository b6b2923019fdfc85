"""Served agent whose tools have the names and results that the MCP conformance suite requires."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt
from pydantic import Field

from capgraph import (
    BaseCapability,
    CapabilityContext,
    Registry,
    build_graph,
    capability_node,
)
from capgraph.adapters.schema_capability import capability_from_schema
from capgraph.base.errors import CapabilityError, ErrorSeverity
from capgraph.base.ports import Caller
from capgraph.base.step_context import StepContext
from capgraph.configs.settings import Settings
from capgraph.planning.recipes import Recipe
from capgraph.serve.app import create_app

_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
_TASK_SECONDS = 0.8
"""Seconds after which a call becomes a task. Tools that must be tasks take longer."""
_PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
_SOUND = b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0@\x1f\0\0\1\0\x08\0data\0\0\0\0"


class Files(CapabilityContext):
    """Files that a tool wrote."""

    paths: list[str]

    def get_files(self) -> list[str]:
        return self.paths


class Reply(CapabilityContext):
    """Text of a capability class."""

    text: str


async def _accept_arguments(_: dict[str, Any], __: StepContext) -> dict[str, Any]:
    return {"accepted": True}


def _make_file_capabilities(folder: Path) -> list[Any]:
    def write(name: str, data: bytes) -> str:
        path = folder / name
        path.write_bytes(data)
        return str(path)

    @capability_node
    async def test_image_content() -> Files:
        """Draw a picture."""
        return Files(paths=[write("picture.png", _PICTURE)])

    @capability_node
    async def test_audio_content() -> Files:
        """Record a sound."""
        return Files(paths=[write("sound.wav", _SOUND)])

    @capability_node
    async def test_embedded_resource() -> Files:
        """Write a text."""
        return Files(paths=[write("text.txt", b"This is an embedded resource content.")])

    @capability_node
    async def test_multiple_content_types() -> Files:
        """Draw a picture and write a document."""
        document = write("data.json", b'{"test":"data","value":123}')
        return Files(paths=[write("picture.png", _PICTURE), document])

    return [
        test_image_content,
        test_audio_content,
        test_embedded_resource,
        test_multiple_content_types,
    ]


@capability_node(examples=["This is a simple prompt for testing."])
async def test_simple_prompt() -> str:
    """Reply to a test."""
    return "Tested."


@capability_node
async def regional(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "eu",
) -> str:
    """Return the region, which clients repeat in a header."""
    return region


_PROMPT_RECIPE = Recipe(
    name="test_prompt_with_arguments",
    description="Repeat two arguments.",
    parameters={"arg1": {"type": "string"}, "arg2": {"type": "string"}},
    steps=[
        {
            "context_key": "region",
            "capability": "regional",
            "parameters": {"region": {"$from": "parameters.arg1"}},
            "task_objective": "{arg2}",
        }
    ],
    examples=[
        {
            "request": "Prompt with arguments: arg1='hello', arg2='world'",
            "parameters": {"arg1": "hello", "arg2": "world"},
        }
    ],
)


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
    provides = ["REPLY"]

    async def execute(self) -> Reply:
        for fraction in (0.0, 0.5, 1.0):
            self.progress("Working", fraction)
            await asyncio.sleep(0.05)
        return Reply(text="Done.")


def _ask(
    message: str, properties: Mapping[str, Any], required: list[str], name: str | None = None
) -> Any:
    schema = {"type": "object", "properties": properties, "required": required}
    return interrupt({"name": name, "message": message, "schema": schema})


@capability_node
async def test_elicitation(message: str) -> str:
    """Ask for a user name and an address."""
    text = {"type": "string"}
    fields = {
        "username": {**text, "description": "User's response"},
        "email": {**text, "description": "User's email address"},
    }
    return f"User response: {_ask(message, fields, [*fields])}"


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
    answer = _ask("What is your name?", {"name": {"type": "string"}}, ["name"], "user_name")
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


@capability_node
async def test_tool_with_logging() -> str:
    """Return a text. The steps of the run are log messages."""
    return "Logged."


@capability_node
async def test_logging_tool() -> str:
    """Return a text. The steps of the run are log messages."""
    return "Logged."


@capability_node
async def greet(name: str) -> str:
    """Greet."""
    return f"Hello, {name}!"


@capability_node(timeout_seconds=120)
async def slow_compute(seconds: float, label: str = "") -> str:
    """Compute for a while."""
    await asyncio.sleep(seconds)
    return f"Computed {label} for {seconds} seconds."


@capability_node
async def failing_job() -> str:
    """Fail after a while."""
    await asyncio.sleep(1)
    raise CapabilityError("This job always fails.")


@capability_node
async def protocol_error_job() -> str:
    """End the run with an error."""
    await asyncio.sleep(_TASK_SECONDS * 2)
    raise CapabilityError("The run cannot continue.", severity=ErrorSeverity.FATAL)


@capability_node
async def confirm_delete(filename: str) -> str:
    """Ask before a file is deleted."""
    await asyncio.sleep(_TASK_SECONDS * 2)
    answer = _ask(f"Delete {filename}?", {"confirm": {"type": "boolean"}}, ["confirm"])
    return f"Deleted {filename}: {answer['confirm']}"


@capability_node
async def first_input() -> str:
    """Ask a question after a while."""
    await asyncio.sleep(_TASK_SECONDS * 2)
    return str(_ask("First?", {"name": {"type": "string"}}, ["name"])["name"])


@capability_node
async def second_input() -> str:
    """Ask a question after a while."""
    await asyncio.sleep(_TASK_SECONDS * 2)
    return str(_ask("Second?", {"name": {"type": "string"}}, ["name"])["name"])


@capability_node
async def join_inputs(first: str, second: str) -> str:
    """Join two texts."""
    return f"{first} {second}"


@capability_node
async def test_tool_with_task() -> str:
    """Ask for a name, and greet after a while."""
    answer = _ask("What is your name?", {"name": {"type": "string"}}, ["name"], "user_name")
    await asyncio.sleep(_TASK_SECONDS * 2)
    return f"Hello, {answer['name']}!"


_MULTI_INPUT = Recipe(
    name="multi_input",
    description="Ask two questions at once.",
    steps=[
        {"context_key": "first", "capability": "first_input", "task_objective": "Ask."},
        {"context_key": "second", "capability": "second_input", "task_objective": "Ask."},
        {
            "context_key": "both",
            "capability": "join_inputs",
            "parameters": {"first": {"$from": "first"}, "second": {"$from": "second"}},
            "task_objective": "Join both.",
        },
    ],
)
_TASK_TOOLS: list[Any] = [
    greet,
    slow_compute,
    failing_job,
    protocol_error_job,
    confirm_delete,
    test_tool_with_task,
]
_RECIPE_STEPS: list[Any] = [first_input, second_input, join_inputs]
CAPABILITIES: list[Any] = [
    test_simple_text,
    test_tool_with_logging,
    test_logging_tool,
    test_error_handling,
    Progress,
    test_elicitation,
    test_elicitation_sep1034_defaults,
    test_elicitation_sep1330_enums,
    test_input_required_result_elicitation,
    test_input_required_result_request_state,
    test_input_required_result_tampered_state,
    test_input_required_result_multi_round,
    test_simple_prompt,
    regional,
    capability_from_schema(
        "json_schema_2020_12_tool", "Accept an address.", _SCHEMA, _accept_arguments
    ),
]


class OneUser:
    """Identity of a server with one user, for clients that send no credentials."""

    async def caller(self, _: Mapping[str, Any]) -> Caller:
        return Caller("ann", authenticated=True)


def make_app(folder: Path) -> Any:
    """Return the application.

    Args:
        folder: Folder for files that tools write.
    """
    files = {"test://static-text": "static.txt", "test://static-binary": "static.png"}
    (folder / "static.txt").write_text("This is the content of the static text resource.")
    (folder / "static.png").write_bytes(_PICTURE)
    capabilities = [*CAPABILITIES, *_TASK_TOOLS, *_make_file_capabilities(folder)]
    names = [capability.capability_spec.name for capability in capabilities]
    registry = Registry()
    for part in (*capabilities, *_RECIPE_STEPS, _PROMPT_RECIPE, _MULTI_INPUT):
        registry.register(part)
    mcp = {
        "tools": [*names, "multi_input"],
        "task_after_seconds": _TASK_SECONDS,
        "task_tools": ["failing_job"],
        "resources": {uri: str(folder / name) for uri, name in files.items()},
    }
    serve = {"mcp": mcp, "downloads": [str(folder)], "max_active_runs_per_user": 100}
    graph = build_graph(registry, checkpointer=InMemorySaver(), settings=Settings(serve=serve))
    return create_app(graph, auth=OneUser(), host="127.0.0.1")
