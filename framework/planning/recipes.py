"""Recipes: finished plans, with some values as parameters, packaged as capabilities.

A recipe is data. A planner sees a capability with parameters, inputs, and outputs. Before a plan
runs, :func:`expand_recipes` replaces the recipe with its steps, so that review, approvals, limits,
and idempotency apply to the real steps.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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

_MAX_DEPTH = 10
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_LONGEST_TEXT = 1_000_000  # maximum characters of a text after its parameters are filled in
_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}
_NAMES: dict[type[Any], Any] = {kind: name for name, kind in _TYPES.items()}
_TEXT_KEYWORDS = ("title", "description", "examples")
_Name = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
_Rename = Callable[[str, str], Sequence[str]]


class _Part(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class RecipeParameter(_Part):
    """Parameter of a recipe (a reusable plan).

    Attributes:
        type: JSON type. Defaults to the type of the step's parameter.
        description: Description of the parameter.
        default: Default value. A parameter without a default is required.
    """

    type: Literal["string", "integer", "number", "boolean", "array", "object"] | None = None
    description: str = ""
    default: Any = None


class RecipeExample(_Part):
    """Example of a user request that a recipe (a reusable plan) answered.

    Example request that a recipe answered.

    Attributes:
        request: Text of the request.
        parameters: Parameter values for this request, by name.
    """

    request: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class Recipe(_Part):
    """Plan that is packaged as a capability.

    Attributes:
        recipe: Version of the file format; 1.
        name: Name of the capability.
        version: Version of the recipe, starting at 1 and incremented each time it is saved.
        description: What the recipe does.
        parameters: Parameters by name.
        inputs: Context keys that the steps read and no step provides, with their context types.
        steps: The steps, without the terminal step.
        examples: Requests that the recipe answered. Requests with the same wording match the recipe.
        answer: Origin of the answer if the recipe alone handles a request: ``results`` joins the results'
            summaries, ``model`` calls the chat model.
        uses: Declarations of the used capabilities at the time when the recipe was saved.

    >>> recipe = Recipe(name="report", description="Reports on a place.",
    ...     parameters={"place": {"type": "string"}},
    ...     steps=[{"context_key": "news", "capability": "fetch",
    ...             "parameters": {"q": {"$from": "parameters.place"}}}],
    ...     examples=[{"request": "Report on Oslo", "parameters": {"place": "Oslo"}}])
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
        """Create a recipe (a reusable plan) from the plan of a completed turn.

        Args:
            values: State after the turn, as returned by ``ainvoke``.
            name: Name of the recipe.
            catalog: Capabilities of the agent, usually its registry.
            parameters: Values that become parameters, as ``"step.name"`` or
                ``"step.name=new_name"``. By default, every value that occurs in the request becomes
                a parameter.
            description: Description of the recipe. Defaults to the user's request.
            version: Version of the recipe.

        Raises:
            PlanError: The turn did not complete, or a parameter does not exist.
        """
        view = TurnView(values)
        status = (values.get("execution_outcome") or {}).get("status")
        work_steps: list[dict[str, Any]] = [
            dict(step) for step in view.steps if step["capability"] not in TERMINAL_STEPS
        ]
        if status != "completed" or not work_steps:
            raise PlanError(
                f"The turn is {status or 'not finished'} and has {len(work_steps)} step(s): a recipe"
                " requires a completed turn with a plan.",
                fix="Choose a thread whose last turn completed a plan.",
            )
        extracted = extract_parameters(work_steps, view.request_text, parameters)
        parameter_by_path = {path: name for name, (_, paths) in extracted.items() for path in paths}
        value_by_name = {name: value for name, (value, _) in extracted.items()}
        steps, inputs = [], dict[str, str]()
        keys = {step["context_key"] for step in work_steps}
        stored = {key: kind for kind, entries in view.contexts.items() for key in entries}
        for step in work_steps:
            spec = catalog.capabilities[step["capability"]]
            kinds = {item.label: item.type for item in spec.requires}

            def rename(label: str, key: str, kinds: Mapping[str, str] = kinds) -> list[str]:
                if key in keys or key not in stored:
                    return [key]
                new = re.sub(r"\W", "_", key)
                inputs[new] = kinds.get(label, stored[key])
                return [new]

            saved = _rename_reads(step, keys | stored.keys(), rename)
            saved["parameters"] = substitute_parameters(
                saved.get("parameters"), parameter_by_path, (step["context_key"],), value_by_name
            )
            text = step.get("task_objective") or ""
            same = normalize_request(text) == normalize_request(view.request_text)
            saved["task_objective"] = "" if same else substitute_names(text, value_by_name)
            saved.pop("success_criteria", None)
            steps.append({part: value for part, value in saved.items() if value})
        return cls(
            name=name,
            version=version,
            description=description or f"Does what was asked by: {view.request_text or name}",
            parameters={
                n: RecipeParameter(type=_NAMES.get(type(value)))
                for n, value in value_by_name.items()
            },
            inputs=inputs,
            steps=steps,
            examples=[RecipeExample(request=view.request_text, parameters=value_by_name)]
            if view.request_text
            else [],
            uses={
                step["capability"]: _summarize_declaration(catalog.capabilities[step["capability"]])
                for step in steps
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert the recipe to a dictionary of plain data, without unset fields."""
        fields = self.model_dump(exclude_unset=True)
        return {"recipe": self.recipe} | {name: value for name, value in fields.items() if value}

    def match_request(self, request: str) -> dict[str, Any] | None:
        """Extract parameters from a request that is worded like one of the recipe's examples.

        Returns:
            The parameter values as strings, or ``None`` if no example matches.
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
        """Validate the recipe against the available capabilities.

        Raises:
            RegistryError: A capability is unknown or has changed since the recipe was saved,
                recipes depend on each other in a cycle, or the steps are not a valid plan.
        """
        fix = "Correct the recipe's file, or save it again from a turn."
        others = [found for s in catalog.capabilities.values() if (found := recipe_of(s))]
        order_by_use([*others, self])
        problems = []
        for name in sorted({*self.uses, *(str(s.get("capability")) for s in self.steps)}):
            spec = catalog.capabilities.get(name)
            if spec is None:
                problems.append(f"the capability {name!r} is unknown")
                fix = suggest_fix(name, candidates=catalog.capabilities)
            elif name in self.uses and (now := _summarize_declaration(spec)) != self.uses[name]:
                then = self.uses[name]
                parts = [p for p in {**now, **then} if now.get(p) != then.get(p)]
                problems.append(f"{name!r} has changed since it was saved: {', '.join(parts)}")
        used = {name for step in self.steps for name in _find_referenced_parameters(step)}
        in_texts = {name for name in self.parameters if f"{{{name}}}" in json.dumps(self.steps)}
        undeclared = sorted(used - self.parameters.keys())
        problems += [f"the parameter {name!r} is not declared" for name in undeclared]
        unused = sorted(self.parameters.keys() - used - in_texts)
        problems += [f"no step uses the parameter {name!r}" for name in unused]
        if PARAMETERS in {*self.inputs, *(s.get("context_key") for s in self.steps)}:
            problems.append(f"{PARAMETERS!r} is reserved and cannot name a step or an input")
        if not problems:
            problems = [str(problem) for problem in self._find_plan_problems(catalog)]
        if problems:
            raise RegistryError(
                f"The recipe {self.name!r} cannot be used: {'; '.join(problems)}.", fix=fix
            )

    def _find_plan_problems(self, catalog: Catalog) -> list[Any]:
        end = {"context_key": "user_response", "capability": "respond"}
        stored: dict[str, list[str]] = {f"parameters of {self.name}": [PARAMETERS]}
        for key, kind in self.inputs.items():
            stored.setdefault(kind, []).append(key)
        found = check_plan({"steps": [*self.steps, end]}, catalog, stored)
        for example in () if found else self.examples:
            # The values of an example make it possible to validate all step parameters.
            steps = [
                _fill_parameters(step, self._apply_defaults(example.parameters))
                for step in self.steps
            ]
            found = found or check_plan({"steps": [*steps, end]}, catalog, stored)
        return found

    def as_capability(self, catalog: Catalog) -> type[BaseCapability]:
        """Create a capability class under which the recipe can be registered.

        Args:
            catalog: Available capabilities, including those that the recipe uses.

        Raises:
            RegistryError: See :meth:`check`.
        """
        self.check(catalog)
        specs = [catalog.capabilities[step["capability"]] for step in self.steps]
        classes = {kind.CONTEXT_TYPE: kind for spec in specs for kind in spec.context_types}
        model = self._create_parameters_model(catalog)

        def parameters_from(task: str) -> dict[str, Any]:
            found = dict(self._read_by_steps(task, catalog), **(self.match_request(task) or {}))
            return _convert_values(model, found)

        body = {
            "__doc__": self.description,
            "__module__": __name__,
            "name": self.name,
            "description": self.description,
            "recipe": self,
            "__annotations__": {"recipe": ClassVar[Recipe]},
            "provides": [
                classes.get(kind, kind) for kind in _find_unread_results(self.steps, catalog)
            ],
            "requires": [
                Requirement(kind, "one", self._input_role(key)) for key, kind in self.inputs.items()
            ],
            "Parameters": model,
            "effect": max((s.effect for s in specs), key=("none", "idempotent", "once").index),
            "permission": max((s.permission for s in specs if s.permission), default=None),
            "labels": tuple(label for s in specs for label in s.labels),
            "sends_externally": any(s.sends_externally for s in specs),
            "requires_approval": any(s.requires_approval for s in specs),
            "execute": staticmethod(_refuse_to_run),
            "matches_task": staticmethod(lambda task: self.match_request(task) is not None or None),
            "parameters_from": staticmethod(parameters_from),
            "_create_orchestrator_guide": lambda _: None,
            "_create_classifier_guide": lambda _: TaskClassifierGuide(
                instructions="",
                examples=[ClassifierExample(e.request, True, "") for e in self.examples],
            ),
        }
        return capability_node(type(f"Recipe_{self.name}", (BaseCapability,), body))

    def _input_role(self, key: str) -> str | None:
        """Return the role of a recipe input, or ``None`` if its type identifies the input.

        The role is the context key, and is needed if several inputs have the same type.
        """
        return key if list(self.inputs.values()).count(self.inputs[key]) > 1 else None

    def _apply_defaults(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a recipe, with default values for the missing ones."""
        defaults = {
            n: p.default for n, p in self.parameters.items() if "default" in p.model_fields_set
        }
        return {**defaults, **parameters}

    def _create_parameters_model(self, catalog: Catalog) -> type[BaseModel] | None:
        if not self.parameters:
            return None
        uses = {
            text.partition(".")[2]: (step["capability"], path)
            for step in self.steps
            for path, text in iter_references(step.get("parameters"))
            if text.startswith(f"{PARAMETERS}.")
        }
        fields: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            kind: Any = _TYPES.get(parameter.type or "", Any)
            if name in uses:
                capability, path = uses[name]
                kind = _find_annotation(catalog.capabilities[capability].parameters, path, kind)
            default = parameter.default if "default" in parameter.model_fields_set else ...
            fields[name] = (kind, Field(default, description=parameter.description or None))
        return create_model(
            f"{self.name}_parameters", __config__=ConfigDict(extra="forbid"), **fields
        )

    def _read_by_steps(self, task: str, catalog: Catalog) -> dict[str, Any]:
        """Extract the recipe's parameters from a task by calling the steps' capabilities.

        Each capability's ``parameters_from`` method parses the task.
        """
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
        """Expand a plan step that uses the recipe into the steps of the recipe.

        Args:
            step: Plan step that uses the recipe.
            catalog: Available capabilities.
            depth: Number of recipes that enclose the step.
        """
        prefix = step["context_key"]
        values = self._apply_defaults(step.get("parameters") or {})
        input_keys: dict[str, list[str]] = {}
        for entry in step.get("inputs") or ():
            for label, key in entry.items():
                input_keys.setdefault(label, []).append(key)
        inner, _ = expand_recipes(ExecutionPlan(steps=self.steps), catalog, depth=depth + 1)  # type: ignore[typeddict-item]
        own = {one["context_key"] for one in inner["steps"]}

        def rename(_: str, key: str) -> Sequence[str]:
            if key in self.inputs:
                return input_keys.get(self._input_role(key) or self.inputs[key], [])
            return [f"{prefix}.{key}"] if key in own else [key]

        found = []
        for one in inner["steps"]:
            objective = one.get("task_objective") or step.get("task_objective") or self.description
            objective = _fill_placeholders(objective, values, strict=False)
            renamed = _rename_reads({**one, "task_objective": ""}, {*own, *self.inputs}, rename)
            renamed = _fill_parameters(renamed, values)
            key = f"{prefix}.{one['context_key']}"
            conditions = [c for c in (step.get("when"), renamed.pop("when", None)) if c]
            when = {"and": conditions} if len(conditions) > 1 else next(iter(conditions), None)
            more = {part: step[part] for part in ("optional", "timeout") if step.get(part)}
            more |= {"when": when} if when else {}
            if not any(read.key in own for read in step_reads(one, own)):
                more |= {name: step[name] for name in WAIT_FIELDS if step.get(name)}
            found.append({**more, **renamed, "context_key": key, "task_objective": objective})
        if step.get("for_each"):
            if len(found) > 1:
                raise PlanError(
                    f"The recipe {self.name!r} has {len(found)} steps: a step with 'for_each' accepts only"
                    " recipes with one step.",
                    fix="Set 'for_each' on a step of the recipe, or plan the recipe once per element.",
                )
            found[0]["for_each"] = step["for_each"]
        if step.get("look_again"):
            found[-1]["look_again"] = True
        return found


def recipe_of(spec: CapabilitySpec | None) -> Recipe | None:
    """Return the recipe that a capability wraps, or ``None`` if it is not a recipe."""
    found = getattr(spec.cls, "recipe", None) if spec is not None else None
    return found if isinstance(found, Recipe) else None


def expand_recipes(
    plan: ExecutionPlan, catalog: Catalog, max_steps: int = DEFAULT_MAX_STEPS, *, depth: int = 0
) -> tuple[ExecutionPlan, list[str]]:
    """Replace recipes in a plan with their steps and update references to their results.

    Args:
        plan: Valid plan.
        catalog: Available capabilities.
        max_steps: Maximum number of steps after expansion.
        depth: Number of enclosing recipes.

    Returns:
        The expanded plan and a description of each replacement. A plan without recipes is
        unchanged.

    Raises:
        PlanError: The plan has too many steps, or recipes are nested too deeply.
    """
    steps: list[Any] = []
    descriptions: list[str] = []
    outputs_by_key: dict[str, dict[str, list[str]]] = {}
    for step in plan["steps"]:
        spec = catalog.capabilities.get(step["capability"])
        recipe = recipe_of(spec)
        kinds = {item.label: item.type for item in spec.requires} if spec is not None else {}

        def rename(label: str, key: str, kinds: Mapping[str, str] = kinds) -> Sequence[str]:
            outputs = outputs_by_key.get(key)
            return [key] if outputs is None else outputs.get(kinds.get(label, label), [key])

        renamed = _rename_reads(step, outputs_by_key, rename) if outputs_by_key else dict(step)
        if recipe is None:
            steps.append(renamed)
            continue
        if depth > _MAX_DEPTH:
            raise PlanError(
                f"The recipe {recipe.name!r} is nested inside {depth} other recipes, but at most "
                f"{_MAX_DEPTH} are allowed.",
                fix="Use fewer levels of recipes.",
            )
        inner = recipe.expand_step(renamed, catalog, depth)
        outputs = _find_unread_results(inner, catalog)
        kind = step.get("expected_output")
        every = outputs.get(kind, []) if kind else [k for keys in outputs.values() for k in keys]
        outputs_by_key[step["context_key"]] = {**outputs, FROM: every}
        steps += inner
        if len(steps) > max_steps:
            raise PlanError(
                f"The plan exceeds the limit of {max_steps} steps after its recipes are expanded.",
                fix="Plan fewer steps, or raise limits.max_steps.",
            )
        descriptions.append(
            f"recipe {recipe.name!r} (version {recipe.version}): {len(inner)} step(s)"
        )
    if not descriptions:
        return plan, []
    return ExecutionPlan(**{**plan, "steps": steps}), descriptions


def underlying_capabilities(name: str, catalog: Catalog) -> list[str]:
    """Return the names of the capabilities that run when a capability or recipe is called."""
    recipe = recipe_of(catalog.capabilities.get(name))
    if recipe is None:
        return [name]
    return [
        one for step in recipe.steps for one in underlying_capabilities(step["capability"], catalog)
    ]


def drop_overlapping(names: Iterable[str], catalog: Catalog) -> tuple[str, ...]:
    """Remove capabilities and recipes that overlap with an earlier, better-ranked name.

    Names overlap if they run the same capability. A recipe that overlaps only partly is also
    removed, because it would do more than requested.
    """
    chosen: dict[str, set[str]] = {}
    for name in names:
        capabilities = set(underlying_capabilities(name, catalog))
        if not any(capabilities & others for others in chosen.values()):
            chosen[name] = capabilities
    return tuple(chosen)


def order_by_use(recipes: Iterable[Recipe]) -> list[Recipe]:
    """Sort recipes so that each recipe comes after the recipes that it uses.

    Raises:
        RegistryError: The recipes depend on each other in a cycle.
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
            f"The recipes depend on each other in a cycle: {' → '.join(reversed(exc.args[1]))}.",
            fix="Remove one of them from the steps of another.",
        ) from None


async def _refuse_to_run(state: Any, **_: Any) -> None:
    """Raise an error, because plans must run a recipe's steps instead of the recipe itself."""
    raise CapabilityError(
        "A recipe cannot run as a step.", fix="Plan it; its steps replace it before the plan runs."
    )


def _rename_reads(
    step: Mapping[str, Any], known_keys: Collection[str], rename: _Rename
) -> dict[str, Any]:
    """Return a copy of a step with the context keys in its inputs and references renamed.

    Args:
        step: Step to copy.
        known_keys: Context keys that may be renamed.
        rename: Callback that maps an input label (or ``$from``) and a context key to the new
            keys.
    """

    def path(text: str) -> str:
        key = reference_key(text, known_keys)
        new = rename(FROM, key)
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
        for new in rename(label, key)
    ]
    return changed


def _fill_parameters(value: Any, values: Mapping[str, Any]) -> Any:
    """Replace references to a recipe's parameters with the parameter values."""
    if is_reference(value):
        key, _, name = str(value[FROM]).partition(".")
        return values.get(name, value) if key == PARAMETERS else value
    if isinstance(value, str):
        return _fill_placeholders(value, values)
    if isinstance(value, Mapping):
        return {part: _fill_parameters(inner, values) for part, inner in value.items()}
    return [_fill_parameters(one, values) for one in value] if isinstance(value, list) else value


def _fill_placeholders(text: str, values: Mapping[str, Any], *, strict: bool = True) -> str:
    """Fill in the parameter placeholders in a recipe's text.

    Args:
        text: Text with placeholders such as ``{place}``.
        values: Parameter values, keyed by name.
        strict: Whether to raise an error for a value that is not known yet. If false, the
            context key of the value is inserted instead.

    Raises:
        PlanError: A value is the result of a step that has not run.
    """
    length = len(text)

    def value_of(match: re.Match[str]) -> str:
        nonlocal length
        name = match[1]
        if name not in values:
            return match[0]
        value = values[name]
        key, _, outer = str(value[FROM] if is_reference(value) else "").partition(".")
        if key and key != PARAMETERS and strict:
            raise PlanError(
                f"The parameter {name!r} is used inside a text of the recipe, so it must be a "
                f"plain value, not the reference {value[FROM]!r}.",
                fix="Use a plain value, or plan the recipe after that step with look_again.",
            )
        # The enclosing recipe fills in the value of its own parameter.
        filled = f"{{{outer}}}" if key == PARAMETERS else str(value[FROM] if key else value)
        length += len(filled)
        if length > _LONGEST_TEXT:
            raise PlanError(
                f"A text of the recipe is longer than {_LONGEST_TEXT:,} characters with its"
                " parameters filled in.",
                fix="Use shorter values.",
            )
        return filled

    # A single pass: placeholders inside values are not replaced.
    return _PLACEHOLDER.sub(value_of, text)


def _find_referenced_parameters(step: Mapping[str, Any]) -> set[str]:
    """Return the names of the recipe parameters that a step refers to."""
    read = (*iter_references(step.get("parameters")), *wait_references(step))
    refers = [text.partition(".") for _, text in read]
    return {name for key, _, name in refers if key == PARAMETERS}


def _find_unread_results(
    steps: Sequence[Mapping[str, Any]], catalog: Catalog
) -> dict[str, list[str]]:
    """Return the context keys of unread results, grouped by context type.

    A result is unread if no other step of the recipe uses it.
    """
    keys = {step["context_key"] for step in steps}
    read = {one.key for step in steps for one in step_reads(step, keys)}
    found: dict[str, list[str]] = {}
    for step in steps:
        provides = catalog.capabilities[step["capability"]].provides
        kind = step.get("expected_output") or (provides[0] if len(provides) == 1 else None)
        if step["context_key"] not in read and kind:
            found.setdefault(kind, []).append(step["context_key"])
    return found


def _summarize_declaration(spec: CapabilitySpec) -> dict[str, Any]:
    """Summarize the parts of a capability's specification that a recipe depends on.

    The summary is saved with the recipe, to detect later changes.
    """
    schema = spec.parameters.model_json_schema() if spec.parameters is not None else None
    text = json.dumps(_remove_texts(schema), sort_keys=True, default=str)
    found = {
        "parameters": hashlib.sha256(text.encode()).hexdigest()[:16] if schema else None,
        "requires": [str(item) for item in spec.requires],
        "provides": list(spec.provides),
        "effect": spec.effect,
        "permission": spec.permission.name if spec.permission else None,
        "labels": list(spec.labels),
        "outside": spec.sends_externally,
        "requires_approval": bool(spec.requires_approval),
    }
    return {part: value for part, value in found.items() if value}


def _remove_texts(schema: Any) -> Any:
    """Remove titles, descriptions, and examples from a JSON schema, including nested schemas."""
    if isinstance(schema, Mapping):
        return {
            key: _remove_texts(value)
            for key, value in schema.items()
            if key not in _TEXT_KEYWORDS or isinstance(value, Mapping)
        }
    return [_remove_texts(one) for one in schema] if isinstance(schema, list) else schema


def _find_annotation(model: type[BaseModel] | None, path: Sequence[int | str], default: Any) -> Any:
    """Return the declared type of the parameter at a path, or a default if it is unknown."""
    kind: Any = model
    for part in path:
        fields = getattr(kind, "model_fields", {})
        info = next((f for n, f in fields.items() if part in (n, f.alias)), None)
        if info is None:
            return default
        kind = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
    return kind


def _convert_values(model: type[BaseModel] | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert parameter values to their declared types and omit the invalid values."""
    valid = {}
    for name, info in (model.model_fields if model is not None else {}).items():
        kind: Any = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        try:
            value = TypeAdapter(kind).validate_python(values[name])
            valid[name] = TypeAdapter(kind).dump_python(value, mode="json")
        except (KeyError, PydanticError):
            continue
    return valid
