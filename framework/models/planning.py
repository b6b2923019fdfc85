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
from capgraph.base.value_context import value_fields
from capgraph.base.values import json_in
from capgraph.configs.settings import PlanMode
from capgraph.langgraph_compat import lent_saver
from capgraph.models.calls import structured
from capgraph.models.parameters import ask_for_parameters, is_asked_for
from capgraph.models.plan_schema import (
    FEATURES,
    MAX_STEPS,
    Parameter,
    plan_schema,
    usable_features,
    without_nulls,
)
from capgraph.models.prompt import fields_of, prompt_of, split_last
from capgraph.models.roles import RoleModel
from capgraph.models.selection import when_needed
from capgraph.models.signatures import describe_capability
from capgraph.planning import CLOSING
from capgraph.planning.problems import EMPTY, MALFORMED_INPUT, MISSING_INPUT, Problem
from capgraph.planning.recipes import once_each, recipe_of
from capgraph.planning.strategies import PlanRequest
from capgraph.prompts import PromptBuilder
from capgraph.prompts.data import plain_text
from capgraph.prompts.nodes import NO_FUNCTION, LookingPrompt
from capgraph.registry import Candidate, Registry
from capgraph.selection import Selection, Selector
from capgraph.selection.protocols import NOTHING_EXCLUDED

_SHOWN_EXAMPLES = 2
_OBJECTS = frozenset({"parameters", "when", "for_each"})
_SCHEMAS_KEPT = 64
_REFERENCES = (
    'A parameter may be {"$from": "key.field"}, or "key.0.field" of a list: the result, or a field'
    " of it, of the earlier step with that context_key."
)
_MORE = {
    "references": _REFERENCES,
    "for_each": 'A step with for_each {"of": "key.list"} runs for each element; its parameters use'
    ' {"$from": "item"}.',
    "when": 'A step with when {"of": "key.field", "is": OPERATOR, "than": VALUE} runs only if this'
    " holds.",
    "look_again": "After a step with look_again, you plan again.",
    "wait_until": "wait_until delays a step: a duration, or a moment with offset.",
}
_OF_MODE = {
    "look": "You work in rounds: plan only the steps that you can fill in now, and you are asked"
    " again with their results.",
    "auto": "If a step depends on what an earlier result says, plan only up to that result, and"
    " set look to true: you are asked again with the result.",
}
_ANSWERS = (
    "What the conversation, the instructions, or a result answers needs no step: write the reply in"
    " answer. It may also ask the person for a missing value."
)
_RESULTS_BY_NAME = (
    "If several earlier results fit, inputs names them: step numbers (from 1) or keys of"
    " stored results."
)


_BY_NUMBER = "list in inputs the number of the earlier step, or the key of a stored result"
_REMEDIES = {
    EMPTY: "plan a step, or write your reply in answer",
    MALFORMED_INPUT: _BY_NUMBER,
    MISSING_INPUT: _BY_NUMBER,
}
"""Remedies for a model, which writes a smaller form of a plan than a caller does."""


class Catalogue:
    """All capabilities as a planner that chooses among them is shown them.

    Args:
        registry: The capabilities; read when it is first needed, and complete by then.
        budget: Up to how many tokens of them, and of what they note, the planner is shown.
        is_brief: True to leave out the types of results that no capability takes.
    """

    def __init__(self, registry: Registry, budget: int, *, is_brief: bool = False) -> None:
        self._registry = registry
        self._budget = budget
        self.is_brief = is_brief
        self._cuts: WeakKeyDictionary[Any, Catalogue] = WeakKeyDictionary()

    def of(self, catalog: Any) -> Catalogue:
        """Return the catalogue of what a request may use: all, or what its caller may."""
        if catalog is self._registry or not isinstance(catalog, Registry):
            return self
        if catalog not in self._cuts:
            self._cuts[catalog] = Catalogue(catalog, self._budget, is_brief=self.is_brief)
        return self._cuts[catalog]

    @cached_property
    def text(self) -> str:
        """What each one does, needs and gives, and when it is wanted, in alphabetical order."""
        # Positive examples repeat what a description says; the others draw a line.
        hints = {
            c.name: when_needed(replace(c, positives=()), _SHOWN_EXAMPLES)
            for c in self._registry.candidates()
        }
        specs = self._registry.capabilities
        return _listing([specs[name] for name in sorted(specs)], hints, self.is_brief)

    @cached_property
    def has_recipes(self) -> bool:
        """Whether any capability is a recipe."""
        return any(recipe_of(spec) for spec in self._registry.capabilities.values())

    def only_recipe(self, names: Sequence[str]) -> str | None:
        """Return the recipe that does all that was chosen; ``None`` when no single one does."""
        left = once_each(names, self._registry)
        single = left[0] if len(left) == 1 else ""
        return single if recipe_of(self._registry.capabilities.get(single)) else None

    @cached_property
    def guides(self) -> str:
        """The planning advice of all."""
        return self._registry.planning_guides(self._registry.capabilities)

    @cached_property
    def room(self) -> int:
        """About how many tokens of the budget are left beside it."""
        return self._budget - (len(self.text) + len(self.guides)) // 4

    def noted(self, notes: Mapping[str, str]) -> dict[str, str]:
        """Cut what capabilities note about the state at hand to what the budget leaves."""
        each = 4 * max(self.room, self._budget // 4) // max(len(notes), 1)
        return {name: plain_text(text, each) for name, text in notes.items()}


@dataclass(eq=False)
class DeferringSelector:
    """Leaves the choice to the planner while that can be shown every capability.

    Args:
        catalogue: All capabilities.
        apart: Chooses past its budget.
        offline: Tells whether a recipe answered such requests before; ``None`` where it cannot.
    """

    catalogue: Catalogue
    apart: Selector
    offline: Selector | None = None

    async def select(
        self,
        task: str,
        candidates: Sequence[Candidate],
        *,
        excluded: Mapping[str, str] = NOTHING_EXCLUDED,
    ) -> Selection:
        """Return all that may be chosen, what a call of its own chooses, or the one recipe."""
        if self.offline is not None and self.catalogue.has_recipes:
            found = await self.offline.select(task, candidates, excluded=excluded)
            if recipe := self.catalogue.only_recipe(found.names):
                return replace(found, names=(recipe,))
        names = tuple(c.name for c in candidates if c.name not in excluded)
        if not names or self.catalogue.room < 0:
            return await self.apart.select(task, candidates, excluded=excluded)
        return Selection(names, reason="Chosen with the plan.", deferred=True)


@dataclass(eq=False)
class ModelPlanner:
    """Asks a model for a plan; told what is wrong with one, it writes another.

    Args:
        role: The model.
        prompt: Builder of the prompt.
        catalogue: All capabilities.
        features: Features of plans that the model may use, or ``auto`` or ``all``.
        mode: As in the settings.
        max_result_tokens: As in the settings.
        max_stored_results: As in the settings.
        chooses: True if the selector leaves the choice of capabilities to the planner.
    """

    can_correct = True
    chooses_parameters = True

    role: RoleModel
    prompt: PromptBuilder
    catalogue: Catalogue
    features: str | Sequence[str] = "auto"
    mode: PlanMode = "plan"
    max_result_tokens: int = 2000
    max_stored_results: int = 1
    chooses: bool = False
    _usable: tuple[Any, Mapping[str, frozenset[Parameter]]] | None = field(
        default=None, init=False, repr=False
    )
    _schemas: dict[Any, tuple[dict[str, Any], bool]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def reads_conversation(self) -> bool:
        """True if the model gets the earlier messages; a choice before it needs the task alone."""
        return self.mode != "plan" and self.chooses and self.catalogue.room >= 0

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
        specs = self._shown(request)
        features, referring = self._features(request, specs)
        schema, is_typed = self._schema(specs, features, referring)
        messages = self._messages(request, specs, features)
        is_strict = is_typed and self.role.rendering == "strict"
        try:
            found = await structured(self.role, schema, messages, strict=is_strict)
        except MalformedAnswerError as exc:
            return cast("ExecutionPlan", exc.text)
        if isinstance(found, dict) and not found.keys() & {"steps", "answer"}:
            return cast("ExecutionPlan", json.dumps(found, default=str))
        if isinstance(found, dict) and _says_no_function(found.get("answer")):
            del found["answer"]  # the reply is written by who knows what the agent can do
        if isinstance(found, dict) and isinstance(found.get("steps"), list):
            if self.role.rendering == "grammar" and len(found["steps"]) > MAX_STEPS:
                told = f"{len(found['steps'])} steps, and its schema allows {MAX_STEPS}"
                return cast("ExecutionPlan", f"The plan has {told}.")
            for step in found["steps"]:
                if isinstance(step, dict):
                    _read_fields(step)
                    without_nulls(step, _named(request, step))
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

    def _shown(self, request: PlanRequest) -> list[CapabilitySpec]:
        """Return the capabilities that schema and prompt list, in alphabetical order."""
        specs = request.catalog.capabilities
        names = request.active if request.chosen else specs
        return [specs[name] for name in sorted(names) if name in specs and name not in CLOSING]

    def _features(
        self, request: PlanRequest, specs: Sequence[CapabilitySpec]
    ) -> tuple[frozenset[str], frozenset[Parameter] | None]:
        """Return the features that are shown, and the parameters that may refer to results."""
        referring: frozenset[Parameter] | None = None
        if self.features == "all":
            found = {*FEATURES, "inputs"}
        elif self.features == "auto":
            usable = self._usable_features(specs)
            guides = self._guides(request)
            told = {name for name in FEATURES if f'"{name}"' in guides}
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
    ) -> Mapping[str, frozenset[Parameter]]:
        """Return the features that capabilities can use; the schemas are read once."""
        key = tuple(map(id, specs))
        if self._usable is None or self._usable[0] != key:
            # A value fits each parameter of its type: too little for the models of a grammar.
            by_name = self.role.rendering == "grammar"
            self._usable = (key, usable_features(specs, by_name=by_name))
        return self._usable[1]

    def _schema(
        self,
        specs: Sequence[CapabilitySpec],
        features: frozenset[str],
        referring: frozenset[Parameter] | None,
    ) -> tuple[dict[str, Any], bool]:
        """Return the schema of a plan, the same object for the same capabilities."""
        key = (tuple(map(id, specs)), features, self.role.rendering)
        if key not in self._schemas:
            if len(self._schemas) >= _SCHEMAS_KEPT:
                del self._schemas[next(iter(self._schemas))]
            schema, is_typed = plan_schema(
                specs, self.role.rendering, features, referring=referring
            )
            if self.mode == "auto":
                schema = _with_look(schema, self.role.rendering)
            self._schemas[key] = schema, is_typed
        return self._schemas[key]

    def _guides(self, request: PlanRequest) -> str:
        return request.guides if request.chosen else self.catalogue.of(request.catalog).guides

    def _messages(
        self,
        request: PlanRequest,
        specs: Sequence[CapabilitySpec],
        features: Collection[str],
    ) -> list[BaseMessage]:
        if request.chosen:
            shown, notes = _listing(specs, {}, self.catalogue.is_brief), request.notes
        else:
            # All of them each time, what was excluded too: the beginning stays the same.
            catalogue = self.catalogue.of(request.catalog)
            shown, notes = catalogue.text, catalogue.noted(request.notes)
        rules = [_MORE[name] for name in FEATURES if name in features]
        if "inputs" in features:
            rules.append(_RESULTS_BY_NAME)
        if self.mode == "auto" or (
            self.mode == "look" and not isinstance(self.prompt, LookingPrompt)
        ):
            rules += [_OF_MODE[self.mode], _ANSWERS]
        own: dict[str, Any] = {
            "recent": request.recent if self.reads_conversation else (),
            "capabilities": "\n".join([shown, *rules]),
            "guides": self._guides(request),
            "notes": notes,
            # A function's schema shows a model what a plan is; text needs to be seen once.
            "shows_examples": self.role.method != "function_calling",
            "problems": [_for_model(problem) for problem in request.problems],
            "max_result_tokens": self.max_result_tokens,
            "max_stored_results": self.max_stored_results,
            "types": getattr(request.catalog, "context_types", None),
        }
        return prompt_of(
            self.prompt,
            {**fields_of(request), **own},
            instructions=request.instructions,
            # A plan of a whole request does not need it, and small models copy an earlier answer in
            # place of a step.
            earlier=split_last(request.messages)[0] if self.reads_conversation else (),
            messages=request.messages,
        )


def _with_look(schema: dict[str, Any], rendering: str) -> dict[str, Any]:
    """Return the schema of a plan in which the model may ask to see the results."""
    if rendering != "strict":
        return {**schema, "properties": {**schema["properties"], "look": {"type": "boolean"}}}
    look = {"anyOf": [{"type": "boolean"}, {"type": "null"}]}
    properties = {**schema["properties"], "look": look}
    return {**schema, "properties": properties, "required": [*schema["required"], "look"]}


def _says_no_function(answer: object) -> bool:
    return isinstance(answer, str) and answer.strip().rstrip(".") == NO_FUNCTION.rstrip(".")


def _for_model(problem: Problem) -> Problem:
    """Return a problem with a remedy in the form that the model's schema allows."""
    remedy = _REMEDIES.get(problem.code)
    if problem.code == MISSING_INPUT and not problem.remedy.startswith("name one"):
        return problem
    return replace(problem, remedy=remedy) if remedy else problem


def _has_checkpointer() -> bool:
    try:
        return lent_saver(get_config()) is not None
    except RuntimeError:  # outside of a graph
        return False


def _named(request: PlanRequest, step: Mapping[str, Any]) -> CapabilitySpec | None:
    name = step.get("capability")
    return request.catalog.capabilities.get(name) if isinstance(name, str) else None


def _listing(
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
                spec if any(map(value_fields, spec.context_types)) else replace(spec, provides=())
            )
        else:
            shown = spec
        lines += [describe_capability(shown, producers), *hints.get(spec.name, ())]
    return "\n".join(lines)


def _read_fields(step: dict[str, Any]) -> None:
    """Remove empty fields, and read objects that came as text.

    Google's client knows no objects of unknown fields: it has the model write them as text.
    """
    for name, value in list(step.items()):
        if value in ("", None):
            del step[name]
        elif isinstance(value, str) and name in _OBJECTS:
            step[name] = json_in(value) or value
