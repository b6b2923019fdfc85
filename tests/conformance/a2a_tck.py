"""A2A's Technology Compatibility Kit against a served agent.

The kit is not a package. ``A2A_TCK`` names the folder of a checkout of its branch ``1.0-dev``.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from capgraph import CapabilityContext, build_graph, capability_node
from capgraph.configs.settings import Settings
from capgraph.serve.app import create_app
from tests.conformance.kits import (
    FOLDER,
    UnavailableError,
    install_python_packages,
    run_command,
)
from tests.conformance.mcp_agent import OneUser
from tests.conformance.report import Result
from tests.support.listening import on_loopback

_PACKAGES = (
    "pytest==9.0.2",
    "pytest-asyncio==1.3.0",
    "httpx==0.28.1",
    "grpcio",
    "protobuf",
    "googleapis-common-protos",
    "jsonschema",
    "pytest-html",
    "gherkin-official",
    "Jinja2",
)
_SECONDS = 600.0
_NOT_OFFERED = {
    "CARD-EXT-001": "Each client gets the same card, so the server has no extended card.",
    "CARD-EXT-002": "Each client gets the same card, so the server has no extended card.",
    "CORE-CAP-001": "The server streams.",
    "CORE-CAP-002": "The server sends push notifications.",
    "CORE-CAP-004": "The server has no extensions.",
}
"""Reason of each requirement that the kit skips."""
_FAILURES = {
    "CORE-SEND-003": "The kit counts the ContentTypeNotSupportedError that it requires as a failure.",
    "DM-MSG-001": "The server answers each message with a task, which the specification permits.",
    "HTTP_JSON-SVC-001": "The specification and the SDK use application/a2a+json in place of"
    " application/json.",
}
"""Reason of each expected failure, by requirement."""
_OUTPUT = FOLDER / "a2a-output"


class Output(CapabilityContext):
    """File that a step made."""

    path: str

    def get_files(self) -> list[str]:
        return [self.path]


class Values(CapabilityContext):
    """Structured data that a step made."""

    key: str
    count: int


@capability_node(examples=["write report"])
async def artifact_file() -> Output:
    """Write the report."""
    path = _OUTPUT / "output.txt"
    await asyncio.to_thread(path.write_text, "Generated file content")
    return Output(path=str(path))


@capability_node(examples=["count values"])
async def artifact_data() -> Values:
    """Count the values."""
    return Values(key="value", count=42)


@capability_node(examples=["store archive"])
async def artifact_link() -> Output:
    """Store the archive, which is too large for an artifact."""
    path = _OUTPUT / "large" / "output.txt"
    path.parent.mkdir(exist_ok=True)
    await asyncio.to_thread(path.write_text, "x" * 300_000)
    return Output(path=str(path))


@capability_node(examples=["generate paragraph"])
async def artifact_text() -> str:
    """Generate the paragraph."""
    return "Generated text content"


@capability_node(examples=["await details"])
async def input_required() -> str:
    """Await details until the kit completes the task."""
    while "history message" in (answer := str(interrupt({"message": "What is next?"}))):
        pass
    return f"The last input is {answer}."


@capability_node(examples=["work slowly"])
async def long_task() -> str:
    """Work slowly."""
    await asyncio.sleep(6)
    return "Done"


@capability_node(examples=["say hello"])
async def complete_task() -> str:
    """Say hello."""
    return "Hello from TCK"


_WORDS: Mapping[str, str] = {
    "artifact-file-url": "store archive",
    "artifact-file": "write report",
    "artifact-text": "generate paragraph",
    "artifact-data": "count values",
    "input-required": "await details",
    "test-resubscribe": "work slowly",
    "": "say hello",
}
"""Text of the message by a part of its ID, with which the kit names the behavior that it expects."""


class _ReadMessageIds:
    """Middleware that writes the behavior that a message ID names into the message's text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_changed() -> Message:
            message = await receive()
            if message["type"] != "http.request" or not message.get("body"):
                return message
            return {**message, "body": _with_behavior(message["body"])}

        if scope["type"] == "http":
            headers = [(k, v) for k, v in scope["headers"] if k != b"content-length"]
            changed = scope["method"] == "POST"
            scope = {**scope, "headers": headers} if changed else scope
            await self._app(scope, receive_changed if changed else receive, send)
        else:
            await self._app(scope, receive, send)


def _with_behavior(body: bytes) -> bytes:
    try:
        request = json.loads(body)
        message = request.get("params", request)["message"]
        parts = message["parts"]
        words = next(text for part, text in _WORDS.items() if part in message["messageId"])
    except (ValueError, KeyError, AttributeError, TypeError):
        return body
    if not message.get("taskId") and parts and "text" in parts[0]:
        parts[0]["text"] = words
    return json.dumps(request).encode()


def run() -> list[Result]:
    """Run the kit over JSON-RPC and REST."""
    folder = Path(os.environ.get("A2A_TCK") or "missing")
    if not (folder / "tck").is_dir():
        raise UnavailableError("A2A_TCK does not name a checkout of the kit.")
    python = install_python_packages("a2a-tck", *_PACKAGES)
    _OUTPUT.mkdir(parents=True, exist_ok=True)
    return [asyncio.run(_run(python, folder))]


async def _run(python: Path, folder: Path) -> Result:
    report = FOLDER / "a2a-tck-report"
    async with on_loopback(make_app) as url:
        done = await asyncio.to_thread(
            run_command,
            *(python, "-m", "pytest", "tests/compatibility", "-q", "--tb=short"),
            f"--sut-host={url}",
            "--transport=jsonrpc,http_json",
            f"--compatibility-report={report}",
            timeout_seconds=_SECONDS,
            cwd=folder,
        )
    (FOLDER / "a2a-tck.txt").write_text(done.stdout + done.stderr)
    return _read_result(json.loads(report.with_suffix(".json").read_text())["per_requirement"])


def _read_result(requirements: Mapping[str, Mapping[str, Any]]) -> Result:
    status = {name: requirement["status"] for name, requirement in requirements.items()}
    failed = [name for name in status if status[name] == "FAIL"]
    return Result(
        "A2A server, a2a-tck 1.0-dev (JSON-RPC and REST)",
        "1.0",
        sum(one == "PASS" for one in status.values()),
        {name: _FAILURES.get(name, "") for name in failed},
        {name: _skip_reason(name) for name in status if status[name] == "SKIPPED"},
        sorted({*_FAILURES} - {*failed}),
    )


def _skip_reason(name: str) -> str:
    if name.startswith("GRPC"):
        return "The server has no gRPC interface."
    return _NOT_OFFERED.get(name, "The requirement is about a feature that the card excludes.")


def make_app(_: str) -> Any:
    """Return the application."""
    graph = build_graph(
        [
            artifact_file,
            artifact_link,
            artifact_text,
            artifact_data,
            input_required,
            long_task,
            complete_task,
        ],
        checkpointer=InMemorySaver(),
        settings=Settings(
            serve={
                "a2a": {
                    "push_hosts": ["localhost", "127.0.0.1", "example.com"],
                    "version_0_3": False,
                },
                "downloads": [str(_OUTPUT)],
            }
        ),
    )
    return _ReadMessageIds(create_app(graph, auth=OneUser(), host="127.0.0.1"))
