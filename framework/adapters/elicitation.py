"""Conversion of approval requests and questions to MCP elicitation forms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mcp.server.mcpserver import Context
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from capgraph.approvals import STEP, describe_question, is_approval_request

_DECISION_FIELDS = {"reject": "reason", "respond": "message", "done": "outputs"}
"""Form field that belongs to each kind of decision."""
_FORM_KEYWORDS = ("title", "description", "minimum", "maximum", "minLength", "maxLength", "enum")
"""JSON schema keywords that MCP forms support. Other constraints are checked after the answer."""
_SCALAR_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}


def supports_elicitation(context: Context[Any, Any]) -> bool:
    """Return True if the MCP client supports elicitation, that is, forms shown to the user."""
    can = context.client_capabilities
    return can is not None and can.elicitation is not None


async def elicit_answers(
    questions: Mapping[str, Any], context: Context[Any, Any], state: str
) -> Mapping[str, Any] | InputRequiredResult:
    """Ask the user of an MCP client to answer the questions of a call.

    In newer protocol versions, the call ends by returning the forms, and the client repeats the
    call with the answers.

    Args:
        questions: Approval requests and questions by name.
        context: Context of the MCP call.
        state: Opaque state that the client sends back with the answers if the call ends.

    Returns:
        The client's responses by form name, or the result that the call must return.
    """
    forms = elicitation_forms(questions)
    request = context.request_context
    if request.protocol_version in MODERN_PROTOCOL_VERSIONS:
        requests = {name: ElicitRequest(params=form) for name, form in forms.items()}
        return InputRequiredResult(input_requests=requests, request_state=state)
    ask, request_id = request.session.elicit_form, request.request_id
    return {n: await ask(f.message, f.requested_schema, request_id) for n, f in forms.items()}


def elicitation_forms(questions: Mapping[str, Any]) -> dict[str, ElicitRequestFormParams]:
    """Build the elicitation forms for a set of questions, keyed by form name.

    Args:
        questions: Questions by name. An approval of several steps has one form for each step.
    """
    return {
        name: form
        for question_name, value in questions.items()
        for name, form in _build_forms(question_name, value)
    }


def is_asked_before_run(question: Any) -> bool:
    """Return True if a question is an approval request for steps that have not started."""
    return is_approval_request(question) and question["steps"][0].get("kind", STEP) == STEP


def read_answer(name: str, question: Any, responses: Mapping[str, Any]) -> Any:
    """Extract the answer to a question from the responses of an MCP client.

    Args:
        name: Name of the question.
        question: Approval request, or question that a capability asks.
        responses: Client responses by form name.
    """
    if is_approval_request(question):
        return {
            step["context_key"]: _read_decision(
                step, responses.get(_form_name(name, question, index))
            )
            for index, step in enumerate(question["steps"])
        }
    content = _get_accepted_content(responses.get(name))
    if isinstance(question, Mapping) and isinstance(question.get("schema"), Mapping):
        return content
    return (content or {}).get("answer")


def _form_name(name: str, question: Any, index: int) -> str:
    return name if len(question["steps"]) == 1 else f"{name}/{index}"


def _build_forms(name: str, question: Any) -> list[tuple[str, ElicitRequestFormParams]]:
    if is_approval_request(question):
        return [
            (
                _form_name(name, question, index),
                _build_form(
                    describe_question({**question, "steps": [step]}), *_build_step_fields(step)
                ),
            )
            for index, step in enumerate(question["steps"])
        ]
    schema_given = question.get("schema") if isinstance(question, Mapping) else None
    if isinstance(schema_given, Mapping):
        schema = {"type": "object", **schema_given}
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
    """Form field for a parameter of a step.

    Attributes:
        name: Name of the parameter.
        schema: JSON schema of the field.
        is_json: True if the value is not a scalar and must be entered as JSON text.
    """

    name: str
    schema: dict[str, Any]
    is_json: bool


def _build_step_fields(step: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    decisions = list(step["decisions"])
    fields = {
        field_name: {"type": "string", "title": field_name.capitalize()}
        for word, field_name in _DECISION_FIELDS.items()
        if word in decisions
    }
    if "edit" in decisions:
        fields |= {name: field.schema for name, field in _build_parameter_fields(step).items()}
    decision = {"type": "string", "enum": decisions, "title": "Decision"}
    return {"decision": decision, **fields}, "decision"


def _build_parameter_fields(step: Mapping[str, Any]) -> dict[str, _Field]:
    """Build a form field for each step parameter, keyed by the name of the field in the form."""
    values = step.get("parameters") or {}
    schema = step.get("parameters_schema") or {}
    declared = schema.get("properties") or {}
    fields = {}
    for name in [*declared, *(name_shown for name_shown in values if name_shown not in declared)]:
        field, is_json = _flatten_schema(
            declared.get(name) or _infer_schema(values[name]), schema.get("$defs") or {}
        )
        if values.get(name) is not None:
            field["default"] = json.dumps(values[name]) if is_json else values[name]
        fields[f"parameters.{name}" if name == "decision" else name] = _Field(name, field, is_json)
    return fields


def _flatten_schema(
    schema: Mapping[str, Any], definitions: Mapping[str, Any]
) -> tuple[dict[str, Any], bool]:
    annotations = {
        keyword: schema[keyword] for keyword in ("title", "description") if keyword in schema
    }
    resolved = schema
    for _ in range(len(definitions) + 1):
        if "$ref" in resolved:
            resolved = definitions.get(str(resolved["$ref"]).removeprefix("#/$defs/"), {})
        variants = [
            variant for variant in resolved.get("anyOf") or () if variant.get("type") != "null"
        ]
        if len(variants) == 1:
            resolved = variants[0]
    json_type = resolved.get("type")
    if json_type not in _SCALAR_TYPES:
        description = " ".join(
            ["As JSON.", *([annotations["description"]] if "description" in annotations else [])]
        )
        return {"type": "string", **annotations, "description": description}, True
    return {
        "type": json_type,
        **{keyword: resolved[keyword] for keyword in _FORM_KEYWORDS if keyword in resolved},
        **annotations,
    }, False


def _infer_schema(value: Any) -> dict[str, Any]:
    """Infer the JSON schema of an undeclared parameter from its value."""
    return {
        "type": next(
            (name for name, scalar in _SCALAR_TYPES.items() if type(value) is scalar), None
        )
    }


def _get_accepted_content(response: Any) -> dict[str, Any] | None:
    accepted = isinstance(response, ElicitResult) and response.action == "accept"
    return dict(response.content or {}) if accepted else None


def _read_decision(step: Mapping[str, Any], response: Any) -> dict[str, Any]:
    content = _get_accepted_content(response)
    if not content:
        return {"decision": "reject", "reason": "the user declined"}
    decision = content.get("decision")
    values = step.get("parameters") or {}
    edited = _read_edited_parameters(step, content) if "edit" in step["decisions"] else {}
    if decision == "edit" or (decision == "approve" and edited):
        # The user approved the values in the form, so changed fields are edited parameters.
        return {"decision": "edit", "parameters": {**values, **edited}}
    answer = {"decision": decision}
    if isinstance(decision, str) and (text := _DECISION_FIELDS.get(decision)) and content.get(text):
        answer[text] = _parse_json(content[text]) if decision == "done" else content[text]
    return answer


def _read_edited_parameters(step: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    values = step.get("parameters") or {}
    entered = {
        field.name: _parse_json(content[name]) if field.is_json else content[name]
        for name, field in _build_parameter_fields(step).items()
        if content.get(name) is not None
    }
    return {name: value for name, value in entered.items() if values.get(name) != value}


def _parse_json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text  # the validation of the answer reports the error
