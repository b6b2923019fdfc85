"""Writing plans with a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast
from weakref import WeakKeyDictionary

from langchain_core.messages import BaseMessage

from capgraph.base import CapabilitySpec, ExecutionPlan
from capgraph.base.errors import MalformedAnswerError
from capgraph.base.value_context import ValueContext, value_fields
from capgraph.base.values import json_in
from capgraph.models.calls import structured
from capgraph.models.parameters import ask_for_parameters
from capgraph.models.prompt import fields_of, prompt_of
from capgraph.models.roles import RoleModel
from capgraph.models.selection import when_needed
from capgraph.planning.recipes import once_each, recipe_of
from capgraph.planning.strategies import PlanRequest
from capgraph.prompts import PromptBuilder
from capgraph.prompts.data import plain_text
from capgraph.registry import Candidate, Registry
from capgraph.selection import Selection, Selector
from capgraph.selection.protocols import NOTHING_EXCLUDED

_TEXT = {"type": "string"}
_OBJECT = {"type": "object"}
_FLAG = {"type": "boolean"}
PLAN_SCHEMA: dict[str, Any] = {
    "title": "ExecutionPlan",
    "description": "The plan.",
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "capability": _TEXT,
                    "parameters": {"type": "object", "additionalProperties": True},
                    "inputs": {"type": "array", "items": _TEXT},
                    "task_objective": _TEXT,
                    "expected_output": _TEXT,
                    "context_key": _TEXT,
                    "when": _OBJECT,
                    "for_each": _OBJECT,
                    "optional": _FLAG,
                    "look_again": _FLAG,
                    "wait_until": _TEXT,
                },
                "required": ["capability"],
            },
        },
        "answer": _TEXT,
    },
    "required": ["steps"],
}
"""``ExecutionPlan`` as the model is shown it. It is the same for every request, since providers
put it before the prompt; whether names and types are right is checked afterwards. What has one
right answer (keys, inputs, outputs, the closing step) the model leaves out, and the check fills in."""

_FIELDS: dict[str, Any] = PLAN_SCHEMA["properties"]["steps"]["items"]["properties"]
_SHOWN_EXAMPLES = 2
_REFERENCES = (
    'A parameter may be {"$from":"key.field"}, the result of the step with that context_key or a'
    " field of it. Only if the request calls for it, a step has when"
    ' {"of":"key.field","is":">","than":5}, for_each {"of":"key.list"} (parameters:'
    ' {"$from":"item"}), optional, look_again (then replan), wait_until "2h" (or a moment with'
    " offset)."
)


class Catalogue:
    """All capabilities as a planner that chooses among them is shown them.

    Args:
        registry: The capabilities; read when it is first needed, and complete by then.
        budget: Up to how many tokens of them, and of what they note, the planner is shown.
    """

    def __init__(self, registry: Registry, budget: int) -> None:
        self._registry = registry
        self._budget = budget
        self._cuts: WeakKeyDictionary[Any, Catalogue] = WeakKeyDictionary()

    def of(self, catalog: Any) -> Catalogue:
        """Return the catalogue of what a request may use: all, or what its caller may."""
        if catalog is self._registry or not isinstance(catalog, Registry):
            return self
        if catalog not in self._cuts:
            self._cuts[catalog] = Catalogue(catalog, self._budget)
        return self._cuts[catalog]

    @cached_property
    def text(self) -> str:
        """What each one does, needs and gives, and when it is wanted, in alphabetical order."""
        hints = {c.name: when_needed(c, _SHOWN_EXAMPLES) for c in self._registry.candidates()}
        specs = self._registry.capabilities
        return _listing([specs[name] for name in sorted(specs)], hints)

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
    """Asks a model for a plan; told what is wrong with one, it writes another."""

    can_correct = True
    chooses_parameters = True

    role: RoleModel
    prompt: PromptBuilder
    catalogue: Catalogue

    async def plan(self, request: PlanRequest) -> ExecutionPlan:
        """Return what the model proposes, right or wrong.

        An answer that is no plan comes back as it is: the check that follows says so, and the
        attempt counts.

        Raises:
            ModelError: The call failed or the model refused.
        """
        try:
            # Parameters are an open object, which only function calling leaves open everywhere.
            found = await structured(
                self.role, PLAN_SCHEMA, self._messages(request), method="function_calling"
            )
        except MalformedAnswerError as exc:
            return cast("ExecutionPlan", exc.text)
        if isinstance(found, dict) and not found.keys() & {"steps", "answer"}:
            return cast("ExecutionPlan", json.dumps(found, default=str))
        if isinstance(found, dict) and isinstance(found.get("steps"), list):
            for step in found["steps"]:
                if isinstance(step, dict):
                    _read_fields(step)
                    # A step that says nothing of its own is for the whole request.
                    step.setdefault("task_objective", request.task)
        return cast("ExecutionPlan", found)

    async def fill_parameters(
        self, task: str, steps: Mapping[str, CapabilitySpec]
    ) -> Mapping[str, Any]:
        """Return the parameters of steps, by their keys; see :func:`ask_for_parameters`."""
        return await ask_for_parameters(self.role, task, steps)

    def _messages(self, request: PlanRequest) -> list[BaseMessage]:
        if request.chosen:
            specs = request.catalog.capabilities
            active = [specs[name] for name in sorted(request.active) if name in specs]
            shown = _listing(active, {}), request.guides
            notes = request.notes
        else:
            # All of them each time, what was excluded too: the beginning stays the same.
            catalogue = self.catalogue.of(request.catalog)
            shown = catalogue.text, catalogue.guides
            notes = catalogue.noted(request.notes)
        own = {"capabilities": shown[0], "guides": shown[1], "notes": notes}
        return prompt_of(
            self.prompt,
            {**fields_of(request), **own},
            instructions=request.instructions,
            # Without the conversation: small models copy an earlier answer in place of a step.
            messages=request.messages,
        )


def _read_fields(step: dict[str, Any]) -> None:
    """Leave out what is empty, and read objects where they came as text.

    Google's client knows no objects of unknown fields: it has the model write them as text.
    """
    for name, value in list(step.items()):
        if value in ("", None):
            del step[name]
        elif isinstance(value, str) and _FIELDS.get(name, _TEXT)["type"] == "object":
            step[name] = json_in(value) or value


def _listing(specs: Sequence[CapabilitySpec], hints: Mapping[str, Sequence[str]]) -> str:
    lines = []
    for spec in specs:
        lines += [describe_capability(spec), *hints.get(spec.name, ())]
    if any(issubclass(kind, ValueContext) for spec in specs for kind in spec.context_types):
        lines.append(_REFERENCES)
    return "\n".join(lines)


def describe_capability(spec: CapabilitySpec) -> str:
    """Write down what a planner must know about a capability.

    >>> print(describe_capability(CapabilitySpec("fetch", "Fetches it.", provides=("DATA",))))
    - fetch: Fetches it. Gives DATA.
    """
    needs = ", ".join(map(str, spec.requires))
    line = f"- {spec.name}: {' '.join(spec.description.split())}"
    if needs:
        line += f" Needs {needs}."
    if spec.provides:
        line += f" Gives {', '.join(_gives(spec))}."
    if len(spec.provides) > 1:
        line += " Name the wanted one in expected_output."
    if spec.effect == "once":
        line += " Acts on the world, and cannot be undone."
    if spec.parameters is not None and spec.parameters.model_fields:
        schema = _bare(spec.parameters.model_json_schema())
        schema.pop("description", None)  # the docstring says again what the fields say
        schema.pop("type", None)
        written = json.dumps(schema, ensure_ascii=False, default=str, separators=(",", ":"))
        line += f"\n  parameters: {written}"
    return line


def _gives(spec: CapabilitySpec) -> list[str]:
    """Name the outputs, and of a plain value its fields, which parameters may refer to."""
    fields = {kind.CONTEXT_TYPE: value_fields(kind) for kind in spec.context_types}
    return [
        f"{kind} ({', '.join(fields[kind])})" if fields.get(kind) else kind
        for kind in spec.provides
    ]


def _bare(schema: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a JSON schema what a reader does not need."""
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in {"properties", "$defs"} and isinstance(value, dict):
            kept[key] = {name: _bare(part) for name, part in value.items()}
        elif key == "anyOf" and isinstance(value, list):
            # Leaving a parameter out is simpler than writing null.
            forms = [_bare(form) for form in value if form != {"type": "null"}]
            kept |= forms[0] if len(forms) == 1 else {key: forms}
        elif key in {"items", "additionalProperties"} and isinstance(value, dict):
            kept[key] = _bare(value)
        elif key not in {"title", "additionalProperties"} and (key, value) != ("default", None):
            kept[key] = value
    return kept
