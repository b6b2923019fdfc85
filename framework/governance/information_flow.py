"""Information flow: what may not reach an effect, and what may not leave, found before it runs.

Data carries labels. They begin at a context type or a capability that declares them, travel with
every result that was made from it, and with every word of a plan whose author had it before him.
Where labelled data would reach something that its label forbids, the plan is refused or a person is
asked; and the same is looked at again just before the step, with the values that are there then.
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
"""Label to where it comes from, in words."""
Barrier = Literal["effect", "outside"]

UNTRUSTED = "untrusted"
SECRET = "secret"  # noqa: S105
_RULES: Mapping[str, tuple[Barrier, ...]] = {UNTRUSTED: ("effect",), SECRET: ("outside",)}
_WORDS = ""  # stands for a step's words among the types of what it gives


class InformationFlow:
    """Stops labelled data before it goes where its label forbids.

    ``untrusted`` data does not reach the parameters or inputs of a capability with an effect, and
    ``secret`` data does not reach one with ``sends_externally = True``; a label of one's own travels, and
    stops where ``labels`` says. A person takes a label off by agreeing to the very step, a
    capability by declaring ``removes_labels``: it checks what it is given. A graph has the
    check as soon as anything that is registered declares a label.

    Args:
        on_violation: ``ask`` a person, which is ``deny`` where no question could be kept; or ``deny``.
        labels: Where data with a label of one's own must not go: ``effect``, ``outside`` or both.
            A rule for ``untrusted`` or ``secret`` takes the place of the usual one.

    Raises:
        ConfigurationError: A value is none of these.

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
                f"on_violation is {on_violation!r}.", fix="Use 'ask' or 'deny'."
            )
        given: dict[str, Any] = {
            label: (where,) if isinstance(where, str) else tuple(where)
            for label, where in (labels or {}).items()
        }
        for label, where in given.items():
            if unknown := sorted(set(where) - set(get_args(Barrier))):
                raise ConfigurationError(
                    f"The label {label!r} is to stop at {unknown}.",
                    fix="Use 'effect' or 'outside'.",
                )
        self.rules: Mapping[str, tuple[Barrier, ...]] = {**_RULES, **given}
        self._verdict = on_violation
        self._registry = Registry(infrastructure=())
        self._types: dict[str, tuple[str, ...]] = {}
        self._may_ask: Callable[[], bool] = lambda: True

    def bind(self, registry: Registry, can_ask: Callable[[], bool]) -> InformationFlow:
        """Return this check for the capabilities and types of a graph.

        Args:
            registry: What the graph is made of.
            can_ask: Whether a question would be kept until a person answers it.
        """
        bound = copy.copy(self)
        bound._registry, bound._types = registry, context_type_labels(registry)
        bound._may_ask = can_ask
        return bound

    # --- before anything runs -------------------------------------------------------------

    async def review(self, plan: ExecutionPlan, view: Any) -> Verdict:
        """Look at a whole plan, with what is stored and what its author had before him."""
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
        """Return the labels of what a step is given.

        Args:
            spec: The capability.
            step: The step.
            view: The turn.
            include_plan_text: Whether the plan's own words count; a person may have agreed to them.
        """
        key = plan_key(step["context_key"])
        # What reaches the stage has values in the place of its references; the plan has these.
        planned = view.steps_by_key.get(key, step)
        if planned.get("capability") != step["capability"]:
            planned = step
        history = view.state.get("planning_history") or []
        said = history[-1].get("labels") or {} if include_plan_text and history else {}
        return self._reaching(planned, spec, {}, view, said.get(key, {}))

    def check(self, spec: CapabilitySpec, step: PlannedStep, labels: Labels) -> Verdict:
        """Say whether data with some labels may reach a step."""
        return self._said(self._problems(step, spec, labels))

    def label_record(
        self, record: StepRecord, spec: CapabilitySpec, labels: Labels, view: TurnView
    ) -> StepRecord:
        """Say of what a step left behind which labels it carries."""
        kinds = {*record.contexts, *(record.updates.get("capability_context_data") or {})}
        known = view.labels
        found = {
            kind: own
            for kind, own in self._gives(spec, labels, record.key, kinds).items()
            # What carries nothing leaves word of it where something is known already.
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
        """Return the labels of all that a step is given."""
        found: dict[str, str] = {}
        kinds = {need.label: need.type for need in spec.requires}
        for read in step_reads(step, StoredKeys({"": given, **view.contexts})):
            kind = None if read.label == FROM else kinds.get(read.label, read.label)
            made = given.get(read.key) or dict(self._stored(read.key, view))
            # A list of a type goes by its own name; then all that bears the key counts.
            one = made.get(kind) if kind is not None else None
            for labels in made.values() if one is None else [one]:
                found = {**labels, **found}
        if uses_signal(step):  # whoever sends it is outside
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
        """Return the labels of all that the thread holds: results, failures, earlier answers."""
        found = dict(view.thread_labels)
        for kind, entries in view.contexts.items():
            for key in entries:
                found = {**self.stored_labels(kind, key, view), **found}
        return found

    def proposer_labels(self, capability: str, view: TurnView) -> Labels:
        """Return the labels of what a capability, which proposes a plan, was given or has itself."""
        found: Labels = {}
        for step in view.steps:
            if step["capability"] == capability and step["context_key"] in view.succeeded_keys:
                spec = self._registry.capabilities[capability]
                reaches = self.labels_for_step(spec, step, view)
                own = self._gives(spec, reaches, step["context_key"], spec.provides)[_WORDS]
                found = {**own, **found}
        return found

    def note_labels(self, capabilities: Collection[str]) -> Labels:
        """Return the labels of what capabilities say about the state at hand."""
        return {
            label: f"what {name!r} notes"
            for name in capabilities
            for label in self._registry.capabilities[name].labels
        }

    def _gives(
        self, spec: CapabilitySpec, reaches: Labels, key: str, kinds: Collection[str]
    ) -> dict[str, Labels]:
        """Return the labels of what a step gives, by type; and of its words."""
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
            "effect": f"which acts on the world ({spec.effect})",
            "outside": "through which data leaves",
        }
        return [
            f"Data labelled {label!r}, from {source}, would reach step {step['context_key']!r}:"
            f" {spec.name}, {told[barrier]}."
            for label, source in reaches.items()
            for barrier in self.rules.get(label, ())
            if here[barrier]
        ]

    def _said(self, problems: list[str]) -> Verdict:
        if not problems:
            return Verdict()
        return Verdict(self._verdict if self._may_ask() else "deny", problems)


def context_type_labels(registry: Registry) -> dict[str, tuple[str, ...]]:
    """Return the labels of each context type, with those of the types inside it."""
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
    """Tell whether anything that is registered declares a label."""
    return bool(context_type_labels(registry)) or any(
        spec.labels or spec.removes_labels for spec in registry.capabilities.values()
    )


def _declared(cls: type[CapabilityContext]) -> Collection[str]:
    # A field of that name is data of the type, not something said about it.
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
    """Return the labels of each step's own words, by context key.

    They are those of all that the plan's author had before him, which its stamp says; a step that
    stood so in an earlier plan of the turn, without a label, carries none now.
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
    """Name what each step does and what it is for."""
    objectives = {step["context_key"]: step.get("task_objective") or "" for step in plan["steps"]}
    return {key: (name, objectives[key]) for key, name in fingerprints(plan).items()}


def _written(source: str) -> str:
    told = "the plan's own words, whose author had before him "
    return source if source.startswith(told) else told + source
