"""Information flow control: data labels, and rules for where labeled data may be used.

Context types and capabilities declare labels (data-provenance tags, such as ``untrusted``). A label
propagates to every result derived from labeled data, and to the text of a plan whose author has
read such data. If labeled data would reach a step that the label forbids, the plan is denied, or a
person must approve it. The whole plan is checked, and each step is checked again with its actual
values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from capgraph.base.context import CapabilityContext, ResultFile
from capgraph.base.errors import ConfigurationError
from capgraph.base.plan import ExecutionPlan, PlannedStep, plan_key
from capgraph.base.ports import StepRecord, Verdict
from capgraph.base.spec import CapabilitySpec
from capgraph.base.value_context import list_item_types
from capgraph.planning import TERMINAL_STEPS, PlanVersion, carry_over, fingerprints
from capgraph.planning.plan_access import plan_stamp
from capgraph.planning.references import FROM, StoredKeys, step_reads, uses_signal
from capgraph.planning.waits import awaited_event
from capgraph.registry import Registry
from capgraph.state import STATE_KEYS, TurnView
from capgraph.state.turn_view import STATE_KIND

Labels = Mapping[str, str]
"""Data-provenance labels, each with a description of its source."""
Barrier = Literal["effect", "outside"]

UNTRUSTED = "untrusted"
SECRET = "secret"  # noqa: S105
_RULES: Mapping[str, tuple[Barrier, ...]] = {UNTRUSTED: ("effect",), SECRET: ("outside",)}
_TEXT = ""  # key of the labels of a step's text


class InformationFlow:
    """Policy that stops labeled data before it reaches a step that its label forbids.

    ``untrusted`` data must not reach the parameters or inputs of a capability with an effect.
    ``secret`` data must not reach a capability with ``sends_externally = True``. Custom labels
    propagate in the same way, and ``labels`` names the steps that they forbid. A person removes a
    label by approving the step. A capability that validates its input removes a label by declaring
    ``removes_labels``. A graph applies the policy as soon as a registered type or capability
    declares a label.

    Args:
        on_violation: ``ask`` to request a person's approval, or ``deny``. Without a saver that
            could store the request, ``ask`` means ``deny``.
        labels: Forbidden destinations of each custom label: ``effect``, ``outside``, or both. An
            entry for ``untrusted`` or ``secret`` replaces the default rule.

    Raises:
        ConfigurationError: A value is invalid.

    >>> policy = InformationFlow(on_violation="deny", labels={"personal": "outside"})
    >>> policy.rules["personal"]
    ('outside',)
    """

    def __init__(
        self,
        *,
        on_violation: Literal["ask", "deny"] = "ask",
        labels: Mapping[str, Barrier | Collection[Barrier]] | None = None,
    ) -> None:
        if on_violation not in ("ask", "deny"):
            raise ConfigurationError(
                f"on_violation is {on_violation!r}, which is not supported.",
                fix="Use 'ask' or 'deny'.",
            )
        custom: dict[str, Any] = {
            label: (destinations,) if isinstance(destinations, str) else tuple(destinations)
            for label, destinations in (labels or {}).items()
        }
        for label, destinations in custom.items():
            if unknown := sorted(set(destinations) - set(get_args(Barrier))):
                raise ConfigurationError(
                    f"The label {label!r} has unknown destinations {unknown}.",
                    fix="Use 'effect' or 'outside'.",
                )
        self.rules: Mapping[str, tuple[Barrier, ...]] = {**_RULES, **custom}
        self._on_violation = on_violation
        self._registry = Registry(infrastructure=())
        self._types: dict[str, tuple[str, ...]] = {}
        self._can_ask: Callable[[], bool] = lambda: True

    def bind(self, registry: Registry, can_ask: Callable[[], bool]) -> InformationFlow:
        """Return a copy of this information-flow policy for the registry of a graph.

        Args:
            registry: Registry of the graph.
            can_ask: Function that returns True if an approval request can be stored until it is
                answered.
        """
        bound = copy.copy(self)
        bound._registry, bound._types = registry, context_type_labels(registry)
        bound._can_ask = can_ask
        return bound

    # --- before anything runs -------------------------------------------------------------

    async def review(self, plan: ExecutionPlan, view: Any) -> Verdict:
        """Check a whole plan for data flows that the labels of its data do not permit.

        The check covers the labels of stored data and of the data that the plan's author has read.
        """
        steps = plan["steps"]
        finished = carry_over(view.plan if view.has_plan else None, plan, view.results).kept
        text_labels = plan_text_labels(plan, view)
        context_labels: dict[str, dict[str, Labels]] = {}
        problems: list[str] = []
        for step in steps:
            key = step["context_key"]
            spec = self._registry.capabilities.get(step["capability"])
            if spec is None or step["capability"] in TERMINAL_STEPS:
                continue
            inputs = self._collect_input_labels(
                step, spec, context_labels, view, text_labels.get(key, {})
            )
            if key not in finished:
                problems += self._find_problems(step, spec, inputs)
            context_labels[key] = self._compute_result_labels(spec, inputs, key, spec.provides)
        return self._create_verdict(problems)

    # --- just before a step, and after it -------------------------------------------------

    def labels_for_step(
        self,
        spec: CapabilitySpec,
        step: PlannedStep,
        view: TurnView,
        *,
        include_plan_text: bool = True,
    ) -> Labels:
        """Return the data labels of a step's inputs, each with its source.

        Args:
            spec: Specification of the capability.
            step: Planned step.
            view: View of the turn.
            include_plan_text: True to include the labels of the plan's text, unless a person
                approved it.
        """
        key = plan_key(step["context_key"])
        # At this stage, values have replaced the references, so the planned step is used.
        planned = view.steps_by_key.get(key, step)
        if planned.get("capability") != step["capability"]:
            planned = step
        history = view.state.get("planning_history") or []
        text_labels = history[-1].get("labels") or {} if include_plan_text and history else {}
        return self._collect_input_labels(planned, spec, {}, view, text_labels.get(key, {}))

    def check(self, spec: CapabilitySpec, step: PlannedStep, labels: Labels) -> Verdict:
        """Decide whether data with the given labels may be passed to a step."""
        return self._create_verdict(self._find_problems(step, spec, labels))

    def label_record(
        self, record: StepRecord, spec: CapabilitySpec, labels: Labels, view: TurnView
    ) -> StepRecord:
        """Return a copy of a step's record with data labels added to its results."""
        kinds = {*record.contexts, *(record.updates.get("capability_context_data") or {})}
        kinds |= {f"{STATE_KIND}{name}" for name in record.updates if name not in STATE_KEYS}
        stored = view.labels
        found = {
            kind: own
            for kind, own in self._compute_result_labels(spec, labels, record.key, kinds).items()
            # An unlabeled result is recorded only if it replaces a known label.
            if own or self._types.get(kind) or stored.get(kind, {}).get(record.key)
        }
        return replace(record, labels=found)

    # --- how labels travel ----------------------------------------------------------------

    def _collect_input_labels(
        self,
        step: PlannedStep,
        spec: CapabilitySpec,
        context_labels: Mapping[str, Mapping[str, Labels]],
        view: TurnView,
        text_labels: Labels,
    ) -> Labels:
        """Collect the data labels of a planned step's inputs, each with its source."""
        found: dict[str, str] = {}
        kinds = {need.label: need.type for need in spec.requires}
        for read in step_reads(step, StoredKeys({"": context_labels, **view.contexts})):
            kind = None if read.label == FROM else kinds.get(read.label, read.label)
            key_labels = context_labels.get(read.key) or dict(
                self._iterate_context_labels(read.key, view)
            )
            # A list has another type name; in that case, all contexts of the key count.
            type_labels = key_labels.get(kind) if kind is not None else None
            for labels in key_labels.values() if type_labels is None else [type_labels]:
                found = {**labels, **found}
        if uses_signal(step):  # the sender is external
            found.setdefault("untrusted", f"the event {awaited_event(step)[0]!r}")
        return {
            **{label: _describe_plan_source(source) for label, source in text_labels.items()},
            **found,
        }

    def _iterate_context_labels(self, key: str, view: TurnView) -> Iterator[tuple[str, Labels]]:
        for kind, entries in view.contexts.items():
            if key in entries:
                yield kind, self.stored_labels(kind, key, view)

    def stored_labels(self, kind: str, key: str, view: TurnView) -> Labels:
        """Return the data labels of a stored context object."""
        recorded = view.labels.get(kind, {}).get(key)
        if recorded is not None:
            return recorded
        return dict.fromkeys(self._types.get(kind, ()), f"the stored {kind} {key!r}")

    def thread_labels(self, view: TurnView) -> Labels:
        """Return the labels of all data in a thread, including failures and earlier answers."""
        found = dict(view.thread_labels)
        for kind, entries in view.contexts.items():
            for key in entries:
                found = {**self.stored_labels(kind, key, view), **found}
        return found

    def proposer_labels(self, capability: str, view: TurnView) -> Labels:
        """Return the data labels that apply to a plan proposed by a capability.

        These are the labels of the capability's inputs and results.
        """
        found: Labels = {}
        for step in view.steps:
            if step["capability"] == capability and step["context_key"] in view.succeeded_keys:
                spec = self._registry.capabilities[capability]
                reaches = self.labels_for_step(spec, step, view)
                own = self._compute_result_labels(
                    spec, reaches, step["context_key"], spec.provides
                )[_TEXT]
                found = {**own, **found}
        return found

    def note_labels(self, capabilities: Collection[str]) -> Labels:
        """Return the data labels of the notes that capabilities add to model prompts."""
        return {
            label: f"notes of {name!r}"
            for name in capabilities
            for label in self._registry.capabilities[name].labels
        }

    def _compute_result_labels(
        self, spec: CapabilitySpec, reaches: Labels, key: str, kinds: Collection[str]
    ) -> dict[str, Labels]:
        """Return the data labels of a step's text and of each type of result."""
        derived = {label: at for label, at in reaches.items() if label not in spec.removes_labels}
        own = {**dict.fromkeys(spec.labels, f"step {key!r} ({spec.name})"), **derived}
        found: dict[str, Labels] = {
            _TEXT: {**self._collect_type_labels(spec, key, spec.provides), **own}
        }
        for kind in kinds:
            # A result file contains data of all declared types.
            types = spec.output_types if kind == ResultFile.CONTEXT_TYPE else [kind]
            found[kind] = {**self._collect_type_labels(spec, key, types), **own}
        return found

    def _collect_type_labels(
        self, spec: CapabilitySpec, key: str, kinds: Collection[str]
    ) -> Labels:
        return {
            label: f"{kind} of step {key!r} ({spec.name})"
            for kind in kinds
            for label in self._types.get(kind, ())
        }

    # --- what is wrong --------------------------------------------------------------------

    def _find_problems(self, step: PlannedStep, spec: CapabilitySpec, inputs: Labels) -> list[str]:
        applies = {"effect": spec.effect != "none", "outside": spec.sends_externally}
        descriptions = {
            "effect": f"a capability with effect={spec.effect!r}",
            "outside": "a capability that sends data externally",
        }
        return [
            f"Data with the label {label!r}, from {source}, would reach step"
            f" {step['context_key']!r} ({spec.name}), {descriptions[barrier]}."
            for label, source in inputs.items()
            for barrier in self.rules.get(label, ())
            if applies[barrier]
        ]

    def _create_verdict(self, problems: list[str]) -> Verdict:
        if not problems:
            return Verdict()
        return Verdict(self._on_violation if self._can_ask() else "deny", problems)


def context_type_labels(registry: Registry) -> dict[str, tuple[str, ...]]:
    """Return the data labels (provenance tags) of each context type, including nested types."""
    types = registry.context_types
    items = list_item_types(types.values())
    found: dict[str, set[str]] = {}
    for kind, cls in types.items():
        inside = [cls, *nested_context_types(cls, set())]
        if kind in items and items[kind] in types:
            inside.append(types[items[kind]])
        found[kind] = {label for one in inside for label in _get_declared_labels(one)}
    return {kind: tuple(sorted(labels)) for kind, labels in found.items() if labels}


def declares_labels(registry: Registry) -> bool:
    """Return True if any registered context type or capability declares a data label."""
    return bool(context_type_labels(registry)) or any(
        spec.labels or spec.removes_labels for spec in registry.capabilities.values()
    )


def _get_declared_labels(cls: type[CapabilityContext]) -> Collection[str]:
    # A field named labels is data, not a declaration.
    return () if "labels" in cls.model_fields else getattr(cls, "labels", ())


def nested_context_types(
    cls: type[Any], visited: set[type[Any]]
) -> Iterator[type[CapabilityContext]]:
    """Yield the context types that are nested in the fields of a class, at any depth.

    Args:
        cls: Class whose fields are searched.
        visited: Classes to omit. The function adds the classes that it visits.
    """
    for info in cls.model_fields.values():
        parts = [info.annotation]
        while parts:
            part = parts.pop()
            parts += get_args(part)
            if isinstance(part, type) and hasattr(part, "model_fields") and part not in visited:
                visited.add(part)
                if issubclass(part, CapabilityContext):
                    yield part
                yield from nested_context_types(part, visited)


def plan_text_labels(plan: ExecutionPlan, view: TurnView) -> dict[str, Labels]:
    """Return the data labels of each step's text, by context key.

    A step's text inherits the labels of the data that the plan's author had read. Steps that an
    earlier plan of the turn contained without labels are omitted.
    """
    labels = plan_stamp(plan).get("labels")
    if not labels:
        return {}
    history: Sequence[PlanVersion] = view.state.get("planning_history") or []
    clean = {
        text
        for version in history
        for key, text in _get_step_texts(version["plan"]).items()
        if key not in version.get("labels", {})
    }
    return {key: labels for key, text in _get_step_texts(plan).items() if text not in clean}


def _get_step_texts(plan: ExecutionPlan) -> dict[str, tuple[str, str]]:
    """Return the fingerprint and the objective of each plan step, by context key."""
    objectives = {step["context_key"]: step.get("task_objective") or "" for step in plan["steps"]}
    return {key: (name, objectives[key]) for key, name in fingerprints(plan).items()}


def _describe_plan_source(source: str) -> str:
    prefix = "text of the plan, whose author had seen "
    return source if source.startswith(prefix) else prefix + source
