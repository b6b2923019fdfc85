"""What a person is asked. Pure: nothing is asked or written here.

Every question has one form: a list of entries, each with a key, what it is about and the
decisions that it allows. An entry is a step that needs agreement, a step of unknown outcome, a
step whose capability is gone, or the whole plan. What is shown is what runs: the validated
parameters with their defaults, and the inputs whole.
"""

from __future__ import annotations

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
from capgraph.planning.summaries import summarize_entry
from capgraph.registry import Registry
from capgraph.state import TurnView

REQUEST_VERSION = 1
MAX_ENTRY_CHARS = 200_000
"""Longest entry, in characters of JSON; what cannot be shown whole cannot be approved."""
PLAN = "plan"
"""Key of the entry that shows the whole plan."""
STEP = "step"
RESULT = "result"
"""Kind of a question about what a step gave, before anything uses it."""
TEXT = "words"
"""Kind of a question about a prompt or an answer, before anybody else reads it."""
UNKNOWN_OUTCOME = "unknown_outcome"
ACTED_BEFORE = "acted_before"
MISSING_CAPABILITY = "missing_capability"
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
    """Describe what a person is asked about steps of the plan, as plain data."""
    entries = [
        request_entry(
            view.get_step(key), view.pending_approvals.get(key) or {}, view.contexts, registry
        )
        for key in keys
    ]
    return build_request(view.plan, entries)


def escape_data(value: Any) -> Any:
    r"""Return plain data as it is shown: what would deceive a reader becomes a visible escape.

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
    """Describe one step that a person has to decide about.

    Args:
        step: The planned step.
        pending: What is asked, as :class:`capgraph.base.ports.Question` writes it.
        contexts: Stored context data.
        registry: What is registered.
    """
    spec = registry.capabilities.get(step["capability"])
    kind, reason = pending.get("kind", STEP), pending.get("reason")
    if spec is None:
        kind, reason = (
            MISSING_CAPABILITY,
            f"No capability is called {step['capability']!r} any more.",
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
        "input_summaries": _input_summaries(step, contexts, registry),
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
    if who := pending.get("approvals"):
        entry["approvals"] = who
        entry["reason"] = " ".join(text for text in (reason, _who_is_needed(who)) if text) or None
    return _whole_or_refused(entry)


_FIELDS: dict[str, dict[str, Any]] = {
    "approve": {"remember": {"type": "object"}},
    "reject": {"reason": {"type": "string", "maxLength": 4000}},
    "respond": {"message": {"type": "string", "minLength": 1, "maxLength": 20_000}},
    "done": {"outputs": {"type": "object"}},
}


def decision_schema(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an answer: by context key, one alternative for each decision.

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
            "oneOf": [_alternative(word, step, number, shared) for word in step["decisions"]],
        }
    found = {
        "type": "object",
        "properties": entries,
        "required": list(entries),
        "additionalProperties": False,
    }
    return found | ({"$defs": shared} if shared else {})


def _alternative(
    word: str, step: Mapping[str, Any], number: int, shared: dict[str, Any]
) -> dict[str, Any]:
    fields = dict(_FIELDS.get(word, {}))
    if word == "edit" and step.get("kind") == PLAN:
        fields = {"steps": {"type": "array", "items": {"type": "object"}}}
    elif word == "edit":
        schema = dict(step.get("parameters_schema") or {"type": "object"})
        # What a schema shares with itself stands at the top, under names of its own.
        shared |= {f"{number}.{k}": _moved(v, number) for k, v in schema.pop("$defs", {}).items()}
        fields = {"parameters": {**_moved(schema, number), "default": step.get("parameters")}}
    needed = [name for name in fields if name not in {"remember", "reason", "outputs"}]
    return {
        "type": "object",
        "properties": {"decision": {"const": word}, **fields},
        "required": ["decision", *needed],
        "additionalProperties": False,
    }


def _moved(schema: Any, number: int) -> Any:
    if isinstance(schema, list):
        return [_moved(one, number) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: value.replace("#/$defs/", f"#/$defs/{number}.", 1)
        if key == "$ref" and isinstance(value, str)
        else _moved(value, number)
        for key, value in schema.items()
    }


def describe_question(question: Any) -> str:
    """Say whole, in words, what is asked: what cannot be shown whole cannot be agreed to.

    >>> describe_question({"steps": [{"capability": "pay", "description": "Pay.", "parameters": {}}]})
    'pay: Pay. Parameters: {}.'
    """
    if is_approval_request(question):
        told = [_step_text(step) for step in question["steps"]]
        problems = question.get("problems") or ()
        if problems:
            told.append("The last answer could not be read: " + " ".join(problems))
        return " ".join(told)
    if isinstance(question, Mapping) and "message" in question:
        return str(question["message"])
    return question if isinstance(question, str) else json.dumps(question, default=str)


def is_approval_request(question: Any) -> bool:
    """Tell whether a person decides about steps, and a capability does not ask on its own."""
    return isinstance(question, Mapping) and isinstance(question.get("steps"), list)


def _step_text(step: Mapping[str, Any]) -> str:
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
    """Tell whether it matters who agrees to what is asked."""
    return "needed" in (pending.get("approvals") or {})


def _who_is_needed(who: Mapping[str, Any]) -> str:
    """Say who has agreed and who is still needed."""
    told = [str(who["refused"])] if who.get("refused") else []
    if "needed" in who:
        agreed = ", ".join(map(str, who["agreed"])) or "nobody"
        other = ", none of them whoever asked for it" if who["not_requester"] else ""
        told.append(f"{who['needed']} have to agree{other}; so far {agreed}.")
    if "until" in who:
        moment = datetime.fromtimestamp(who["until"], UTC).isoformat(timespec="seconds")
        told.append(f"The question lapses at {moment}.")
    return " ".join(told)


def _whole_or_refused(entry: dict[str, Any]) -> dict[str, Any]:
    """Take agreement out of the decisions where not all of an entry can be shown."""
    # The decisions and the key are the graph's own words; all else may be anybody's.
    entry = {**escape_data(entry), "context_key": entry["context_key"]}
    size = len(json.dumps(entry, default=repr))
    if size <= MAX_ENTRY_CHARS:
        return entry
    told = f"It works on {size:,} characters, more than the {MAX_ENTRY_CHARS:,} that can be shown."
    decisions = [d for d in entry["decisions"] if d not in {"approve", "edit"}]
    summaries = {
        name: text if len(text) <= 2000 else f"{text[:2000]}… [cut: {len(text):,} characters]"
        for name, text in entry["input_summaries"].items()
    }
    return {
        **{name: value for name, value in entry.items() if name != "result"},
        "input_values": {},
        "input_summaries": summaries,
        "reason": " ".join(text for text in (entry["reason"], told) if text),
        "decisions": decisions,
    }


def _input_summaries(
    step: Mapping[str, Any], contexts: Mapping[str, Mapping[str, Any]], registry: Registry
) -> dict[str, str]:
    """Say what the step is about to work on: nobody can agree to code that is not shown."""
    types = registry.context_types
    spec = registry.capabilities.get(step["capability"])
    kinds = {need.label: need.type for need in spec.requires} if spec else {}
    found = {}
    for entry in step.get("inputs") or []:
        for label, key in entry.items():
            kind = kinds.get(label, label)
            listed = [one for one, item in list_item_types(types.values()).items() if item == kind]
            listed.append(kind + LIST_SUFFIX)
            for there in [one for one in (kind, *listed) if key in contexts.get(one, {})][:1]:
                found[f"{label}.{key}"] = summarize_entry(there, key, contexts[there][key], types)
    return found


def plan_request(view: TurnView, registry: Registry) -> dict[str, Any]:
    """Describe the plan that a person is asked to agree to, as plain data."""
    steps = view.steps
    asked = [
        step["context_key"]
        for step in steps
        if step["capability"] not in TERMINAL_STEPS
        and (spec := registry.capabilities.get(step["capability"]))
        and (spec.requires_approval or spec.effect != "none")
    ]
    problems = (view.state.get("control_validation_context") or {}).get("problems") or []
    twins = _twins(steps, registry)
    undoes = (view.state.get("control_undo") or {}).get("open")
    ungrounded = ungrounded_steps(view, registry)
    notes = [
        f"{len(steps)} steps",
        f"with effects or risks: {', '.join(asked)}" if asked else "",
        f"the same effect more than once: {', '.join(twins)}" if twins else "",
        f"with ungrounded parameters: {', '.join(ungrounded)}" if ungrounded else "",
    ]
    entry = {
        "context_key": PLAN,
        "capability": PLAN,
        "description": "; ".join(note for note in notes if note),
        "effect": None,
        "task_objective": view.task or None,
        "parameters": {
            "steps": [_with_defaults(step, registry) for step in steps],
            **plan_limits(view.plan),
        },
        "inputs": [],
        "kind": PLAN,
        "reason": " ".join(problems) or None,
        "decisions": ["approve", "reject"] if undoes else _DECISIONS[PLAN],
        **({"ungrounded": ungrounded} if ungrounded else {}),
    }
    return build_request(view.plan, [_whole_or_refused({**entry, "input_summaries": {}})])


def text_request(source: str, text: Any, reasons: Sequence[str]) -> dict[str, Any]:
    """Describe words that a person is asked to let pass: a prompt, or an answer.

    Args:
        source: The role of the model that is told them, or the node that says them.
        text: The words.
        reasons: Why somebody is asked.
    """
    entry = {
        "context_key": source,
        "capability": source,
        "description": f"What goes into {source} or comes out of it",
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
    return build_request({}, [_whole_or_refused(entry)])


def _with_defaults(step: PlannedStep, registry: Registry) -> PlannedStep:
    """Return a step with the parameters that will run: validated, defaults filled in."""
    spec = registry.capabilities.get(step["capability"])
    if spec is None or spec.parameters is None:
        return step
    try:
        _, values = validated_parameters(spec, step.get("parameters") or {})
    except ValidationError:
        return step
    return {**step, "parameters": values}


def _twins(steps: Sequence[Mapping[str, Any]], registry: Registry) -> list[str]:
    """Name steps that do the same once-only thing as another one."""
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
    """Return a question with its entries."""
    return {
        "type": "approval",
        "version": REQUEST_VERSION,
        "plan": (plan.get("stamp") or {}).get("id"),
        "steps": entries,
    }
