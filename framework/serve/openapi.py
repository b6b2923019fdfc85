"""OpenAPI document of the server, and the schemas that it shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from starlette.routing import BaseRoute, Route

Schema = dict[str, Any]


def object_schema(required: Mapping[str, Schema], **optional: Schema) -> Schema:
    """Build the JSON schema of an object from its required and optional properties."""
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def page_schema(item: Schema) -> Schema:
    """Return the JSON schema of a page of items with a cursor for the next page."""
    return object_schema({"items": {"type": "array", "items": item}, "next": TEXT_OR_NULL})


TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 200}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
ANY: Schema = {"type": "object"}
RUN = object_schema(
    {
        "run_id": TEXT,
        "thread_id": TEXT,
        "status": {
            "type": "string",
            "description": "queued, running, or the outcome of the turn: completed, partial,"
            " failed, stopped, or waiting",
        },
    }
)
THREAD_DATA = object_schema(
    {"thread_id": TEXT, "title": TEXT, "outcome": TEXT, "turns": {"type": "integer"}},
    updated_at=TEXT_OR_NULL,
    last_message=TEXT,
    task=TEXT_OR_NULL,
    questions={"type": "integer"},
    cost_usd={"type": ["number", "null"]},
)
QUESTION = object_schema(
    {"question_id": TEXT, "thread_id": TEXT},
    can_decide={"type": "boolean", "description": "True if the caller may answer"},
    has_approved={"type": "boolean", "description": "True if the caller has approved"},
    approver_roles={"type": "array", "items": TEXT},
    requester={**TEXT, "description": "Owner of the thread, if it is another user"},
    steps={
        "type": "array",
        "items": object_schema(
            {"context_key": TEXT, "decisions": {"type": "array", "items": TEXT}},
            capability=TEXT,
            parameters=ANY,
            parameters_schema={**ANY, "description": "JSON schema of the parameters"},
        ),
    },
)
EFFECT = object_schema(
    {
        "effect": TEXT,
        "key": TEXT,
        "capability": TEXT,
        "thread_id": TEXT,
        "state": TEXT,
        "approved_by": {"type": "array", "items": TEXT},
    }
)
FILE = object_schema({"file_id": TEXT, "name": TEXT, "media_type": TEXT}, bytes={"type": "integer"})
ARTIFACT = object_schema(
    {"file_id": TEXT, "name": TEXT, "media_type": TEXT},
    kind={"enum": ["image", "table", "file"]},
    type=TEXT,
    step=TEXT_OR_NULL,
    bytes={"type": "integer"},
    rows={"type": "integer"},
)
BYTES: Schema = {"type": "string", "format": "binary"}
_PROBLEM = object_schema(
    {"status": {"type": "integer"}, "code": TEXT, "detail": TEXT},
    type=TEXT,
    title=TEXT,
    fix=TEXT,
    problems={
        "type": "array",
        "items": object_schema({"path": TEXT, "message": TEXT}),
        "description": "problems of an answer, each with a dotted path",
    },
)
_ERROR_RESPONSE: Schema = {
    "description": "Problem details",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_NO_QUERY: Mapping[str, Schema] = {}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 100_000}
PAGE_QUERY: Mapping[str, Schema] = {"limit": COUNT, "after": NAME}


class Operation(Route):
    """HTTP route that carries its own OpenAPI description.

    Args:
        method: HTTP method.
        path: Path of the route.
        endpoint: Handler of the route.
        summary: Summary of the operation.
        response: Schema of the response body; ``None`` for an empty body.
        status: HTTP status of the response.
        query: Schemas of the query parameters.
        body: Schema of the request body.
        media_type: Media type of the response.
        body_media_type: Media type of the request body.
        name: Name of the route.
    """

    def __init__(
        self,
        method: str,
        path: str,
        endpoint: Callable[..., Any],
        summary: str,
        response: Schema | None = None,
        status: int = 200,
        *,
        query: Mapping[str, Schema] = _NO_QUERY,
        body: Schema | None = None,
        media_type: str = "application/json",
        body_media_type: str = "application/json",
        name: str | None = None,
    ) -> None:
        super().__init__(path, endpoint, methods=[method], name=name)
        answer: Schema = {"description": summary}
        if response is not None:
            answer["content"] = {media_type: {"schema": response}}
        parameters = [(name, "path", NAME) for name in self.param_convertors]
        parameters += [(name, "query", schema) for name, schema in query.items()]
        if path.endswith("/events"):
            parameters.append(("Last-Event-ID", "header", COUNT))
        self.openapi: Schema = {
            "summary": summary,
            "parameters": [
                {"name": name, "in": location, "required": location == "path", "schema": schema}
                for name, location, schema in parameters
            ],
            "responses": {str(status): answer, "default": _ERROR_RESPONSE},
        }
        if body is not None:
            content = {body_media_type: {"schema": body}}
            self.openapi["requestBody"] = {
                "required": bool(body.get("required")),
                "content": content,
            }


def openapi_document(title: str, routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """Build the OpenAPI document that describes the server's routes.

    Args:
        title: Name of the agent.
        routes: Routes of the server. Routes that are not an :class:`Operation` are omitted.

    >>> stop = Operation("POST", "/api/runs/{id}/stop", print, "Stop a run", TEXT, 202)
    >>> openapi_document("Tank", [stop])["paths"]["/api/runs/{id}/stop"]["post"]["responses"]["202"]
    {'description': 'Stop a run', 'content': {'application/json': {'schema': {'type': 'string'}}}}
    """
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, Operation):
            methods = (route.methods or set()) - {"HEAD"}
            operations = {method.lower(): route.openapi for method in methods}
            paths.setdefault(route.path_format, {}).update(operations)
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


def server_version() -> str:
    """Return the version of the installed package."""
    try:
        return version("capgraph")
    except PackageNotFoundError:
        return "0"
