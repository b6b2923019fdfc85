"""Information flow control: taint labels, and the rules for where labeled data may go.

Context types and capabilities declare labels. A label propagates to every result derived from
labeled data, and to the text of a plan whose author has seen such data. If labeled data would reach
a step that its label forbids, the plan is denied or a person is asked. The check runs on the whole
plan, and again before each step with the actual values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from capgraph.base.context import CapabilityContext
from capgraph.base.errors import ConfigurationError
from capgraph.base.plan import ExecutionPlan, PlannedStep, plan_key
from capgraph.base.ports import StepRecord, Verdict
from capgraph.base.spec import CapabilitySpec
from capgraph.base.value_context import list_item_types
from capgraph.planning import TERMINAL_STEPS, PlanVersion, carry_over, fingerprints
from capgraph.planning.references import FROM, StoredKeys, step_reads, uses_signal
from capgraph.planning.waits import awaited_event
from capgraph.registry import Registry
from capgraph.state import TurnView

Labels = Mapping[str, str]
"""Taint labels, each with a description of its source."""
Barrier = Literal["effect", "outside"]

UNTRUSTED = "untrusted"
SECRET = "secret"  # noqa: S105
_RULES: Mapping[str, tuple[Barrier, ...]] = {UNTRUSTED: ("effect",), SECRET: ("outside",)}
_WORDS = ""  # key of the labels of a step's text


class InformationFlow:
    """Policy that stops labeled data before it reaches a step that its label forbids.

    ``untrusted`` data must not reach the parameters or inputs of a capability with an effect.
    ``secret`` data must not reach a capability with ``sends_externally = True``. Custom labels
    propagate in the same way and stop where ``labels`` says. A person removes a label by approving
    the step; a capability removes it by declaring ``removes_labels``, which means that it checks
    its input. A graph applies the policy as soon as a registered type or capability declares a
    label.

    Args:
        on_violation: ``ask`` a person, or ``deny``. Without a saver that could store the question,
            ``ask`` means ``deny``.
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
                f"Invalid on_violation {on_violation!r}.", fix="Use 'ask' or 'deny'."
            )
        given: dict[str, Any] = {
            label: (where,) if isinstance(where, str) else tuple(where)
            for label, where in (labels or {}).items()
        }
        for label, where in given.items():
            if unknown := sorted(set(where) - set(get_args(Barrier))):
                raise ConfigurationError(
                    f"The label {label!r} has unknown destinations {unknown}.",
                    fix="Use 'effect' or 'outside'.",
                )
        self.rules: Mapping[str, tuple[Barrier, ...]] = {**_RULES, **given}
        self._verdict = on_violation
        self._registry = Registry(infrastructure=())
        self._types: dict[str, tuple[str, ...]] = {}
        self._may_ask: Callable[[], bool] = lambda: True

    def bind(self, registry: Registry, can_ask: Callable[[], bool]) -> InformationFlow:
        """Return this policy for the capabilities and types of a graph.

        Args:
            registry: Registry of the graph.
            can_ask: Function that returns whether a question can be stored until it is answered.
        """
        bound = copy.copy(self)
        bound._registry, bound._types = registry, context_type_labels(registry)
        bound._may_ask = can_ask
        return bound

    # --- before anything runs -------------------------------------------------------------

    async def review(self, plan: ExecutionPlan, view: Any) -> Verdict:
        """Check a whole plan, given the stored data and the data that its author has seen."""
        steps = plan["steps"]
        done = carry_over(view.plan if view.has_plan else None, plan, view.results).kept
        words = plan_text_labels(plan, view)
        given: dict[str, dict[str, Labels]] = {}
        problems: list[str] = []
        for step in steps:
            key = step["context_key"]
            spec = self._registry.capabilities.get(step["capability"])
            if spec is None or step["capability"] in TERMINAL_STEPS:
                continue
            reaches = self._reaching(step, spec, given, view, words.get(key, {}))
            if key not in done:
                problems += self._problems(step, spec, reaches)
            given[key] = self._gives(spec, reaches, key, spec.provides)
        return self._said(problems)

    # --- just before a step, and after it -------------------------------------------------

    def labels_for_step(
        self,
        spec: CapabilitySpec,
        step: PlannedStep,
        view: TurnView,
        *,
        include_plan_text: bool = True,
    ) -> Labels:
        """Return the labels of a step's inputs.

        Args:
            spec: Specification of the capability.
            step: The step.
            view: State of the turn.
            include_plan_text: True to include the labels of the plan's text, unless a person
                approved it.
        """
        key = plan_key(step["context_key"])
        # At this stage, values have replaced the references, so the planned step is used.
        planned = view.steps_by_key.get(key, step)
        if planned.get("capability") != step["capability"]:
            planned = step
        history = view.state.get("planning_history") or []
        said = history[-1].get("labels") or {} if include_plan_text and history else {}
        return self._reaching(planned, spec, {}, view, said.get(key, {}))

    def check(self, spec: CapabilitySpec, step: PlannedStep, labels: Labels) -> Verdict:
        """Decide whether data with these labels may reach a step."""
        return self._said(self._problems(step, spec, labels))

    def label_record(
        self, record: StepRecord, spec: CapabilitySpec, labels: Labels, view: TurnView
    ) -> StepRecord:
        """Return the record of a step with the labels of its results."""
        kinds = {*record.contexts, *(record.updates.get("capability_context_data") or {})}
        known = view.labels
        found = {
            kind: own
            for kind, own in self._gives(spec, labels, record.key, kinds).items()
            # An unlabeled result is recorded only if it replaces a known label.
            if own or self._types.get(kind) or known.get(kind, {}).get(record.key)
        }
        return replace(record, labels=found)

    # --- how labels travel ----------------------------------------------------------------

    def _reaching(
        self,
        step: PlannedStep,
        spec: CapabilitySpec,
        given: Mapping[str, Mapping[str, Labels]],
        view: TurnView,
        words: Labels,
    ) -> Labels:
        """Return the labels of a step's inputs."""
        found: dict[str, str] = {}
        kinds = {need.label: need.type for need in spec.requires}
        for read in step_reads(step, StoredKeys({"": given, **view.contexts})):
            kind = None if read.label == FROM else kinds.get(read.label, read.label)
            made = given.get(read.key) or dict(self._stored(read.key, view))
            # A list has another type name; in that case, all contexts of the key count.
            one = made.get(kind) if kind is not None else None
            for labels in made.values() if one is None else [one]:
                found = {**labels, **found}
        if uses_signal(step):  # the sender is external
            found.setdefault("untrusted", f"the event {awaited_event(step)[0]!r}")
        return {**{label: _written(source) for label, source in words.items()}, **found}

    def _stored(self, key: str, view: TurnView) -> Iterator[tuple[str, Labels]]:
        for kind, entries in view.contexts.items():
            if key in entries:
                yield kind, self.stored_labels(kind, key, view)

    def stored_labels(self, kind: str, key: str, view: TurnView) -> Labels:
        """Return the labels of a stored context."""
        told = view.labels.get(kind, {}).get(key)
        if told is not None:
            return told
        return dict.fromkeys(self._types.get(kind, ()), f"the stored {kind} {key!r}")

    def thread_labels(self, view: TurnView) -> Labels:
        """Return the labels of all data in the thread: results, failures, and earlier answers."""
        found = dict(view.thread_labels)
        for kind, entries in view.contexts.items():
            for key in entries:
                found = {**self.stored_labels(kind, key, view), **found}
        return found

    def proposer_labels(self, capability: str, view: TurnView) -> Labels:
        """Return the labels of the inputs and results of a capability that proposes a plan."""
        found: Labels = {}
        for step in view.steps:
            if step["capability"] == capability and step["context_key"] in view.succeeded_keys:
                spec = self._registry.capabilities[capability]
                reaches = self.labels_for_step(spec, step, view)
                own = self._gives(spec, reaches, step["context_key"], spec.provides)[_WORDS]
                found = {**own, **found}
        return found

    def note_labels(self, capabilities: Collection[str]) -> Labels:
        """Return the labels of the notes that capabilities add to prompts."""
        return {
            label: f"notes of {name!r}"
            for name in capabilities
            for label in self._registry.capabilities[name].labels
        }

    def _gives(
        self, spec: CapabilitySpec, reaches: Labels, key: str, kinds: Collection[str]
    ) -> dict[str, Labels]:
        """Return the labels of a step's results by type, and of its text."""
        derived = {label: at for label, at in reaches.items() if label not in spec.removes_labels}
        own = {**dict.fromkeys(spec.labels, f"step {key!r} ({spec.name})"), **derived}
        found: dict[str, Labels] = {_WORDS: {**self._of_types(spec, key, spec.provides), **own}}
        for kind in kinds:
            found[kind] = {**self._of_types(spec, key, [kind]), **own}
        return found

    def _of_types(self, spec: CapabilitySpec, key: str, kinds: Collection[str]) -> Labels:
        return {
            label: f"{kind} of step {key!r} ({spec.name})"
            for kind in kinds
            for label in self._types.get(kind, ())
        }

    # --- what is wrong --------------------------------------------------------------------

    def _problems(self, step: PlannedStep, spec: CapabilitySpec, reaches: Labels) -> list[str]:
        here = {"effect": spec.effect != "none", "outside": spec.sends_externally}
        told = {
            "effect": f"a capability with effect={spec.effect!r}",
            "outside": "a capability that sends data externally",
        }
        return [
            f"Data with the label {label!r}, from {source}, would reach step"
            f" {step['context_key']!r} ({spec.name}), {told[barrier]}."
            for label, source in reaches.items()
            for barrier in self.rules.get(label, ())
            if here[barrier]
        ]

    def _said(self, problems: list[str]) -> Verdict:
        if not problems:
            return Verdict()
        return Verdict(self._verdict if self._may_ask() else "deny", problems)


def context_type_labels(registry: Registry) -> dict[str, tuple[str, ...]]:
    """Return the labels of each context type, including those of nested types."""
    types = registry.context_types
    items = list_item_types(types.values())
    found: dict[str, set[str]] = {}
    for kind, cls in types.items():
        inside = [cls, *_types_inside(cls, set())]
        if kind in items and items[kind] in types:
            inside.append(types[items[kind]])
        found[kind] = {label for one in inside for label in _declared(one)}
    return {kind: tuple(sorted(labels)) for kind, labels in found.items() if labels}


def declares_labels(registry: Registry) -> bool:
    """Return whether a registered type or capability declares a label."""
    return bool(context_type_labels(registry)) or any(
        spec.labels or spec.removes_labels for spec in registry.capabilities.values()
    )


def _declared(cls: type[CapabilityContext]) -> Collection[str]:
    # A field named labels is data, not a declaration.
    return () if "labels" in cls.model_fields else getattr(cls, "labels", ())


def _types_inside(cls: type[Any], seen: set[type[Any]]) -> Iterator[type[CapabilityContext]]:
    for info in cls.model_fields.values():
        parts = [info.annotation]
        while parts:
            part = parts.pop()
            parts += get_args(part)
            if isinstance(part, type) and hasattr(part, "model_fields") and part not in seen:
                seen.add(part)
                if issubclass(part, CapabilityContext):
                    yield part
                yield from _types_inside(part, seen)


def plan_text_labels(plan: ExecutionPlan, view: TurnView) -> dict[str, Labels]:
    """Return the labels of each step's text, by context key.

    The labels are those of the data that the plan's author had seen, which the plan's stamp
    records. A step that an earlier plan of the turn contained without labels has none.
    """
    labels = (plan.get("stamp") or {}).get("labels")
    if not labels:
        return {}
    history: Sequence[PlanVersion] = view.state.get("planning_history") or []
    clean = {
        said
        for version in history
        for key, said in _said(version["plan"]).items()
        if key not in version.get("labels", {})
    }
    return {key: labels for key, said in _said(plan).items() if said not in clean}


def _said(plan: ExecutionPlan) -> dict[str, tuple[str, str]]:
    """Return the fingerprint and objective of each step, by context key."""
    objectives = {step["context_key"]: step.get("task_objective") or "" for step in plan["steps"]}
    return {key: (name, objectives[key]) for key, name in fingerprints(plan).items()}


def _written(source: str) -> str:
    told = "text of the plan, whose author had seen "
    return source if source.startswith(told) else told + source
