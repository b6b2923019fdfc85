"""Questions of capgraph as the flat forms of an MCP client, and what comes back as answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mcp.server.mcpserver import Context
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from capgraph.approvals import STEP, describe_question, is_approval_request

Forms = dict[str, ElicitRequestFormParams]
_DECISION_FIELDS = {"reject": "reason", "respond": "message", "done": "outputs"}
"""Decision to the field that goes with it."""
_FORM_KEYWORDS = ("title", "description", "minimum", "maximum", "minLength", "maxLength", "enum")
"""What a client's forms may say of a field; the rest is checked here, and told when it is wrong."""
_SCALAR_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}


def supports_elicitation(context: Context[Any, Any]) -> bool:
    """Tell whether a person can be asked at the client."""
    can = context.client_capabilities
    return can is not None and can.elicitation is not None


async def elicit_answers(
    questions: Mapping[str, Any], context: Context[Any, Any], state: str
) -> Mapping[str, Any] | InputRequiredResult:
    """Ask whoever sits at the client; the newest protocol asks by ending the call.

    Args:
        questions: Questions by name.
        context: The call.
        state: What the client brings again with the answers, where it asks by ending the call.

    Returns:
        What the client answered, form by form, or what the call has to end with.
    """
    forms = {
        name: form for one, value in questions.items() for name, form in _build_forms(one, value)
    }
    request = context.request_context
    if request.protocol_version in MODERN_PROTOCOL_VERSIONS:
        requests = {name: ElicitRequest(params=form) for name, form in forms.items()}
        return InputRequiredResult(input_requests=requests, request_state=state)
    ask, about = request.session.elicit_form, request.request_id
    return {n: await ask(f.message, f.requested_schema, about) for n, f in forms.items()}


def is_asked_before_run(question: Any) -> bool:
    """Tell whether a question is put before anything ran."""
    return is_approval_request(question) and question["steps"][0].get("kind", STEP) == STEP


def read_answer(name: str, question: Any, responses: Mapping[str, Any]) -> Any:
    """Read what a client answered to one question.

    Args:
        name: The name of the question.
        question: The question.
        responses: What the client answered, form by form.
    """
    if is_approval_request(question):
        return {
            step["context_key"]: _read_decision(
                step, responses.get(_form_name(name, question, place))
            )
            for place, step in enumerate(question["steps"])
        }
    content = _accepted_content(responses.get(name))
    if isinstance(question, Mapping) and isinstance(question.get("schema"), Mapping):
        return content
    return (content or {}).get("answer")


def _form_name(name: str, question: Any, index: int) -> str:
    return name if len(question["steps"]) == 1 else f"{name}/{index}"


def _build_forms(name: str, question: Any) -> list[tuple[str, ElicitRequestFormParams]]:
    if is_approval_request(question):
        return [
            (
                _form_name(name, question, place),
                _build_form(describe_question({**question, "steps": [step]}), *_step_fields(step)),
            )
            for place, step in enumerate(question["steps"])
        ]
    own = question.get("schema") if isinstance(question, Mapping) else None
    if isinstance(own, Mapping):
        schema = {"type": "object", **own}
        return [
            (
                name,
                ElicitRequestFormParams(
                    message=describe_question(question), requested_schema=schema
                ),
            )
        ]
    return [
        (name, _build_form(describe_question(question), {"answer": {"type": "string"}}, "answer"))
    ]


def _build_form(message: str, fields: Mapping[str, Any], required: str) -> ElicitRequestFormParams:
    schema = {"type": "object", "properties": dict(fields), "required": [required]}
    return ElicitRequestFormParams(message=message, requested_schema=schema)


# --- one step ------------------------------------------------------------------------------------


class _Field(NamedTuple):
    """A parameter in a form."""

    name: str
    schema: dict[str, Any]
    is_json: bool
    """Whether it is no flat value, and is therefore JSON as text."""


def _step_fields(step: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    words = list(step["decisions"])
    fields = {
        text: {"type": "string", "title": text.capitalize()}
        for word, text in _DECISION_FIELDS.items()
        if word in words
    }
    if "edit" in words:
        fields |= {name: field.schema for name, field in _parameter_fields(step).items()}
    decision = {"type": "string", "enum": words, "title": "Decision"}
    return {"decision": decision, **fields}, "decision"


def _parameter_fields(step: Mapping[str, Any]) -> dict[str, _Field]:
    """Return what each parameter is in a form, by the name it has there."""
    shown = step.get("parameters") or {}
    schema = step.get("parameters_schema") or {}
    declared = schema.get("properties") or {}
    fields = {}
    for name in [*declared, *(one for one in shown if one not in declared)]:
        field, is_json = _flatten_schema(
            declared.get(name) or _infer_schema(shown[name]), schema.get("$defs") or {}
        )
        if shown.get(name) is not None:
            field["default"] = json.dumps(shown[name]) if is_json else shown[name]
        fields[f"parameters.{name}" if name == "decision" else name] = _Field(name, field, is_json)
    return fields


def _flatten_schema(
    schema: Mapping[str, Any], definitions: Mapping[str, Any]
) -> tuple[dict[str, Any], bool]:
    about = {word: schema[word] for word in ("title", "description") if word in schema}
    found = schema
    for _ in range(len(definitions) + 1):
        if "$ref" in found:
            found = definitions.get(str(found["$ref"]).removeprefix("#/$defs/"), {})
        ways = [one for one in found.get("anyOf") or () if one.get("type") != "null"]
        if len(ways) == 1:
            found = ways[0]
    kind = found.get("type")
    if kind not in _SCALAR_TYPES:
        told = " ".join(["As JSON.", *([about["description"]] if "description" in about else [])])
        return {"type": "string", **about, "description": told}, True
    return {
        "type": kind,
        **{word: found[word] for word in _FORM_KEYWORDS if word in found},
        **about,
    }, False


def _infer_schema(value: Any) -> dict[str, Any]:
    """Describe a value of a parameter that nobody declared."""
    return {
        "type": next((name for name, kind in _SCALAR_TYPES.items() if type(value) is kind), None)
    }


def _accepted_content(response: Any) -> dict[str, Any] | None:
    accepted = isinstance(response, ElicitResult) and response.action == "accept"
    return dict(response.content or {}) if accepted else None


def _read_decision(step: Mapping[str, Any], response: Any) -> dict[str, Any]:
    content = _accepted_content(response)
    if not content:
        return {"decision": "reject", "reason": "whoever sits at the client did not agree"}
    word = content.get("decision")
    shown = step.get("parameters") or {}
    changed = _edited_parameters(step, content) if "edit" in step["decisions"] else {}
    if word == "edit" or (word == "approve" and changed):
        # Agreement holds for what the person saw last, and that is what the fields say.
        return {"decision": "edit", "parameters": {**shown, **changed}}
    answer = {"decision": word}
    if isinstance(word, str) and (text := _DECISION_FIELDS.get(word)) and content.get(text):
        answer[text] = _parse_json(content[text]) if word == "done" else content[text]
    return answer


def _edited_parameters(step: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    shown = step.get("parameters") or {}
    found = {
        field.name: _parse_json(content[name]) if field.is_json else content[name]
        for name, field in _parameter_fields(step).items()
        if content.get(name) is not None
    }
    return {name: value for name, value in found.items() if shown.get(name) != value}


def _parse_json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text  # what reads the answer says what is wrong with it
