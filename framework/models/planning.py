"""Planner that uses a chat model."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.config import get_config

from capgraph.base import CapabilitySpec, ExecutionPlan
from capgraph.base.errors import MalformedAnswerError
from capgraph.configs.settings import PlanMode
from capgraph.helpers.plain_data import first_json_object
from capgraph.langgraph_compat import inherited_saver
from capgraph.models.calls import generate_structured
from capgraph.models.catalog import PlannerCatalog, format_capabilities
from capgraph.models.parameters import ask_for_parameters, is_asked_for
from capgraph.models.plan_schema import (
    MAX_GRAMMAR_STEPS,
    PLAN_FEATURES,
    ParameterKey,
    plan_schema,
    remove_default_nulls,
    usable_features,
)
from capgraph.models.prompt import build_prompt, request_fields, split_conversation
from capgraph.models.roles import RoleModel
from capgraph.planning import TERMINAL_STEPS
from capgraph.planning.problems import EMPTY, MALFORMED_INPUT, MISSING_INPUT, Problem
from capgraph.planning.strategies import PlanRequest, message_text
from capgraph.prompts import PromptBuilder
from capgraph.prompts.nodes import NO_FUNCTION, IterativePlanningPrompt

_OBJECT_FIELDS = frozenset({"parameters", "when", "for_each"})
_MAX_CACHED_SCHEMAS = 64
_REFERRING_FEATURES = frozenset({"references", "for_each", "when"})
_REFERENCE_RULE = (
    'A parameter may be {"$from": "key.field"}, or "key.0.field" of a list: the result, or a field'
    " of it, of the earlier step with that context_key."
)
_FEATURE_RULES = {
    "references": _REFERENCE_RULE,
    "for_each": 'A step with for_each {"of": "key.list"} runs for each element; its parameters use'
    ' {"$from": "item"}.',
    "when": 'A step with when {"of": "key.field", "is": OPERATOR, "than": VALUE} runs only if this'
    " holds.",
    "look_again": "After a step with look_again, you plan again.",
    "wait_until": "wait_until delays a step: a duration, or a moment with offset.",
}
_MODE_RULES = {
    "look": "You work in rounds: plan only the steps that you can fill in now, and you are asked"
    " again with their results.",
    "auto": "If a step depends on what an earlier result says, plan only up to that result, and"
    " set look to true: you are asked again with the result.",
}
_ANSWER_RULE = (
    "What the conversation, the instructions, or a result answers needs no step: write the reply in"
    " answer. It may also ask the person for a missing value."
)
_INPUTS_RULE = (
    "If several earlier results fit, inputs names them: step numbers (from 1) or keys of"
    " stored results."
)


_INPUTS_REMEDY = "list in inputs the number of the earlier step, or the key of a stored result"
_REMEDIES = {
    EMPTY: "plan a step, or write your reply in answer",
    MALFORMED_INPUT: _INPUTS_REMEDY,
    MISSING_INPUT: _INPUTS_REMEDY,
}
"""Remedies that replace those for callers, because a model's plan schema has fewer fields."""


@dataclass(eq=False)
class ModelPlanner:
    """Planner that asks a chat model for a plan, and for corrections if it has problems.

    Args:
        role: Chat model for the planning role.
        prompt: Prompt builder.
        catalog: Catalog of all capabilities.
        features: Plan features that the model may use, or ``auto`` or ``all``.
        mode: Value of the setting ``planning.mode``.
        max_result_tokens: Value of the setting ``planning.max_result_tokens``.
        max_stored_results: Value of the setting ``planning.max_stored_results``.
        chooses_capabilities: True if the selector leaves the selection to the planner.
    """

    can_correct = True
    chooses_parameters = True

    role: RoleModel
    prompt: PromptBuilder
    catalog: PlannerCatalog
    features: str | Sequence[str] = "auto"
    mode: PlanMode = "plan"
    max_result_tokens: int = 2000
    max_stored_results: int = 1
    chooses_capabilities: bool = False
    _usable: tuple[Any, Mapping[str, frozenset[ParameterKey]]] | None = field(
        default=None, init=False, repr=False
    )
    _schemas: dict[Any, tuple[dict[str, Any], bool]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def reads_conversation(self) -> bool:
        """True if the planning prompt contains the earlier messages of the conversation."""
        return (
            self.mode != "plan" and self.chooses_capabilities and self.catalog.remaining_tokens >= 0
        )

    @property
    def _reads_results(self) -> bool:
        """True if every round of the turn shows results, so that plans need no references."""
        return isinstance(self.prompt, IterativePlanningPrompt)

    @property
    def needs_confirmation(self) -> bool:
        """True if the model runs on a server that compiles schemas to grammars.

        Most models on such servers are small, so ungrounded values and unexpected effects in their
        plans are checked twice.
        """
        return self.role.schema_style == "grammar"

    async def plan(self, request: PlanRequest) -> ExecutionPlan:
        """Ask the model for a plan, and return its proposal without validation.

        A reply that is not a plan is returned unchanged. Plan validation then reports the problem,
        and the attempt counts.

        Raises:
            ModelError: The call failed, or the model refused.
        """
        specs = self._list_plannable_capabilities(request)
        features, reference_parameters = self._select_features(request, specs)
        schema, is_typed = self._get_cached_plan_schema(specs, features, reference_parameters)
        messages = self._build_messages(request, specs, features)
        is_strict = is_typed and self.role.schema_style == "strict"
        try:
            reply = await generate_structured(self.role, schema, messages, strict=is_strict)
        except MalformedAnswerError as exc:
            return cast("ExecutionPlan", exc.text)
        if isinstance(reply, dict) and not reply.keys() & {"steps", "answer"}:
            return cast("ExecutionPlan", json.dumps(reply, default=str))
        if isinstance(reply, dict) and _is_refused_function(reply.get("answer")):
            del reply["answer"]  # the agent lists its capabilities instead
        if isinstance(reply, dict) and isinstance(reply.get("steps"), list):
            if self.role.schema_style == "grammar" and len(reply["steps"]) > MAX_GRAMMAR_STEPS:
                count = f"{len(reply['steps'])} steps, and its schema allows {MAX_GRAMMAR_STEPS}"
                return cast("ExecutionPlan", f"The plan has {count}.")
            for step in reply["steps"]:
                if isinstance(step, dict):
                    _normalize_step(step)
                    remove_default_nulls(step, _get_step_spec(request, step))
                    # A step without an objective serves the whole request.
                    step.setdefault("task_objective", request.task)
        return cast("ExecutionPlan", reply)

    async def fill_parameters(
        self, task: str, steps: Mapping[str, CapabilitySpec]
    ) -> Mapping[str, Any]:
        """Ask the model for missing step parameters (see :func:`ask_for_parameters`)."""
        return await ask_for_parameters(self.role, task, steps)

    async def is_asked_for(self, task: str, spec: CapabilitySpec) -> bool:
        """Return True if a request asks for a capability's effect; see :func:`is_asked_for`."""
        return await is_asked_for(self.role, task, spec)

    def _list_plannable_capabilities(self, request: PlanRequest) -> list[CapabilitySpec]:
        """List the capabilities for the schema and the prompt, in alphabetical order."""
        specs = request.catalog.capabilities
        names = request.active if request.chosen else specs
        return [
            self.catalog.planner_spec(specs[name])
            for name in sorted(names)
            if name in specs and name not in TERMINAL_STEPS
        ]

    def _select_features(
        self, request: PlanRequest, specs: Sequence[CapabilitySpec]
    ) -> tuple[frozenset[str], frozenset[ParameterKey] | None]:
        """Select the plan features to offer, and the parameters that may refer to results."""
        reference_parameters: frozenset[ParameterKey] | None = None
        if self.features == "all":
            features = {*PLAN_FEATURES, "inputs"}
        elif self.features == "auto":
            usable = self._usable_features(specs)
            guides = self._get_guides(request)
            named_in_guides = {name for name in PLAN_FEATURES if f'"{name}"' in guides}
            features = {*usable, *named_in_guides}
            if not named_in_guides & {"references", "for_each"}:  # guides may use untyped results
                reference_parameters = frozenset().union(*usable.values())
        else:
            features = {*self.features, "inputs"}
        if request.problems or request.available or request.finished:
            features.add("inputs")  # the model refers to stored results by their keys
        if not any(spec.requires for spec in specs):
            features.discard("inputs")
        if not _has_checkpointer():
            features.discard("wait_until")
        return frozenset(features), reference_parameters

    def _usable_features(
        self, specs: Sequence[CapabilitySpec]
    ) -> Mapping[str, frozenset[ParameterKey]]:
        """Return the plan features that the given capabilities can use, with caching."""
        key = tuple(map(id, specs))
        if self._usable is None or self._usable[0] != key:
            # Matching by type alone misleads the small models of grammar servers.
            by_name = self.role.schema_style == "grammar"
            self._usable = (
                key,
                usable_features(specs, by_name=by_name, copies_values=self._reads_results),
            )
        return self._usable[1]

    def _get_cached_plan_schema(
        self,
        specs: Sequence[CapabilitySpec],
        features: frozenset[str],
        reference_parameters: frozenset[ParameterKey] | None,
    ) -> tuple[dict[str, Any], bool]:
        """Return the plan schema for a list of capabilities, cached for equal lists."""
        key = (tuple(map(id, specs)), features, self.role.schema_style)
        if key not in self._schemas:
            if len(self._schemas) >= _MAX_CACHED_SCHEMAS:
                del self._schemas[next(iter(self._schemas))]
            schema, is_typed = plan_schema(
                specs,
                self.role.schema_style,
                features,
                reference_parameters=reference_parameters,
                can_clarify=not self._reads_results,  # such a planner asks in its answer
            )
            if self.mode == "auto":
                schema = _add_look_property(schema, self.role.schema_style)
            self._schemas[key] = schema, is_typed
        return self._schemas[key]

    def _get_guides(self, request: PlanRequest) -> str:
        catalog = self.catalog.for_caller(request.catalog)
        if not request.chosen:
            return catalog.guides
        return (
            catalog.guides_of(request.active) if catalog.omits_parsed_parameters else request.guides
        )

    def _build_messages(
        self, request: PlanRequest, specs: Sequence[CapabilitySpec], features: Collection[str]
    ) -> list[BaseMessage]:
        has_fields = not self._reads_results or not _REFERRING_FEATURES.isdisjoint(features)
        if request.chosen:
            is_brief, notes = self.catalog.is_brief, dict(request.notes)
            listing, likely = format_capabilities(specs, {}, is_brief, has_fields=has_fields), ""
        else:
            # Excluded capabilities are listed too, so that the prompt prefix stays cacheable.
            catalog = self.catalog.for_caller(request.catalog)
            listing = catalog.format(has_fields=has_fields, is_abridged=self._reads_results)
            likely = _describe_likely(catalog, request) if self._reads_results else ""
            notes = catalog.trim_notes(request.notes)
        own = {spec.name for spec in specs if self.catalog.has_own_parameters(spec)}
        notes = {name: text for name, text in notes.items() if name in own}
        rules = [_FEATURE_RULES[name] for name in PLAN_FEATURES if name in features]
        if "inputs" in features:
            rules.append(_INPUTS_RULE)
        if self.mode == "auto" or (
            self.mode == "look" and not isinstance(self.prompt, IterativePlanningPrompt)
        ):
            rules += [_MODE_RULES[self.mode], _ANSWER_RULE]
        planner_context: dict[str, Any] = {
            "recent": request.recent if self.reads_conversation else (),
            "capabilities": "\n".join([listing, *rules]),
            "likely": likely,
            "guides": self._get_guides(request),
            "notes": notes,
            # A function schema shows the format of a plan. Other methods need an example.
            "shows_examples": self.role.method != "function_calling",
            "problems": [_replace_remedy(problem) for problem in request.problems],
            "max_result_tokens": self.max_result_tokens,
            "max_stored_results": self.max_stored_results,
            "types": getattr(request.catalog, "context_types", None),
        }
        return build_prompt(
            self.prompt,
            {**request_fields(request), **planner_context},
            instructions=request.instructions,
            # A plan for the whole request does not need the conversation, and small models copy
            # an earlier answer instead of planning a step.
            history=split_conversation(request.messages)[0] if self.reads_conversation else (),
            messages=request.messages,
        )


def _describe_likely(catalog: PlannerCatalog, request: PlanRequest) -> str:
    """Describe the capabilities that resemble the request, and those of the refused plan."""
    steps = request.refused.get("steps") if isinstance(request.refused, dict) else None
    names = [step.get("capability") for step in steps or () if isinstance(step, dict)]
    earlier = [message_text(m) for m in request.messages if isinstance(m, HumanMessage)][-2:-1]
    return catalog.describe_likely([request.task, *earlier], map(str, names))


def _add_look_property(schema: dict[str, Any], style: str) -> dict[str, Any]:
    """Add a boolean ``look`` property to a plan schema, so that a model can request a review."""
    if style != "strict":
        return {**schema, "properties": {**schema["properties"], "look": {"type": "boolean"}}}
    look = {"anyOf": [{"type": "boolean"}, {"type": "null"}]}
    properties = {**schema["properties"], "look": look}
    return {**schema, "properties": properties, "required": [*schema["required"], "look"]}


def _is_refused_function(answer: object) -> bool:
    return isinstance(answer, str) and answer.strip().rstrip(".") == NO_FUNCTION.rstrip(".")


def _replace_remedy(problem: Problem) -> Problem:
    """Replace a plan problem's remedy with one that the model's plan schema allows."""
    remedy = _REMEDIES.get(problem.code)
    if problem.code == MISSING_INPUT and not problem.remedy.startswith("name one"):
        return problem
    return replace(problem, remedy=remedy) if remedy else problem


def _has_checkpointer() -> bool:
    try:
        return inherited_saver(get_config()) is not None
    except RuntimeError:  # outside of a graph
        return False


def _get_step_spec(request: PlanRequest, step: Mapping[str, Any]) -> CapabilitySpec | None:
    name = step.get("capability")
    return request.catalog.capabilities.get(name) if isinstance(name, str) else None


def _normalize_step(step: dict[str, Any]) -> None:
    """Remove a step's empty fields, and parse objects that are written as strings.

    Google's client does not support objects with unknown fields, so its models write such
    objects as strings.
    """
    for name, value in list(step.items()):
        if value in ("", None):
            del step[name]
        elif isinstance(value, str) and name in _OBJECT_FIELDS:
            step[name] = first_json_object(value) or value
