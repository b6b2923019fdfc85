"""Writing plans with a model."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast
from weakref import WeakKeyDictionary

from langchain_core.messages import BaseMessage
from langgraph.config import get_config

from capgraph.base import CapabilitySpec, ExecutionPlan
from capgraph.base.errors import MalformedAnswerError
from capgraph.base.value_context import value_field_names
from capgraph.configs.settings import PlanMode
from capgraph.helpers.plain_data import first_json_object
from capgraph.langgraph_compat import inherited_saver
from capgraph.models.calls import generate_structured
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
from capgraph.models.selection import format_selection_hints
from capgraph.models.signatures import describe_capability
from capgraph.planning import TERMINAL_STEPS
from capgraph.planning.problems import EMPTY, MALFORMED_INPUT, MISSING_INPUT, Problem
from capgraph.planning.recipes import drop_overlapping, recipe_of
from capgraph.planning.strategies import PlanRequest
from capgraph.prompts import PromptBuilder
from capgraph.prompts.data import sanitize_text
from capgraph.prompts.nodes import NO_FUNCTION, IterativePlanningPrompt
from capgraph.registry import Candidate, Registry
from capgraph.selection import Selection, Selector
from capgraph.selection.protocols import NO_EXCLUSIONS

_MAX_EXAMPLES = 2
_OBJECT_FIELDS = frozenset({"parameters", "when", "for_each"})
_MAX_CACHED_SCHEMAS = 64
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
"""Remedies for a model, which writes a smaller form of a plan than a caller does."""


class PlannerCatalog:
    """All capabilities as a planner that chooses among them is shown them.

    Args:
        registry: The capabilities; read when it is first needed, and complete by then.
        max_tokens: Up to how many tokens of them, and of what they note, the planner is shown.
        is_brief: True to leave out the types of results that no capability takes.
    """

    def __init__(self, registry: Registry, max_tokens: int, *, is_brief: bool = False) -> None:
        self._registry = registry
        self._budget = max_tokens
        self.is_brief = is_brief
        self._cuts: WeakKeyDictionary[Any, PlannerCatalog] = WeakKeyDictionary()

    def for_caller(self, registry: Any) -> PlannerCatalog:
        """Return the catalogue of what a request may use: all, or what its caller may."""
        if registry is self._registry or not isinstance(registry, Registry):
            return self
        if registry not in self._cuts:
            self._cuts[registry] = PlannerCatalog(registry, self._budget, is_brief=self.is_brief)
        return self._cuts[registry]

    @cached_property
    def text(self) -> str:
        """What each one does, needs and gives, and when it is wanted, in alphabetical order."""
        # Positive examples repeat what a description says; the others draw a line.
        hints = {
            c.name: format_selection_hints(replace(c, positives=()), _MAX_EXAMPLES)
            for c in self._registry.candidates()
        }
        specs = self._registry.capabilities
        return _format_catalog([specs[name] for name in sorted(specs)], hints, self.is_brief)

    @cached_property
    def has_recipes(self) -> bool:
        """Whether any capability is a recipe."""
        return any(recipe_of(spec) for spec in self._registry.capabilities.values())

    def single_recipe(self, names: Sequence[str]) -> str | None:
        """Return the recipe that does all that was chosen; ``None`` when no single one does."""
        left = drop_overlapping(names, self._registry)
        single = left[0] if len(left) == 1 else ""
        return single if recipe_of(self._registry.capabilities.get(single)) else None

    @cached_property
    def guides(self) -> str:
        """The planning advice of all."""
        return self._registry.planning_guides(self._registry.capabilities)

    @cached_property
    def remaining_tokens(self) -> int:
        """About how many tokens of the budget are left beside it."""
        return self._budget - (len(self.text) + len(self.guides)) // 4

    def trim_notes(self, notes: Mapping[str, str]) -> dict[str, str]:
        """Cut what capabilities note about the state at hand to what the budget leaves."""
        each = 4 * max(self.remaining_tokens, self._budget // 4) // max(len(notes), 1)
        return {name: sanitize_text(text, each) for name, text in notes.items()}


@dataclass(eq=False)
class DeferringSelector:
    """Leaves the choice to the planner while that can be shown every capability.

    Args:
        catalog: All capabilities.
        fallback: Chooses past its budget.
        offline: Tells whether a recipe answered such requests before; ``None`` where it cannot.
    """

    catalog: PlannerCatalog
    fallback: Selector
    offline: Selector | None = None

    async def select(
        self,
        task: str,
        candidates: Sequence[Candidate],
        *,
        excluded: Mapping[str, str] = NO_EXCLUSIONS,
    ) -> Selection:
        """Return all that may be chosen, what a call of its own chooses, or the one recipe."""
        if self.offline is not None and self.catalog.has_recipes:
            found = await self.offline.select(task, candidates, excluded=excluded)
            if recipe := self.catalog.single_recipe(found.names):
                return replace(found, names=(recipe,))
        names = tuple(c.name for c in candidates if c.name not in excluded)
        if not names or self.catalog.remaining_tokens < 0:
            return await self.fallback.select(task, candidates, excluded=excluded)
        return Selection(names, reason="Chosen with the plan.", deferred=True)


@dataclass(eq=False)
class ModelPlanner:
    """Asks a model for a plan; told what is wrong with one, it writes another.

    Args:
        role: The model.
        prompt: Builder of the prompt.
        catalog: All capabilities.
        features: Features of plans that the model may use, or ``auto`` or ``all``.
        mode: As in the settings.
        max_result_tokens: As in the settings.
        max_stored_results: As in the settings.
        chooses_capabilities: True if the selector leaves the choice of capabilities to the planner.
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
        """True if the model gets the earlier messages; a choice before it needs the task alone."""
        return (
            self.mode != "plan" and self.chooses_capabilities and self.catalog.remaining_tokens >= 0
        )

    @property
    def needs_confirmation(self) -> bool:
        """True for the models that a grammar serves, most of them small."""
        return self.role.rendering == "grammar"

    async def plan(self, request: PlanRequest) -> ExecutionPlan:
        """Return what the model proposes, right or wrong.

        An answer that is no plan comes back as it is: the check that follows says so, and the
        attempt counts.

        Raises:
            ModelError: The call failed or the model refused.
        """
        specs = self._listed_specs(request)
        features, referring = self._select_features(request, specs)
        schema, is_typed = self._cached_schema(specs, features, referring)
        messages = self._messages(request, specs, features)
        is_strict = is_typed and self.role.rendering == "strict"
        try:
            found = await generate_structured(self.role, schema, messages, strict=is_strict)
        except MalformedAnswerError as exc:
            return cast("ExecutionPlan", exc.text)
        if isinstance(found, dict) and not found.keys() & {"steps", "answer"}:
            return cast("ExecutionPlan", json.dumps(found, default=str))
        if isinstance(found, dict) and _says_no_function(found.get("answer")):
            del found["answer"]  # the reply is written by who knows what the agent can do
        if isinstance(found, dict) and isinstance(found.get("steps"), list):
            if self.role.rendering == "grammar" and len(found["steps"]) > MAX_GRAMMAR_STEPS:
                told = f"{len(found['steps'])} steps, and its schema allows {MAX_GRAMMAR_STEPS}"
                return cast("ExecutionPlan", f"The plan has {told}.")
            for step in found["steps"]:
                if isinstance(step, dict):
                    _normalize_step(step)
                    remove_default_nulls(step, _step_spec(request, step))
                    # A step that says nothing of its own is for the whole request.
                    step.setdefault("task_objective", request.task)
        return cast("ExecutionPlan", found)

    async def fill_parameters(
        self, task: str, steps: Mapping[str, CapabilitySpec]
    ) -> Mapping[str, Any]:
        """Return the parameters of steps, by their keys; see :func:`ask_for_parameters`."""
        return await ask_for_parameters(self.role, task, steps)

    async def is_asked_for(self, task: str, spec: CapabilitySpec) -> bool:
        """Return whether a request asks for an effect; see :func:`is_asked_for`."""
        return await is_asked_for(self.role, task, spec)

    def _listed_specs(self, request: PlanRequest) -> list[CapabilitySpec]:
        """Return the capabilities that schema and prompt list, in alphabetical order."""
        specs = request.catalog.capabilities
        names = request.active if request.chosen else specs
        return [
            specs[name] for name in sorted(names) if name in specs and name not in TERMINAL_STEPS
        ]

    def _select_features(
        self, request: PlanRequest, specs: Sequence[CapabilitySpec]
    ) -> tuple[frozenset[str], frozenset[ParameterKey] | None]:
        """Return the features that are shown, and the parameters that may refer to results."""
        referring: frozenset[ParameterKey] | None = None
        if self.features == "all":
            found = {*PLAN_FEATURES, "inputs"}
        elif self.features == "auto":
            usable = self._usable_features(specs)
            guides = self._guides(request)
            told = {name for name in PLAN_FEATURES if f'"{name}"' in guides}
            found = {*usable, *told}
            if not told & {"references", "for_each"}:  # a guide may refer to what has no type
                referring = frozenset().union(*usable.values())
        else:
            found = {*self.features, "inputs"}
        if request.problems or request.available or request.finished:
            found.add("inputs")  # stored results are named by their keys
        if not any(spec.requires for spec in specs):
            found.discard("inputs")
        if not _has_checkpointer():
            found.discard("wait_until")
        return frozenset(found), referring

    def _usable_features(
        self, specs: Sequence[CapabilitySpec]
    ) -> Mapping[str, frozenset[ParameterKey]]:
        """Return the features that capabilities can use; the schemas are read once."""
        key = tuple(map(id, specs))
        if self._usable is None or self._usable[0] != key:
            # A value fits each parameter of its type: too little for the models of a grammar.
            by_name = self.role.rendering == "grammar"
            self._usable = (key, usable_features(specs, by_name=by_name))
        return self._usable[1]

    def _cached_schema(
        self,
        specs: Sequence[CapabilitySpec],
        features: frozenset[str],
        reference_parameters: frozenset[ParameterKey] | None,
    ) -> tuple[dict[str, Any], bool]:
        """Return the schema of a plan, the same object for the same capabilities."""
        key = (tuple(map(id, specs)), features, self.role.rendering)
        if key not in self._schemas:
            if len(self._schemas) >= _MAX_CACHED_SCHEMAS:
                del self._schemas[next(iter(self._schemas))]
            schema, is_typed = plan_schema(
                specs, self.role.rendering, features, reference_parameters=reference_parameters
            )
            if self.mode == "auto":
                schema = _with_look_property(schema, self.role.rendering)
            self._schemas[key] = schema, is_typed
        return self._schemas[key]

    def _guides(self, request: PlanRequest) -> str:
        return request.guides if request.chosen else self.catalog.for_caller(request.catalog).guides

    def _messages(
        self,
        request: PlanRequest,
        specs: Sequence[CapabilitySpec],
        features: Collection[str],
    ) -> list[BaseMessage]:
        if request.chosen:
            shown, notes = _format_catalog(specs, {}, self.catalog.is_brief), request.notes
        else:
            # All of them each time, what was excluded too: the beginning stays the same.
            catalogue = self.catalog.for_caller(request.catalog)
            shown, notes = catalogue.text, catalogue.trim_notes(request.notes)
        rules = [_FEATURE_RULES[name] for name in PLAN_FEATURES if name in features]
        if "inputs" in features:
            rules.append(_INPUTS_RULE)
        if self.mode == "auto" or (
            self.mode == "look" and not isinstance(self.prompt, IterativePlanningPrompt)
        ):
            rules += [_MODE_RULES[self.mode], _ANSWER_RULE]
        own: dict[str, Any] = {
            "recent": request.recent if self.reads_conversation else (),
            "capabilities": "\n".join([shown, *rules]),
            "guides": self._guides(request),
            "notes": notes,
            # A function's schema shows a model what a plan is; text needs to be seen once.
            "shows_examples": self.role.method != "function_calling",
            "problems": [_with_model_remedy(problem) for problem in request.problems],
            "max_result_tokens": self.max_result_tokens,
            "max_stored_results": self.max_stored_results,
            "types": getattr(request.catalog, "context_types", None),
        }
        return build_prompt(
            self.prompt,
            {**request_fields(request), **own},
            instructions=request.instructions,
            # A plan of a whole request does not need it, and small models copy an earlier answer in
            # place of a step.
            history=split_conversation(request.messages)[0] if self.reads_conversation else (),
            messages=request.messages,
        )


def _with_look_property(schema: dict[str, Any], rendering: str) -> dict[str, Any]:
    """Return the schema of a plan in which the model may ask to see the results."""
    if rendering != "strict":
        return {**schema, "properties": {**schema["properties"], "look": {"type": "boolean"}}}
    look = {"anyOf": [{"type": "boolean"}, {"type": "null"}]}
    properties = {**schema["properties"], "look": look}
    return {**schema, "properties": properties, "required": [*schema["required"], "look"]}


def _says_no_function(answer: object) -> bool:
    return isinstance(answer, str) and answer.strip().rstrip(".") == NO_FUNCTION.rstrip(".")


def _with_model_remedy(problem: Problem) -> Problem:
    """Return a problem with a remedy in the form that the model's schema allows."""
    remedy = _REMEDIES.get(problem.code)
    if problem.code == MISSING_INPUT and not problem.remedy.startswith("name one"):
        return problem
    return replace(problem, remedy=remedy) if remedy else problem


def _has_checkpointer() -> bool:
    try:
        return inherited_saver(get_config()) is not None
    except RuntimeError:  # outside of a graph
        return False


def _step_spec(request: PlanRequest, step: Mapping[str, Any]) -> CapabilitySpec | None:
    name = step.get("capability")
    return request.catalog.capabilities.get(name) if isinstance(name, str) else None


def _format_catalog(
    specs: Sequence[CapabilitySpec], hints: Mapping[str, Sequence[str]], is_brief: bool
) -> str:
    producers: dict[str, list[str]] = {}
    for spec in specs:
        for kind in spec.provides:
            producers.setdefault(kind, []).append(spec.name)
    taken = {need.type for spec in specs for need in spec.requires}
    lines = []
    for spec in specs:
        if is_brief and len(spec.provides) == 1 and not taken.intersection(spec.provides):
            shown = (
                spec
                if any(map(value_field_names, spec.context_types))
                else replace(spec, provides=())
            )
        else:
            shown = spec
        lines += [describe_capability(shown, producers), *hints.get(spec.name, ())]
    return "\n".join(lines)


def _normalize_step(step: dict[str, Any]) -> None:
    """Remove empty fields, and read objects that came as text.

    Google's client knows no objects of unknown fields: it has the model write them as text.
    """
    for name, value in list(step.items()):
        if value in ("", None):
            del step[name]
        elif isinstance(value, str) and name in _OBJECT_FIELDS:
            step[name] = first_json_object(value) or value
