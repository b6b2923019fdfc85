"""Pure functions that build approval requests as plain data.

A request is a list of entries. An entry is a step that requires approval, a step of unknown
outcome, a step whose capability is missing, or the whole plan. It has a key, a description, and the
allowed decisions. An entry contains exactly what will run: validated parameters with defaults, and
all inputs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from capgraph.approvals.grounding import ungrounded_steps
from capgraph.base.errors import ValidationError
from capgraph.base.plan import PlannedStep, plan_limits
from capgraph.base.value_context import LIST_SUFFIX, list_item_types
from capgraph.configs.safe_text import escape_control_characters
from capgraph.planning import TERMINAL_STEPS
from capgraph.planning.parameters import validated_parameters
from capgraph.planning.plan_access import plan_stamp
from capgraph.planning.summaries import summarize_entry
from capgraph.registry import Registry
from capgraph.state import TurnView

REQUEST_VERSION = 1
MAX_ENTRY_CHARS = 200_000
"""Maximum size of an entry in characters of JSON.

Inputs of a larger entry are shown as previews. If its other parts are too large, it cannot be
approved.
"""
MAX_PREVIEW_CHARS = 2000
"""Maximum number of JSON characters in the first and last part of a previewed input."""
PLAN = "plan"
"""Key of the entry for the whole plan."""
STEP = "step"
RESULT = "result"
"""Kind of entry about a step's result, before other steps use it."""
TEXT = "words"
"""Kind of entry about the text of a prompt or an answer."""
UNKNOWN_OUTCOME = "unknown_outcome"
ACTED_BEFORE = "acted_before"
MISSING_CAPABILITY = "missing_capability"
_MAX_DESCRIPTION_CHARS = 20_000
"""Maximum length of an action's description in characters."""
_HITL_DECISIONS = ("approve", "edit", "reject", "respond")
"""Decisions that LangChain's ``HITLRequest`` supports."""
_DECISIONS = {
    STEP: ["approve", "edit", "reject", "respond"],
    PLAN: ["approve", "edit", "reject", "respond"],
    RESULT: ["approve", "reject", "respond"],
    TEXT: ["approve", "reject"],
    ACTED_BEFORE: ["approve", "reject", "respond"],
    UNKNOWN_OUTCOME: ["rerun", "skip", "done", "reject"],
    MISSING_CAPABILITY: ["rerun", "skip", "reject", "respond"],
}


def step_request(keys: Sequence[str], view: TurnView, registry: Registry) -> dict[str, Any]:
    """Build the approval request for the given steps of the current plan."""
    entries = [
        request_entry(
            view.get_step(key), view.pending_approvals.get(key) or {}, view.contexts, registry
        )
        for key in keys
    ]
    return build_request(view.plan, entries)


def escape_data(value: Any) -> Any:
    r"""Escape control characters in plain data.

    Unescaped characters, such as text direction marks, could mislead the approver.

    >>> escape_data({"to": ["pay\u202elap"]})
    {'to': ['pay\\u202elap']}
    """
    if isinstance(value, str):
        return "\n".join(escape_control_characters(line) for line in value.split("\n"))
    if isinstance(value, Mapping):
        return {escape_data(key): escape_data(item) for key, item in value.items()}
    return [escape_data(item) for item in value] if isinstance(value, (list, tuple)) else value


def request_entry(
    step: Mapping[str, Any],
    pending: Mapping[str, Any],
    contexts: Mapping[str, Mapping[str, Any]],
    registry: Registry,
) -> dict[str, Any]:
    """Build a step's entry in an approval request.

    Args:
        step: Planned step that requires approval.
        pending: Pending approval request in the state, from
            :meth:`capgraph.base.ports.ApprovalRequest.to_state`.
        contexts: Stored context data by type and key.
        registry: Registry of the agent's capabilities.
    """
    spec = registry.capabilities.get(step["capability"])
    kind, reason = pending.get("kind", STEP), pending.get("reason")
    if spec is None:
        kind, reason = (
            MISSING_CAPABILITY,
            f"The capability {step['capability']!r} is no longer registered.",
        )
    shown = pending.get("shown") or {}
    entry = {
        "context_key": step["context_key"],
        "capability": step["capability"],
        "description": spec.description if spec else "",
        "effect": spec.effect if spec else None,
        "task_objective": step.get("task_objective"),
        "parameters": shown.get("parameters", step.get("parameters") or {}),
        "inputs": step.get("inputs") or [],
        "input_summaries": _summarize_inputs(step, contexts, registry),
        "input_values": shown.get("input_values") or {},
        "kind": kind,
        "reason": reason,
        "decisions": _DECISIONS[kind],
    }
    if spec is not None and spec.parameters is not None and kind == STEP:
        entry["parameters_schema"] = spec.parameters.model_json_schema(mode="validation")
    if "element" in shown:
        entry["element"] = shown["element"]
    if shown.get("ungrounded"):
        entry["ungrounded"] = shown["ungrounded"]
    if "result" in shown:
        entry["result"] = shown["result"]
    if pending.get("idempotency_key"):
        entry["idempotency_key"] = pending["idempotency_key"]
    if approvals := pending.get("approvals"):
        entry["approvals"] = approvals
        entry["approvals_summary"] = _describe_approvals(approvals)
        texts = (reason, entry["approvals_summary"])
        entry["reason"] = " ".join(text for text in texts if text) or None
    return _limit_entry(entry)


_FIELDS: dict[str, dict[str, Any]] = {
    "approve": {"remember": {"type": "object"}},
    "reject": {"reason": {"type": "string", "maxLength": 4000}},
    "respond": {"message": {"type": "string", "minLength": 1, "maxLength": 20_000}},
    "done": {"outputs": {"type": "object"}},
}


def decision_schema(request: Mapping[str, Any]) -> dict[str, Any]:
    """Build the JSON schema of a valid reply to an approval request.

    For each context key, the schema has one alternative per allowed decision.

    >>> steps = [{"context_key": "a", "decisions": ["approve", "reject"]}]
    >>> found = decision_schema({"steps": steps})["properties"]["a"]["oneOf"]
    >>> [one["properties"]["decision"]["const"] for one in found]
    ['approve', 'reject']
    """
    shared: dict[str, Any] = {}
    entries = {}
    for number, step in enumerate(request["steps"]):
        entries[step["context_key"]] = {
            "title": step.get("description") or step["context_key"],
            "oneOf": [_build_alternative(word, step, number, shared) for word in step["decisions"]],
        }
    found = {
        "type": "object",
        "properties": entries,
        "required": list(entries),
        "additionalProperties": False,
    }
    return found | ({"$defs": shared} if shared else {})


def _build_alternative(
    word: str, step: Mapping[str, Any], number: int, shared: dict[str, Any]
) -> dict[str, Any]:
    fields = dict(_FIELDS.get(word, {}))
    if word == "edit" and step.get("kind") == PLAN:
        fields = {"steps": {"type": "array", "items": {"type": "object"}}}
    elif word == "edit":
        schema = embed_schema(step.get("parameters_schema") or {"type": "object"}, number, shared)
        fields = {"parameters": {**schema, "default": step.get("parameters")}}
    needed = [name for name in fields if name not in {"remember", "reason", "outputs"}]
    return {
        "type": "object",
        "properties": {"decision": {"const": word}, **fields},
        "required": ["decision", *needed],
        "additionalProperties": False,
    }


def embed_schema(
    schema: Mapping[str, Any], number: int, definitions: dict[str, Any]
) -> dict[str, Any]:
    """Prepare a JSON schema for embedding in an outer schema.

    The definitions of the schema are moved to the outer schema, and its references are updated.

    Args:
        schema: JSON schema to embed.
        number: Number that makes the names of the moved definitions unique.
        definitions: ``$defs`` of the outer schema, which are updated in place.

    >>> definitions: dict = {}
    >>> embed_schema({"$ref": "#/$defs/A", "$defs": {"A": {"type": "string"}}}, 1, definitions)
    {'$ref': '#/$defs/1.A'}
    >>> definitions
    {'1.A': {'type': 'string'}}
    """
    inner = dict(schema)
    for name, definition in inner.pop("$defs", {}).items():
        definitions[f"{number}.{name}"] = _move_refs(definition, number)
    return {name: _move_refs(value, number, name) for name, value in inner.items()}


def _move_refs(schema: Any, number: int, key: str = "") -> Any:
    if isinstance(schema, list):
        return [_move_refs(one, number) for one in schema]
    if key == "$ref" and isinstance(schema, str):
        return schema.replace("#/$defs/", f"#/$defs/{number}.", 1)
    if not isinstance(schema, Mapping):
        return schema
    return {name: _move_refs(value, number, name) for name, value in schema.items()}


def describe_question(question: Any) -> str:
    """Return an approval request, or a capability's question to the user, as text.

    >>> describe_question({"steps": [{"capability": "pay", "description": "Pay.", "parameters": {}}]})
    'pay: Pay. Parameters: {}.'
    """
    if is_approval_request(question):
        texts = [_describe_step(step) for step in question["steps"]]
        problems = question.get("problems") or ()
        if problems:
            texts.append("The last answer was invalid: " + " ".join(problems))
        return " ".join(texts)
    if isinstance(question, Mapping) and "message" in question:
        return str(question["message"])
    return question if isinstance(question, str) else json.dumps(question, default=str)


def is_approval_request(question: Any) -> bool:
    """Return True if a question is an approval request.

    Return False for a question that a capability asks the user.
    """
    return isinstance(question, Mapping) and isinstance(question.get("steps"), list)


def _describe_step(step: Mapping[str, Any]) -> str:
    parts = [
        f"{step['capability']}: {step.get('description') or ''}",
        str(step.get("reason") or ""),
        f"Parameters: {json.dumps(step.get('parameters') or {}, ensure_ascii=False)}.",
    ]
    for name, title in (
        ("ungrounded", "Ungrounded parameters"),
        ("input_values", "Inputs"),
        ("result", "Result"),
    ):
        if step.get(name):
            parts.append(f"{title}: {json.dumps(step[name], ensure_ascii=False, default=str)}.")
    return " ".join(part for part in parts if part)


def restricts_approvers(pending: Mapping[str, Any]) -> bool:
    """Return True if only certain people may approve a pending request."""
    return "needed" in (pending.get("approvals") or {})


def _describe_approvals(approvals: Mapping[str, Any]) -> str:
    """Describe who has approved a request so far and how many approvals are missing."""
    sentences = [str(approvals["refused"])] if approvals.get("refused") else []
    if "needed" in approvals:
        agreed = ", ".join(map(str, approvals["agreed"])) or "nobody"
        other = ", other than the requester" if approvals["not_requester"] else ""
        sentences.append(f"{approvals['needed']} people must approve{other}; so far: {agreed}.")
    if "until" in approvals:
        expiry = datetime.fromtimestamp(approvals["until"], UTC).isoformat(timespec="seconds")
        sentences.append(f"The request expires at {expiry}.")
    return " ".join(sentences)


def _limit_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Replace the inputs of a large approval entry with previews.

    If the entry is still too large, decisions that approve it are removed.
    """
    previews = {
        name: _preview_input(value) for name, value in entry.get("input_values", {}).items()
    }
    # The key comes from the graph. All other text is untrusted and is escaped.
    entry = {**escape_data(entry), "context_key": entry["context_key"]}
    size = len(json.dumps(entry, default=repr))
    if size <= MAX_ENTRY_CHARS:
        return entry
    note = f"The data has {size:,} characters; at most {MAX_ENTRY_CHARS:,} can be shown."
    summaries = {
        name: text
        if len(text) <= MAX_PREVIEW_CHARS
        else f"{text[:MAX_PREVIEW_CHARS]}… [cut: {len(text):,} characters]"
        for name, text in entry["input_summaries"].items()
    }
    shortened = {**entry, "input_values": escape_data(previews), "input_summaries": summaries}
    if len(json.dumps(shortened, default=repr)) <= MAX_ENTRY_CHARS:
        note += " An approval covers the complete inputs, which the SHA-256 digests identify."
        return {**shortened, "reason": " ".join(text for text in (entry["reason"], note) if text)}
    decisions = [d for d in entry["decisions"] if d not in {"approve", "edit"}]
    return {
        **{name: value for name, value in entry.items() if name != "result"},
        "input_values": {},
        "input_summaries": summaries,
        "reason": " ".join(text for text in (entry["reason"], note) if text),
        "decisions": decisions,
    }


def _preview_input(value: Any) -> Any:
    """Return a preview of a large input, or a small input unchanged.

    A preview contains the start, end, size, and SHA-256 digest of the input's JSON text.
    """
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, default=repr)
    if len(text) <= 2 * MAX_PREVIEW_CHARS:
        return value
    return {
        "start": text[:MAX_PREVIEW_CHARS],
        "end": text[-MAX_PREVIEW_CHARS:],
        "characters": len(text),
        "sha256": hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest(),
    }


def _summarize_inputs(
    step: Mapping[str, Any], contexts: Mapping[str, Mapping[str, Any]], registry: Registry
) -> dict[str, str]:
    """Summarize a step's input data for the approver, by label and context key."""
    types = registry.context_types
    spec = registry.capabilities.get(step["capability"])
    kinds = {need.label: need.type for need in spec.requires} if spec else {}
    summaries = {}
    for entry in step.get("inputs") or []:
        for label, key in entry.items():
            kind = kinds.get(label, label)
            lists = [name for name, item in list_item_types(types.values()).items() if item == kind]
            candidates = (kind, *lists, kind + LIST_SUFFIX)
            stored = next((name for name in candidates if key in contexts.get(name, {})), None)
            if stored is not None:
                data = contexts[stored][key]
                summaries[f"{label}.{key}"] = summarize_entry(stored, key, data, types)
    return summaries


def plan_request(view: TurnView, registry: Registry) -> dict[str, Any]:
    """Build the approval request for the current plan as a whole."""
    steps = view.steps
    risky = [
        step["context_key"]
        for step in steps
        if step["capability"] not in TERMINAL_STEPS
        and (spec := registry.capabilities.get(step["capability"]))
        and (spec.requires_approval or spec.effect != "none")
    ]
    problems = (view.state.get("control_validation_context") or {}).get("problems") or []
    duplicates = _find_duplicate_effects(steps, registry)
    undoes = (view.state.get("control_undo") or {}).get("open")
    ungrounded = ungrounded_steps(view, registry)
    notes = [
        f"{len(steps)} steps",
        f"with effects or risks: {', '.join(risky)}" if risky else "",
        f"the same effect more than once: {', '.join(duplicates)}" if duplicates else "",
        f"with ungrounded parameters: {', '.join(ungrounded)}" if ungrounded else "",
    ]
    entry = {
        "context_key": PLAN,
        "capability": PLAN,
        "description": "; ".join(note for note in notes if note),
        "effect": None,
        "task_objective": view.task or None,
        "parameters": {
            "steps": [_add_defaults(step, registry) for step in steps],
            **plan_limits(view.plan),
        },
        "inputs": [],
        "kind": PLAN,
        "reason": " ".join(problems) or None,
        "decisions": ["approve", "reject"] if undoes else _DECISIONS[PLAN],
        **({"ungrounded": ungrounded} if ungrounded else {}),
    }
    return build_request(view.plan, [_limit_entry({**entry, "input_summaries": {}})])


def text_request(source: str, text: Any, reasons: Sequence[str]) -> dict[str, Any]:
    """Build the approval request for a model prompt or an answer.

    Args:
        source: Role of the model that receives the prompt, or name of the node that writes the
            answer.
        text: Text to approve.
        reasons: Reasons why the text requires approval.
    """
    entry = {
        "context_key": source,
        "capability": source,
        "description": f"Text to or from {source}",
        "effect": None,
        "task_objective": None,
        "parameters": {},
        "inputs": [],
        "input_summaries": {},
        "input_values": {},
        "kind": TEXT,
        "reason": "; ".join(reasons),
        "decisions": _DECISIONS[TEXT],
        "result": text,
    }
    return build_request({}, [_limit_entry(entry)])


def _add_defaults(step: PlannedStep, registry: Registry) -> PlannedStep:
    """Return a copy of a planned step with validated parameters, including default values."""
    spec = registry.capabilities.get(step["capability"])
    if spec is None or spec.parameters is None:
        return step
    try:
        _, values = validated_parameters(spec, step.get("parameters") or {})
    except ValidationError:
        return step
    return {**step, "parameters": values}


def _find_duplicate_effects(steps: Sequence[Mapping[str, Any]], registry: Registry) -> list[str]:
    """Find steps that would perform the same ``once`` effect more than once.

    Return the context keys of these steps.
    """
    seen: dict[str, list[str]] = {}
    for step in steps:
        spec = registry.capabilities.get(step["capability"])
        if spec is not None and spec.effect == "once":
            work = [step["capability"], step.get("parameters") or {}, step.get("inputs") or []]
            seen.setdefault(json.dumps(work, sort_keys=True, default=repr), []).append(
                step["context_key"]
            )
    return [key for keys in seen.values() if len(keys) > 1 for key in keys]


def build_request(plan: Mapping[str, Any], entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Build an approval request with the given entries.

    The request also contains the entries in the form of LangChain's ``HITLRequest``.
    """
    return {
        "type": "approval",
        "version": REQUEST_VERSION,
        "plan": plan_stamp(plan).get("id"),
        "steps": entries,
        **_build_langchain_request(entries),
    }


def _build_langchain_request(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Convert approval entries to LangChain's format for human approval.

    The result contains one action per entry, and the decisions that each kind of action allows.
    """
    actions: list[dict[str, Any]] = []
    allowed: dict[str, list[str]] = {}
    for entry in entries:
        name, text = entry["capability"], _describe_step(entry)
        decisions = [one for one in _HITL_DECISIONS if one in entry["decisions"]]
        if len(text) > _MAX_DESCRIPTION_CHARS:
            # Clients of this form show nothing else, and nobody approves what is not shown.
            text = f"{text[:_MAX_DESCRIPTION_CHARS]}… [cut: {len(text):,} characters]"
            decisions = [one for one in decisions if one not in {"approve", "edit"}]
        actions.append({"name": name, "args": entry["parameters"], "description": text})
        known = allowed.get(name, decisions)
        allowed[name] = [one for one in known if one in decisions]
    configs = [{"action_name": name, "allowed_decisions": allowed[name]} for name in allowed]
    return {"action_requests": actions, "review_configs": configs}
