"""Recipes: a plan that worked, with some of its values as parameters, as one more capability.

A recipe is data. Whoever plans sees a capability with parameters, inputs and outputs; the gate of
plans puts its steps in its place (:func:`expand_recipes`), so that review, approvals, limits and
the ledger see what really runs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic import ValidationError as PydanticError

from capgraph.base import (
    BaseCapability,
    CapabilityError,
    CapabilitySpec,
    ExecutionPlan,
    PlanError,
    RegistryError,
    Requirement,
    capability_node,
)
from capgraph.base.guides import ClassifierExample, TaskClassifierGuide
from capgraph.configs.suggestions import suggest_fix
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.planning.catalog import TERMINAL_STEPS, Catalog
from capgraph.planning.check import DEFAULT_MAX_STEPS, check_plan
from capgraph.planning.parameterize import (
    PARAMETERS,
    extract_parameters,
    normalize_request,
    request_pattern,
    substitute_names,
    substitute_parameters,
)
from capgraph.planning.references import (
    FROM,
    is_reference,
    iter_references,
    reference_key,
    step_reads,
)
from capgraph.planning.waits import WAIT_FIELDS, wait_references
from capgraph.state import TurnView

_DEEPEST = 10
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_LONGEST_TEXT = 1_000_000  # characters of one text with its parameters filled in
_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}
_NAMES: dict[type[Any], Any] = {kind: name for name, kind in _TYPES.items()}
_WORDS = ("title", "description", "examples")
_Name = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
_Names = Callable[[str, str], Sequence[str]]


class _Part(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class RecipeParameter(_Part):
    """What has to be said each time.

    Attributes:
        type: Its JSON type; what the step's own parameter is when not given.
        description: What it means.
        default: What it is when nothing is said; a parameter without one has to be given.
    """

    type: Literal["string", "integer", "number", "boolean", "array", "object"] | None = None
    description: str = ""
    default: Any = None


class RecipeExample(_Part):
    """A request that the recipe answered.

    Attributes:
        request: The request.
        parameters: What the parameters were.
    """

    request: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class Recipe(_Part):
    """A plan as a capability.

    Attributes:
        recipe: Version of this form; 1.
        name: Name of the capability.
        version: Counts from 1 each time that it is saved under its name.
        description: What it does.
        parameters: What has to be said each time, by name.
        inputs: What its steps read and none of them makes: name to context type.
        steps: The steps, without the answer.
        examples: Requests that it answered; by them it is found.
        answer: Who answers a request that is met by the recipe alone: ``results`` puts the results'
            own summaries together, ``model`` asks the model.
        uses: What each capability declared when the recipe was saved.

    >>> recipe = Recipe(name="report", description="Reports on a place.",
    ...     parameters={"place": {"type": "string"}},
    ...     steps=[{"context_key": "news", "capability": "fetch",
    ...             "parameters": {"q": {"$from": "parameters.place"}}}],
    ...     examples=[{"request_text": "Report on Oslo", "parameters": {"place": "Oslo"}}])
    >>> recipe.match_request("report on Rome!")
    {'place': 'Rome'}
    """

    recipe: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][\w-]*$")]
    version: Annotated[int, Field(ge=1)] = 1
    description: Annotated[str, Field(min_length=1)]
    parameters: dict[_Name, RecipeParameter] = Field(default_factory=dict)
    inputs: dict[_Name, str] = Field(default_factory=dict)
    steps: Annotated[list[dict[str, Any]], Field(min_length=1)]
    examples: list[RecipeExample] = Field(default_factory=list)
    answer: Literal["results", "model"] = "results"
    uses: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @classmethod
    @validate_arguments
    def from_turn(
        cls,
        values: Mapping[str, Any],
        name: str,
        catalog: Catalog,
        *,
        parameters: Iterable[str] | None = None,
        description: str = "",
        version: int = 1,
    ) -> Recipe:
        """Make a recipe of a turn that is done.

        Args:
            values: The state after the turn, as ``ainvoke`` returns it.
            name: What it shall be called.
            catalog: The capabilities of the agent, usually its registry.
            parameters: What becomes a parameter, as ``"step.name"`` or ``"step.name=new_name"``.
                When not given: every value that the request says.
            description: What it does; the request when not given.
            version: Its version.

        Raises:
            PlanError: The turn was not completed, or a parameter is not there.
        """
        view = TurnView(values)
        status = (values.get("execution_outcome") or {}).get("status")
        works: list[dict[str, Any]] = [
            dict(step) for step in view.steps if step["capability"] not in TERMINAL_STEPS
        ]
        if status != "completed" or not works:
            raise PlanError(
                f"The turn is {status or 'not over'} and has {len(works)} step(s), so it makes no"
                " recipe.",
                fix="Choose a thread whose last turn was completed by a plan.",
            )
        said = extract_parameters(works, view.request_text, parameters)
        lifted = {place: found for found, (_, places) in said.items() for place in places}
        values_of = {found: value for found, (value, _) in said.items()}
        steps, inputs = [], dict[str, str]()
        keys = {step["context_key"] for step in works}
        stored = {key: kind for kind, entries in view.contexts.items() for key in entries}
        for step in works:
            spec = catalog.capabilities[step["capability"]]
            kinds = {need.label: need.type for need in spec.requires}

            def named(label: str, key: str, kinds: Mapping[str, str] = kinds) -> list[str]:
                if key in keys or key not in stored:
                    return [key]
                new = re.sub(r"\W", "_", key)
                inputs[new] = kinds.get(label, stored[key])
                return [new]

            kept = _rewritten(step, keys | stored.keys(), named)
            key = step["context_key"]
            kept["parameters"] = substitute_parameters(
                kept.get("parameters"), lifted, (key,), values_of
            )
            text = step.get("task_objective") or ""
            same = normalize_request(text) == normalize_request(view.request_text)
            kept["task_objective"] = "" if same else substitute_names(text, values_of)
            kept.pop("success_criteria", None)
            steps.append({part: value for part, value in kept.items() if value})
        return cls(
            name=name,
            version=version,
            description=description or f"Does what was asked by: {view.request_text or name}",
            parameters={
                n: RecipeParameter(type=_NAMES.get(type(value))) for n, value in values_of.items()
            },
            inputs=inputs,
            steps=steps,
            examples=[RecipeExample(request=view.request_text, parameters=values_of)]
            if view.request_text
            else [],
            uses={
                step["capability"]: _declared(catalog.capabilities[step["capability"]])
                for step in steps
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, without what was not given."""
        said = self.model_dump(exclude_unset=True)
        return {"recipe": self.recipe} | {part: value for part, value in said.items() if value}

    def match_request(self, request: str) -> dict[str, Any] | None:
        """Read the parameters from a request that is worded like one of the examples.

        Returns:
            What the request says, as text where nothing tells the type; ``None`` when it is worded
            otherwise.
        """
        for example in self.examples:
            found = re.fullmatch(
                request_pattern(example.request, example.parameters),
                normalize_request(request),
                re.IGNORECASE,
            )
            if found is not None:
                return found.groupdict()
        return None

    def check(self, catalog: Catalog) -> None:
        """Make sure that the recipe fits to the capabilities at hand.

        Raises:
            RegistryError: A capability is unknown or declares something else than when the recipe
                was saved, recipes need each other in a circle, or the steps are no sound plan.
        """
        fix = "Correct the recipe's file, or save it again from a turn."
        others = [found for s in catalog.capabilities.values() if (found := recipe_of(s))]
        order_by_use([*others, self])
        wrong = []
        for name in sorted({*self.uses, *(str(s.get("capability")) for s in self.steps)}):
            spec = catalog.capabilities.get(name)
            if spec is None:
                wrong.append(f"the capability {name!r} is unknown")
                fix = suggest_fix(name, known=catalog.capabilities)
            elif name in self.uses and (now := _declared(spec)) != self.uses[name]:
                then = self.uses[name]
                parts = [p for p in {**now, **then} if now.get(p) != then.get(p)]
                wrong.append(f"{name!r} has changed since it was saved: {', '.join(parts)}")
        used = {name for step in self.steps for name in _used(step)}
        said = {name for name in self.parameters if f"{{{name}}}" in json.dumps(self.steps)}
        wrong += [f"it has no parameter {name!r}" for name in sorted(used - self.parameters.keys())]
        idle = sorted(self.parameters.keys() - used - said)
        wrong += [f"its steps have no use for the parameter {name!r}" for name in idle]
        if PARAMETERS in {*self.inputs, *(s.get("context_key") for s in self.steps)}:
            wrong.append(f"{PARAMETERS!r} is taken: no step and no input may be called so")
        if not wrong:
            wrong = [str(problem) for problem in self._problems(catalog)]
        if wrong:
            raise RegistryError(
                f"The recipe {self.name!r} cannot be used: {'; '.join(wrong)}.", fix=fix
            )

    def _problems(self, catalog: Catalog) -> list[Any]:
        end = {"context_key": "user_response", "capability": "respond"}
        stored: dict[str, list[str]] = {f"parameters of {self.name}": [PARAMETERS]}
        for key, kind in self.inputs.items():
            stored.setdefault(kind, []).append(key)
        found = check_plan({"steps": [*self.steps, end]}, catalog, stored)
        for example in () if found else self.examples:
            # With the values of a request, the parameters of the steps can be checked whole.
            steps = [_filled(step, self._given(example.parameters)) for step in self.steps]
            found = found or check_plan({"steps": [*steps, end]}, catalog, stored)
        return found

    def as_capability(self, catalog: Catalog) -> type[BaseCapability]:
        """Return the capability that stands for the recipe in a registry.

        Args:
            catalog: The capabilities that it uses.

        Raises:
            RegistryError: See :meth:`check`.
        """
        self.check(catalog)
        specs = [catalog.capabilities[step["capability"]] for step in self.steps]
        classes = {kind.CONTEXT_TYPE: kind for spec in specs for kind in spec.context_types}
        model = self._parameters_model(catalog)

        def parameters_from(task: str) -> dict[str, Any]:
            found = dict(self._read_by_steps(task, catalog), **(self.match_request(task) or {}))
            return _fitting(model, found)

        body = {
            "__doc__": self.description,
            "__module__": __name__,
            "name": self.name,
            "description": self.description,
            "recipe": self,
            "__annotations__": {"recipe": ClassVar[Recipe]},
            "provides": [classes.get(kind, kind) for kind in _outputs(self.steps, catalog)],
            "requires": [
                Requirement(kind, "one", self._role(key)) for key, kind in self.inputs.items()
            ],
            "Parameters": model,
            "effect": max((s.effect for s in specs), key=("none", "idempotent", "once").index),
            "permission": max((s.permission for s in specs if s.permission), default=None),
            "labels": tuple(label for s in specs for label in s.labels),
            "sends_externally": any(s.sends_externally for s in specs),
            "requires_approval": any(s.requires_approval for s in specs),
            "execute": staticmethod(_never),
            "matches_task": staticmethod(lambda task: self.match_request(task) is not None or None),
            "parameters_from": staticmethod(parameters_from),
            "_create_orchestrator_guide": lambda _: None,
            "_create_classifier_guide": lambda _: TaskClassifierGuide(
                instructions="",
                examples=[ClassifierExample(e.request, True, "") for e in self.examples],
            ),
        }
        return capability_node(type(f"Recipe_{self.name}", (BaseCapability,), body))

    def _role(self, key: str) -> str | None:
        """Name an input by its key where several are of one type."""
        return key if list(self.inputs.values()).count(self.inputs[key]) > 1 else None

    def _given(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters with the defaults of those that are not said."""
        kept = {n: p.default for n, p in self.parameters.items() if "default" in p.model_fields_set}
        return {**kept, **parameters}

    def _parameters_model(self, catalog: Catalog) -> type[BaseModel] | None:
        if not self.parameters:
            return None
        places = {
            text.partition(".")[2]: (step["capability"], path)
            for step in self.steps
            for path, text in iter_references(step.get("parameters"))
            if text.startswith(f"{PARAMETERS}.")
        }
        fields: dict[str, Any] = {}
        for name, said in self.parameters.items():
            kind: Any = _TYPES.get(said.type or "", Any)
            if name in places:
                capability, path = places[name]
                kind = _annotation(catalog.capabilities[capability].parameters, path, kind)
            default = said.default if "default" in said.model_fields_set else ...
            fields[name] = (kind, Field(default, description=said.description or None))
        return create_model(
            f"{self.name}_parameters", __config__=ConfigDict(extra="forbid"), **fields
        )

    def _read_by_steps(self, task: str, catalog: Catalog) -> dict[str, Any]:
        """Read what the capabilities of the steps would read from a task."""
        found = {}
        for step in self.steps:
            reader = getattr(catalog.capabilities[step["capability"]].cls, "parameters_from", None)
            read = dict(reader(task) or {}) if reader is not None else {}
            for path, text in iter_references(step.get("parameters")):
                key, _, name = text.partition(".")
                if key == PARAMETERS and len(path) == 1 and path[0] in read:
                    found[name] = read[path[0]]
        return found

    def expand_step(self, step: Mapping[str, Any], catalog: Catalog, depth: int = 0) -> list[Any]:
        """Return the steps that stand for one step of a plan.

        Args:
            step: The step.
            catalog: The capabilities at hand.
            depth: How many recipes are around it.
        """
        prefix = step["context_key"]
        given = self._given(step.get("parameters") or {})
        handed: dict[str, list[str]] = {}
        for entry in step.get("inputs") or ():
            for label, key in entry.items():
                handed.setdefault(label, []).append(key)
        inner, _ = expand_recipes(ExecutionPlan(steps=self.steps), catalog, depth=depth + 1)  # type: ignore[typeddict-item]
        own = {one["context_key"] for one in inner["steps"]}

        def named(_: str, key: str) -> Sequence[str]:
            if key in self.inputs:
                return handed.get(self._role(key) or self.inputs[key], [])
            return [f"{prefix}.{key}"] if key in own else [key]

        found = []
        for one in inner["steps"]:
            said = one.get("task_objective") or step.get("task_objective") or self.description
            said = _written(said, given, whole=False)
            renamed = _rewritten({**one, "task_objective": ""}, {*own, *self.inputs}, named)
            renamed = _filled(renamed, given)
            key = f"{prefix}.{one['context_key']}"
            conditions = [c for c in (step.get("when"), renamed.pop("when", None)) if c]
            when = {"and": conditions} if len(conditions) > 1 else next(iter(conditions), None)
            more = {part: step[part] for part in ("optional", "timeout") if step.get(part)}
            more |= {"when": when} if when else {}
            if not any(read.key in own for read in step_reads(one, own)):
                more |= {name: step[name] for name in WAIT_FIELDS if step.get(name)}
            found.append({**more, **renamed, "context_key": key, "task_objective": said})
        if step.get("for_each"):
            if len(found) > 1:
                raise PlanError(
                    f"The recipe {self.name!r} has {len(found)} steps, and 'for_each' is for one.",
                    fix="Give 'for_each' to a step of the recipe, or name the recipe once for each.",
                )
            found[0]["for_each"] = step["for_each"]
        if step.get("look_again"):
            found[-1]["look_again"] = True
        return found


def recipe_of(spec: CapabilitySpec | None) -> Recipe | None:
    """Return the recipe that a capability stands for; ``None`` for one that works itself."""
    found = getattr(spec.cls, "recipe", None) if spec is not None else None
    return found if isinstance(found, Recipe) else None


def expand_recipes(
    plan: ExecutionPlan, catalog: Catalog, max_steps: int = DEFAULT_MAX_STEPS, *, depth: int = 0
) -> tuple[ExecutionPlan, list[str]]:
    """Put the steps of recipes in their place; what reads a recipe's result reads theirs.

    Args:
        plan: A plan that checks clean.
        catalog: The capabilities at hand.
        max_steps: How many steps there may be.
        depth: How many recipes are around it.

    Returns:
        The plan, and what was done in words; nothing where no step is a recipe.

    Raises:
        PlanError: There are too many steps, or too many recipes in one another.
    """
    steps: list[Any] = []
    told: list[str] = []
    made: dict[str, dict[str, list[str]]] = {}
    for step in plan["steps"]:
        spec = catalog.capabilities.get(step["capability"])
        recipe = recipe_of(spec)
        kinds = {need.label: need.type for need in spec.requires} if spec is not None else {}

        def named(label: str, key: str, kinds: Mapping[str, str] = kinds) -> Sequence[str]:
            return made[key].get(kinds.get(label, label), [key]) if key in made else [key]

        read = _rewritten(step, made.keys(), named) if made else dict(step)
        if recipe is None:
            steps.append(read)
            continue
        if depth > _DEEPEST:
            raise PlanError(f"The recipe {recipe.name!r} stands in {depth} others.")
        inner = recipe.expand_step(read, catalog, depth)
        outputs = _outputs(inner, catalog)
        kind = step.get("expected_output")
        every = outputs.get(kind, []) if kind else [k for keys in outputs.values() for k in keys]
        made[step["context_key"]] = {**outputs, FROM: every}
        steps += inner
        if len(steps) > max_steps:
            raise PlanError(
                f"The plan has more than {max_steps} steps when its recipes are written out.",
                fix="Plan less, or raise limits.max_steps.",
            )
        told.append(f"recipe {recipe.name!r} (version {recipe.version}): {len(inner)} step(s)")
    return (ExecutionPlan(**{**plan, "steps": steps}), told) if told else (plan, told)


def underlying_capabilities(name: str, catalog: Catalog) -> list[str]:
    """Name the capabilities that work where a plan names one: itself, or those of a recipe."""
    recipe = recipe_of(catalog.capabilities.get(name))
    if recipe is None:
        return [name]
    return [
        one for step in recipe.steps for one in underlying_capabilities(step["capability"], catalog)
    ]


def drop_overlapping(names: Iterable[str], catalog: Catalog) -> tuple[str, ...]:
    """Leave out of a choice, best first, what a recipe does that stands before it, and the reverse.

    A recipe whose work somebody before it does in part is left out: less was asked for.
    """
    kept: dict[str, set[str]] = {}
    for name in names:
        does = set(underlying_capabilities(name, catalog))
        if not any(does & others for others in kept.values()):
            kept[name] = does
    return tuple(kept)


def order_by_use(recipes: Iterable[Recipe]) -> list[Recipe]:
    """Return recipes so that each comes after those that it uses.

    Raises:
        RegistryError: They use each other in a circle.
    """
    known = {recipe.name: recipe for recipe in recipes}
    uses = {
        name: {str(s.get("capability")) for s in one.steps} & known.keys()
        for name, one in known.items()
    }
    try:
        return [known[name] for name in TopologicalSorter(uses).static_order()]
    except CycleError as exc:
        raise RegistryError(
            f"The recipes are part of a cycle: {' → '.join(reversed(exc.args[1]))}.",
            fix="Let one of them do without the others.",
        ) from None


async def _never(state: Any, **_: Any) -> None:
    """Refuse to run: a recipe has steps, which a plan runs in its place."""
    raise CapabilityError(
        "A recipe does not run by itself.", fix="Let a plan name it; its steps take its place."
    )


def _rewritten(step: Mapping[str, Any], known: Iterable[str], named: _Names) -> dict[str, Any]:
    """Return a step that reads under other names.

    Args:
        step: The step.
        known: The keys that may have another name.
        named: Input label (or ``$from``) and key to the new keys.
    """
    keys = set(known)

    def path(text: str) -> str:
        key = reference_key(text, keys)
        new = named(FROM, key)
        return f"{new[0]}{text[len(key) :]}" if len(new) == 1 else text

    def walk(value: Any, names: tuple[str, ...]) -> Any:
        if isinstance(value, Mapping):
            return {
                part: path(inner)
                if part in names and isinstance(inner, str)
                else walk(inner, names)
                for part, inner in value.items()
            }
        return [walk(inner, names) for inner in value] if isinstance(value, list) else value

    changed = {
        part: walk(value, (FROM, "of") if part in ("when", "for_each") else (FROM,))
        for part, value in step.items()
    }
    changed["inputs"] = [
        {label: new}
        for entry in step.get("inputs") or ()
        for label, key in entry.items()
        for new in named(label, key)
    ]
    return changed


def _filled(value: Any, given: Mapping[str, Any]) -> Any:
    """Put the values of a recipe's parameters in the place of what refers to them."""
    if is_reference(value):
        key, _, name = str(value[FROM]).partition(".")
        return given.get(name, value) if key == PARAMETERS else value
    if isinstance(value, str):
        return _written(value, given)
    if isinstance(value, Mapping):
        return {part: _filled(inner, given) for part, inner in value.items()}
    return [_filled(inner, given) for inner in value] if isinstance(value, list) else value


def _written(text: str, given: Mapping[str, Any], *, whole: bool = True) -> str:
    """Put the values of parameters into a text that has their names.

    Args:
        text: The text.
        given: The values.
        whole: Whether every value has to be known; else what is not is called by its key.

    Raises:
        PlanError: One is the result of a step, which is not there yet.
    """
    length = len(text)

    def value_of(match: re.Match[str]) -> str:
        nonlocal length
        name = match[1]
        if name not in given:
            return match[0]
        value = given[name]
        key, _, outer = str(value[FROM] if is_reference(value) else "").partition(".")
        if key and key != PARAMETERS and whole:
            raise PlanError(
                f"The parameter {name!r} stands inside a text of its recipe, so it cannot be the"
                f" result {value[FROM]!r} of another step.",
                fix="Give a plain value, or look again when that step is done.",
            )
        # A recipe around this one has the value of its own parameter.
        said = f"{{{outer}}}" if key == PARAMETERS else str(value[FROM] if key else value)
        length += len(said)
        if length > _LONGEST_TEXT:
            raise PlanError(
                f"A text of the recipe is longer than {_LONGEST_TEXT:,} characters with its"
                " parameters filled in.",
                fix="Give shorter values.",
            )
        return said

    # One pass: a value that holds a placeholder itself is not filled again.
    return _PLACEHOLDER.sub(value_of, text)


def _used(step: Mapping[str, Any]) -> set[str]:
    """Name the parameters of the recipe that a step's own and its waits refer to."""
    read = (*iter_references(step.get("parameters")), *wait_references(step))
    refers = [text.partition(".") for _, text in read]
    return {name for key, _, name in refers if key == PARAMETERS}


def _outputs(steps: Sequence[Mapping[str, Any]], catalog: Catalog) -> dict[str, list[str]]:
    """Return what those steps give that no other one reads: context type to their keys."""
    keys = {step["context_key"] for step in steps}
    read = {one.key for step in steps for one in step_reads(step, keys)}
    found: dict[str, list[str]] = {}
    for step in steps:
        provides = catalog.capabilities[step["capability"]].provides
        kind = step.get("expected_output") or (provides[0] if len(provides) == 1 else None)
        if step["context_key"] not in read and kind:
            found.setdefault(kind, []).append(step["context_key"])
    return found


def _declared(spec: CapabilitySpec) -> dict[str, Any]:
    """Return what a recipe relies on of a capability, as plain data."""
    schema = spec.parameters.model_json_schema() if spec.parameters is not None else None
    text = json.dumps(_bare(schema), sort_keys=True, default=str)
    found = {
        "parameters": hashlib.sha256(text.encode()).hexdigest()[:16] if schema else None,
        "requires": [str(need) for need in spec.requires],
        "provides": list(spec.provides),
        "effect": spec.effect,
        "permission": spec.permission.name if spec.permission else None,
        "labels": list(spec.labels),
        "outside": spec.sends_externally,
        "requires_approval": bool(spec.requires_approval),
    }
    return {part: value for part, value in found.items() if value}


def _bare(schema: Any) -> Any:
    """Leave out of a JSON schema what is only for readers."""
    if isinstance(schema, Mapping):
        kept = {k: v for k, v in schema.items() if not (k in _WORDS and not isinstance(v, Mapping))}
        return {part: _bare(value) for part, value in kept.items()}
    return [_bare(one) for one in schema] if isinstance(schema, list) else schema


def _annotation(model: type[BaseModel] | None, path: Sequence[int | str], otherwise: Any) -> Any:
    """Return the type of a step's parameter, as its capability declares it."""
    kind: Any = model
    for part in path:
        fields = getattr(kind, "model_fields", {})
        info = next((f for n, f in fields.items() if part in (n, f.alias)), None)
        if info is None:
            return otherwise
        kind = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
    return kind


def _fitting(model: type[BaseModel] | None, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was read in the types of the parameters, without what does not fit."""
    fit = {}
    for name, info in (model.model_fields if model is not None else {}).items():
        kind: Any = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        try:
            read = TypeAdapter(kind).validate_python(found[name])
            fit[name] = TypeAdapter(kind).dump_python(read, mode="json")
        except (KeyError, PydanticError):
            continue
    return fit
