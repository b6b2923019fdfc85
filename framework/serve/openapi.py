"""The OpenAPI document of the JSON API and of what stands beside it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

Schema = dict[str, Any]


def _object(needed: Mapping[str, Schema], **more: Schema) -> Schema:
    return {"type": "object", "properties": {**needed, **more}, "required": list(needed)}


def _list_of(item: Schema) -> Schema:
    return _object({"items": {"type": "array", "items": item}, "next": _NAME_OR_NULL})


_TEXT: Schema = {"type": "string"}
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 200}
_NAME_OR_NULL: Schema = {"type": ["string", "null"]}
_ANY: Schema = {"type": "object"}
_RUN = _object(
    {
        "run_id": _TEXT,
        "thread_id": _TEXT,
        "status": {
            "type": "string",
            "description": "queued, running, or how the turn ended: completed, partial, failed,"
            " stopped or waiting",
        },
    }
)
_THREAD = _object(
    {"thread_id": _TEXT, "title": _TEXT, "outcome": _TEXT, "turns": {"type": "integer"}},
    updated_at=_NAME_OR_NULL,
    last_message=_TEXT,
    task=_NAME_OR_NULL,
    questions={"type": "integer"},
)
_QUESTION = _object(
    {"question_id": _TEXT, "thread_id": _TEXT},
    steps={
        "type": "array",
        "items": _object(
            {"context_key": _TEXT, "decisions": {"type": "array", "items": _TEXT}},
            capability=_TEXT,
            parameters=_ANY,
            parameters_schema={**_ANY, "description": "JSON schema of the parameters"},
        ),
    },
)
_EFFECT = _object(
    {
        "effect": _TEXT,
        "key": _TEXT,
        "capability": _TEXT,
        "thread_id": _TEXT,
        "state": _TEXT,
        "approved_by": {"type": "array", "items": _TEXT},
    }
)
_FILE = _object({"file_id": _TEXT, "name": _TEXT, "media_type": _TEXT}, bytes={"type": "integer"})
_MADE = _object(
    {"file_id": _TEXT, "name": _TEXT, "media_type": _TEXT},
    kind={"enum": ["image", "table", "file"]},
    type=_TEXT,
    step=_NAME_OR_NULL,
    bytes={"type": "integer"},
    rows={"type": "integer"},
)
_BYTES: Schema = {"type": "string", "format": "binary"}
_PROBLEM = _object(
    {"status": {"type": "integer"}, "code": _TEXT, "detail": _TEXT},
    type=_TEXT,
    title=_TEXT,
    fix=_TEXT,
    problems={
        "type": "array",
        "items": _object({"path": _TEXT, "message": _TEXT}),
        "description": "what does not fit in an answer, with its dotted place",
    },
)
_COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 100_000}
_PAGED: Mapping[str, Schema] = {"limit": _COUNT, "after": _NAME}


class Operation(NamedTuple):
    """What the document says of one route."""

    method: str
    path: str
    summary: str
    gives: Schema | None = None
    status: int = 200
    query: Mapping[str, Schema] = {}
    body: Schema | None = None
    media: str = "application/json"
    takes: str = "application/json"


OPERATIONS = (
    Operation("post", "/api/threads", "Make a thread", _object({"thread_id": _TEXT}), 201,
              body=_object({}, title={"type": "string", "maxLength": 200})),
    Operation("get", "/api/threads", "List threads, the one saved last first", _list_of(_THREAD),
              query={"query": _TEXT, "outcome": _TEXT, **_PAGED}),
    Operation("get", "/api/threads/{id}", "Read a thread with its conversation", _THREAD),
    Operation("patch", "/api/threads/{id}", "Give a thread a title", _THREAD,
              body=_object({"title": {"type": "string", "maxLength": 200}})),
    Operation("delete", "/api/threads/{id}", "Drop a thread", None, 204),
    Operation("post", "/api/threads/{id}/fork", "Begin a thread with the past of another one",
              _object({"thread_id": _TEXT}), 201, body=_object({}, checkpoint_id=_NAME)),
    Operation("get", "/api/threads/{id}/history", "List the checkpoints of a thread",
              _list_of(_object({"checkpoint_id": _TEXT})), query=_PAGED),
    Operation("get", "/api/threads/{id}/state", "Read what a thread holds, or held", _ANY,
              query={"checkpoint_id": _NAME}),
    Operation("post", "/api/threads/{id}/runs", "Begin a run", _RUN, 202,
              body=_object({}, message=_TEXT, plan=_ANY, context=_ANY,
                           files={"type": "array", "items": _TEXT})),
    Operation("post", "/api/files", "Bring a file along", _FILE, 201, query={"name": _TEXT},
              body=_BYTES, takes="application/octet-stream"),
    Operation("get", "/api/files", "List the files that one brought along", _list_of(_FILE)),
    Operation("get", "/api/files/{id}", "Have a file", _BYTES, media="*/*"),
    Operation("delete", "/api/files/{id}", "Drop a file", None, 204),
    Operation("get", "/api/threads/{id}/files", "List what steps of a thread made",
              _list_of(_MADE)),
    Operation("get", "/api/threads/{id}/files/{file_id}", "Have a file, or a table as CSV",
              _BYTES, media="*/*"),
    Operation("get", "/api/threads/{id}/files/{file_id}/rows", "Read a table",
              _list_of(_ANY), query={"limit": _COUNT, "after": _COUNT}),
    Operation("post", "/api/threads/{id}/signals/{key}", "Tell a thread that an event came",
              _object({"waited": {"type": "boolean"}, "run_id": _NAME_OR_NULL}), 202,
              body=_object({}, value={})),
    Operation("get", "/api/runs/{id}", "Read a run", _RUN),
    Operation("post", "/api/runs/{id}/stop", "Stop a run", _RUN, 202),
    Operation("get", "/api/runs/{id}/events", "Follow a run; Last-Event-ID goes on", _TEXT,
              media="text/event-stream"),
    Operation("get", "/api/questions", "List what people are asked", _list_of(_QUESTION),
              query={"thread_id": _NAME}),
    Operation("post", "/api/questions/{id}", "Answer a question", _RUN, 202,
              body=_object({"answer": {"description": "one word, or {context_key: {decision, …}}"}})),
    Operation("get", "/api/effects", "List effects and who agreed to them", _list_of(_EFFECT),
              query={"thread_id": _NAME, **_PAGED}),
    Operation("get", "/api/usage", "Read what calls of models used", _list_of(_ANY),
              query={"by": {"enum": ["model", "day", "user", "step"]}, "thread_id": _NAME}),
    Operation("get", "/api/audit", "Read the audit", _list_of(_ANY),
              query={"limit": _COUNT, "after": _COUNT}),
    Operation("get", "/api/audit/verify", "Check the audit",
              _object({"valid": {"type": "boolean"}})),
    Operation("get", "/api/capabilities", "List what the agent can do", _list_of(_ANY)),
    Operation("get", "/api/budgets", "Read what may be used up, and what is left", _list_of(_ANY),
              query={"thread_id": _NAME}),
    Operation("get", "/api/limits", "Read slots that are taken, and what is out of reach now",
              _list_of(_ANY)),
    Operation("get", "/api/graph", "Read the nodes and edges of the graph",
              _object({"nodes": {"type": "array"}, "edges": {"type": "array"}})),
    Operation("get", "/api/findings", "Read what would fail, as 'capgraph check' finds it",
              _list_of(_ANY)),
    Operation("get", "/api/workers", "List the workers that live", _list_of(_ANY)),
    Operation("get", "/api/evaluations", "Read what evaluations of the agent gave",
              _list_of(_ANY)),
    Operation("post", "/agui", "Run over AG-UI", _TEXT, body=_object(
        {"threadId": _NAME, "runId": _NAME, "messages": {"type": "array", "items": _ANY}},
        resume={"type": "array", "items": _ANY}), media="text/event-stream"),
    Operation("post", "/v1/chat/completions", "Ask as a chat model of OpenAI's API", _ANY,
              body=_object({"messages": {"type": "array", "items": _object(
                  {"role": {"enum": ["system", "developer", "user", "assistant"]}, "content": _TEXT})}},
                  model=_TEXT, stream={"type": "boolean"}, metadata=_ANY)),
    Operation("get", "/v1/models", "List the models of OpenAI's API", _ANY),
    Operation("get", "/healthz", "Whether the server lives", _ANY),
    Operation("get", "/readyz", "Whether the server is ready", _ANY),
    Operation("get", "/metrics", "What the server has done", _TEXT, media="text/plain"),
)  # fmt: skip
"""All that the document says."""


def document(title: str) -> dict[str, Any]:
    """Return the OpenAPI document.

    Args:
        title: Name of the agent.

    >>> document("Tank")["paths"]["/api/runs/{id}/stop"]["post"]["responses"]["202"]["description"]
    'Stop a run'
    """
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": server_version()},
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _described(operation: Operation) -> dict[str, Any]:
    places = [part.strip("{}") for part in operation.path.split("/") if part.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _NAME} for name in places
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in operation.query.items()
    ]
    if operation.path.endswith("/events"):
        parameters.append(
            {"name": "Last-Event-ID", "in": "header", "required": False, "schema": _COUNT}
        )
    answer: dict[str, Any] = {"description": operation.summary}
    if operation.gives is not None:
        answer["content"] = {operation.media: {"schema": operation.gives}}
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    found: dict[str, Any] = {
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            str(operation.status): answer,
            "default": {
                "description": "What is wrong",
                "content": {"application/problem+json": problem},
            },
        },
    }
    if operation.body is not None:
        needed = bool(operation.body.get("required"))
        content = {operation.takes: {"schema": operation.body}}
        found["requestBody"] = {"required": needed, "content": content}
    return found


def server_version() -> str:
    """Return the version of what is installed."""
    try:
        return version("capgraph")
    except PackageNotFoundError:
        return "0"
