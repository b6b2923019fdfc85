"""Planning without a model: backward chaining over the types that capabilities require and provide."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from capgraph.base import CapabilitySpec, ExecutionPlan, PlanError, PlannedStep, Requirement
from capgraph.configs.suggestions import suggest_fix
from capgraph.planning.catalog import (
    MANY_SUFFIX,
    TERMINAL_STEPS,
    Available,
    Catalog,
    available_contexts,
    required_type,
    satisfied_types,
    types_satisfied_by,
)
from capgraph.planning.graph_algorithms import reachable_from
from capgraph.planning.plan_access import is_context_key, make_context_key, plan_steps
from capgraph.planning.plan_view import PlanView, join_names
from capgraph.planning.request_values import RequestValues
from capgraph.planning.step_builders import build_respond_step, build_step


def chain_plan(
    task: str,
    selected: Sequence[str],
    catalog: Catalog,
    available: Available | None = None,
    *,
    previous: ExecutionPlan | None = None,
) -> ExecutionPlan:
    """Create a plan from the selected capabilities and their dependencies, without a model.

    The supplier of each input is the first of the following that exists:

    1. a selected capability that provides its type,
    2. a stored context,
    3. the cheapest capability that can be included automatically.

    Further rules:

    - A stored context is outdated, and not used, if its producer would now read something that a
      selected capability provides again.
    - A capability that requires and provides the same type, such as a filter, runs between the
      other producers and the readers of that type.
    - An optional input is linked if a capability of the plan or the caller supplies it. A ``many``
      input takes all values.
    - A capability that would run with its defaults is replaced by one that provides the same types
      and reads a parameter from the request.

    Equal arguments return equal plans.

    Args:
        task: The request, which becomes the objective of every step.
        selected: Names of the selected capabilities. Their order breaks ties.
        catalog: Available capabilities.
        available: Stored context keys by type, the newest last.
        previous: Plan to replace. The new plan uses the same context keys for the same
            capabilities, so that finished results can be reused.

    Raises:
        PlanError: A capability is unknown, an input has no supplier, or the request does not
            contain a required parameter.

    >>> from capgraph.base import CapabilitySpec, Requirement
    >>> from capgraph.planning import StaticCatalog
    >>> catalog = StaticCatalog.of(
    ...     CapabilitySpec("fetch", "Fetch readings.", provides=("DATA",)),
    ...     CapabilitySpec("average", "Average them.", provides=("MEAN",),
    ...                    requires=(Requirement("DATA"),)),
    ... )
    >>> plan = chain_plan("What is the mean?", ["average"], catalog)
    >>> [(step["context_key"], step["inputs"]) for step in plan["steps"]]
    [('data', []), ('mean', [{'DATA': 'data'}]), ('user_response', [{'MEAN': 'mean'}])]
    """
    stored = available_contexts(available or {}, catalog)
    values = RequestValues(catalog, task)
    suppliers = _Suppliers(
        values.prefer_request_readers(_check_registered(selected, catalog)), catalog, values
    )
    parameters = {name: values.read(name) for name in suppliers.names}
    usable, chosen = suppliers.choose(stored)
    if (missing := suppliers.find_missing(chosen, usable)) is not None:
        # Follow the chain of requirements to the one that nothing can satisfy.
        assumed = usable | {kind: [] for kind in suppliers.unsupplied_types() - usable.keys()}
        extended = suppliers.include_producers(assumed)
        raise _unsupplied_error(
            *(suppliers.find_missing(extended, usable) or missing), catalog, values
        )
    order = suppliers.sort_by_inputs(suppliers.prune(chosen, usable), usable)
    parameters |= {name: values.read(name) for name in order}
    return _create_plan(task, order, catalog, stored, usable, previous, parameters)


def requires_closure(
    selected: Iterable[str], catalog: Catalog, available: Available | None = None, *, task: str = ""
) -> tuple[str, ...]:
    """Return the selected capabilities and all capabilities that they depend on.

    Types that the caller supplies require no capability. A type that no capability provides is
    ignored, because the planner reports it.

    Args:
        selected: Names of the selected capabilities. Unknown names are ignored.
        catalog: Available capabilities.
        available: Stored context keys by type. If omitted, producers are included even if an
            earlier result is stored.
        task: The request, from which capabilities may read their parameters.

    >>> from capgraph.base import CapabilitySpec, Requirement
    >>> from capgraph.planning import StaticCatalog
    >>> catalog = StaticCatalog.of(
    ...     CapabilitySpec("fetch", "Fetch readings.", provides=("DATA",)),
    ...     CapabilitySpec("average", "Average them.", requires=(Requirement("DATA"),)),
    ... )
    >>> requires_closure(["average"], catalog)
    ('average', 'fetch')
    """
    names = [name for name in dict.fromkeys(selected) if name in catalog.capabilities]
    stored = available_contexts(
        {kind: ["given"] for kind in catalog.provided_types} | dict(available or {}), catalog
    )
    values = RequestValues(catalog, task)
    suppliers = _Suppliers(values.prefer_request_readers(names), catalog, values)
    usable, chosen = suppliers.choose(stored)
    return tuple(suppliers.prune(chosen, usable))


def _check_registered(selected: Sequence[str], catalog: Catalog) -> list[str]:
    names = []
    for name in dict.fromkeys(selected):
        if name in catalog.capabilities:
            names.append(name)
        elif name not in TERMINAL_STEPS:
            raise PlanError(
                f"The selected capability {name!r} is not registered.",
                fix=suggest_fix(name, candidates=catalog.capabilities),
            )
    return names


def _unsupplied_error(
    reader: str, input_type: str, catalog: Catalog, values: RequestValues
) -> PlanError:
    context_type = input_type.removesuffix(MANY_SUFFIX)
    if context_type in catalog.provided_types:
        return PlanError(
            f"{reader!r} requires {context_type}, which the caller did not provide.",
            fix=f"Pass {context_type} with the request.",
        )
    producers = [
        name
        for name, spec in catalog.capabilities.items()
        if input_type in types_satisfied_by(spec)
    ]
    effects = [name for name in producers if not values.can_auto_include(name)]
    unread = [problem for name in producers if (problem := values.read_error(name)) is not None]
    if unread and len(unread) == len(producers):
        return unread[0]
    if not producers:
        return PlanError(
            f"{reader!r} requires {context_type}: no capability provides it and no context of this"
            " type is stored.",
            fix=f"Register a capability that provides {context_type}, or pass it with the request.",
        )
    if effects == producers:
        return PlanError(
            f"{reader!r} requires {context_type}: only {join_names(producers)} provides it, has effects"
            " or required parameters, and was not selected.",
            fix="Ask for it in the request, or set requires_approval so that a person decides.",
        )
    return PlanError(
        f"{reader!r} requires {context_type}: {join_names(producers)} provides it, but has an input"
        " that nothing supplies.",
        fix=f"Pass {context_type}, or the input of its producer, with the request.",
    )


class _Suppliers:
    """Resolver of capability dependencies: chooses and orders the producers of required inputs.

    Input types are context types, with ``*`` appended if an input takes many values.

    Args:
        names: Names of the selected capabilities.
        catalog: Available capabilities.
        values: Parameter values that the request contains.
    """

    def __init__(self, names: list[str], catalog: Catalog, values: RequestValues) -> None:
        self.names = names
        self.values = values
        self.specs = catalog.capabilities
        self.caller_types = set(satisfied_types(catalog.provided_types, {}))
        self.outputs = {name: types_satisfied_by(spec) for name, spec in self.specs.items()}
        self.inputs = {
            name: {
                required_type(requirement)
                for requirement in spec.requires
                if requirement.cardinality != "optional"
            }
            for name, spec in self.specs.items()
        }

    # Choosing: which capabilities take part.

    def choose(self, stored: dict[str, list[str]]) -> tuple[dict[str, list[str]], list[str]]:
        """Choose which stored contexts to use and which capabilities to plan.

        Args:
            stored: Keys of the stored contexts, by input type.

        Returns:
            The keys of the usable contexts by input type, and the names of the capabilities.
        """
        outdated_types = self.outdated_types() - self.caller_types
        fresh = {kind: keys for kind, keys in stored.items() if kind not in outdated_types}
        chosen = self.include_producers(fresh)
        if self.find_missing(chosen, fresh) is None or len(fresh) == len(stored):
            return fresh, chosen
        # An outdated result is better than no plan.
        return stored, self.include_producers(stored)

    def outdated_types(self) -> set[str]:
        """Return the input types whose stored contexts become outdated.

        Like the targets of a build, these are all results downstream of a selected capability,
        including results that depend on it through optional inputs.
        """
        newly_provided = {kind for name in self.names for kind in self.outputs[name]}
        readers: dict[str, list[str]] = {}
        for name, spec in self.specs.items():
            for requirement in spec.requires:
                readers.setdefault(required_type(requirement), []).extend(self.outputs[name])
        return reachable_from(newly_provided, readers) - newly_provided

    def unsupplied_types(self) -> set[str]:
        """Return the input types that no selected or automatically included capability satisfies."""
        producers = {name for name in self.specs if self.values.can_auto_include(name)}
        newly_provided = {kind for name in producers | {*self.names} for kind in self.outputs[name]}
        return {kind for name in self.specs for kind in self.inputs[name]} - (
            newly_provided - self.caller_types
        )

    def include_producers(self, stored: Mapping[str, list[str]]) -> list[str]:
        """Return the selected capabilities and the cheapest producers of their required inputs."""
        # A capability that reads nothing from the request is the last resort.
        able = {
            name: len(self.specs) + 1 if self.values.has_better_producers(name) else 1
            for name in self.specs
            if self.values.can_auto_include(name) and not self.values.defaults_hide_request(name)
        }
        best = self.assign_producers(able | dict.fromkeys(self.names, 0), stored)[0]
        names = list(self.names)
        for name in names:  # grows during the loop
            producers = (
                best.get(required_type(requirement))
                for requirement in self.specs[name].requires
                if requirement.cardinality != "optional"
            )
            names += [m for m in dict.fromkeys(producers) if m is not None and m not in names]
        return names

    def assign_producers(
        self, cost: Mapping[str, int], stored: Mapping[str, list[str]]
    ) -> tuple[dict[str, str], dict[str, set[str]]]:
        """Assign the cheapest producer to each input type (Knuth's generalization of Dijkstra).

        Input types are settled in order of cost. A producer is available only when all of its own inputs
        are settled, so capabilities that require each other in a cycle are never settled.

        Args:
            cost: Cost of each capability that may run, without its producers.
            stored: Keys of the stored contexts, by input type.

        Returns:
            The producer of each input type, and the unsatisfied input types of each capability.
        """
        rank = {name: place for place, name in enumerate(self.specs)}
        total_cost = dict(cost)
        waiting = {name: self.inputs[name] - stored.keys() for name in cost}
        readers: dict[str, list[str]] = {}
        for name, inputs in waiting.items():
            for kind in inputs:
                readers.setdefault(kind, []).append(name)
        queue = [
            (total_cost[name], rank[name], name) for name, inputs in waiting.items() if not inputs
        ]
        heapq.heapify(queue)
        best: dict[str, str] = {}
        while queue:
            cost_so_far, _, name = heapq.heappop(queue)
            for kind in self.outputs[name]:
                # A stored context needs no producer, unless a selected capability provides it.
                if kind in best or (kind in stored and name not in self.names):
                    continue
                best[kind] = name
                for reader in readers.pop(kind, ()):
                    waiting[reader].discard(kind)
                    total_cost[reader] += cost_so_far
                    if not waiting[reader]:
                        heapq.heappush(queue, (total_cost[reader], rank[reader], reader))
        return best, waiting

    def find_missing(
        self, names: Collection[str], stored: Mapping[str, list[str]]
    ) -> tuple[str, str] | None:
        """Return a capability that cannot run and its missing input type, or ``None`` if all can run."""
        _, waiting = self.assign_producers(dict.fromkeys(names, 0), stored)
        unsupplied_types = [
            (name, kind) for name, inputs in waiting.items() for kind in sorted(inputs)
        ]
        newly_provided = {kind for name, _ in unsupplied_types for kind in self.outputs[name]}
        # Return the root cause: an input type that none of the blocked capabilities would satisfy.
        return next(
            (pair for pair in unsupplied_types if pair[1] not in newly_provided),
            unsupplied_types[0] if unsupplied_types else None,
        )

    def prune(self, names: list[str], stored: Mapping[str, list[str]]) -> list[str]:
        """Remove automatically included capabilities that the plan does not require."""
        if self.find_missing(names, stored) is not None:
            return names
        for name in reversed(list(names)):
            rest = [other for other in names if other != name]
            if name not in self.names and self.find_missing(rest, stored) is None:
                names = rest
        return names

    # Ordering: when each capability runs.

    def sort_by_inputs(self, names: list[str], stored: Collection[str]) -> list[str]:
        """Sort capabilities so that each one runs after the producers of its inputs.

        Producers of optional inputs also run first if possible. Capabilities that require and
        provide the same types keep the order of selection.
        """
        available, remaining, ordering = set(stored), list(names), []

        def count_waits(name: str) -> tuple[int, int]:
            wanted_types = {required_type(requirement) for requirement in self.specs[name].requires}
            others = [other for other in remaining if other != name]
            needed = [o for o in others if not self.inputs[name].isdisjoint(self.outputs[o])]
            wished = [o for o in others if not wanted_types.isdisjoint(self.outputs[o])]
            return len(needed), len(wished)

        while remaining:
            name = min(
                (name for name in remaining if self.inputs[name] <= available), key=count_waits
            )
            remaining.remove(name)
            ordering.append(name)
            available.update(self.outputs[name])
        return ordering


def _create_plan(
    task: str,
    order: list[str],
    catalog: Catalog,
    stored: Mapping[str, list[str]],
    usable: Mapping[str, list[str]],
    previous: ExecutionPlan | None,
    parameters: Mapping[str, dict[str, Any]],
) -> ExecutionPlan:
    old_keys = {
        step.get("capability"): step.get("context_key")
        for step in plan_steps(previous)
        if isinstance(step, dict) and is_context_key(step.get("context_key"))
    }
    reused = {name: key for name in order if isinstance(key := old_keys.get(name), str)}
    used_keys = {key for keys in stored.values() for key in keys} | set(reused.values())
    steps: list[PlannedStep] = []
    producers: dict[str, list[str]] = {}
    filtered_types: set[str] = set()
    for name in order:
        spec = catalog.capabilities[name]
        inputs = [
            {item.label: key}
            for item in spec.requires
            for key in _select_source_keys(item, spec, producers, filtered_types, usable, catalog)
        ]
        output = spec.provides[0] if spec.provides else None
        key = reused.get(name) or make_context_key(output or name, used_keys)
        used_keys.add(key)
        steps.append(build_step(key, name, output, task, inputs, parameters.get(name) or None))
        for kind in types_satisfied_by(spec):
            producers.setdefault(kind, []).append(key)
            if any(required_type(read) == kind for read in spec.requires):
                filtered_types.add(kind)
    view = PlanView(list(steps), catalog, {}, None)
    steps.append(build_respond_step(view, used_keys, task))
    return ExecutionPlan(steps=steps)


def _select_source_keys(
    requirement: Requirement,
    spec: CapabilitySpec,
    producers: Mapping[str, list[str]],
    filtered_types: Collection[str],
    stored: Mapping[str, list[str]],
    catalog: Catalog,
) -> list[str]:
    """Select the context keys of the results that supply one input of a new step."""
    input_type = required_type(requirement)
    provided = producers.get(input_type, [])
    if requirement.role is not None and requirement.cardinality != "many":
        return _select_key_by_role(requirement, spec, [*stored.get(input_type, ()), *provided])
    if not provided:
        if requirement.cardinality == "optional" and requirement.type not in catalog.provided_types:
            return []  # an optional input does not read results of earlier requests
        provided = stored.get(input_type, [])
        # Of several stored contexts, the request is about the newest.
        return provided if requirement.cardinality == "many" else provided[-1:]
    if requirement.cardinality == "many":
        return provided
    # A filter's result replaces its input. Of equal producers, the first selected is used.
    return provided[-1:] if input_type in filtered_types else provided[:1]


def _select_key_by_role(
    requirement: Requirement, spec: CapabilitySpec, available_keys: list[str]
) -> list[str]:
    """Select the context key for one of several inputs of the same type.

    Context keys are assigned to the inputs in order of creation.
    """
    peers = [other for other in spec.requires if required_type(other) == requirement.type]
    if len(available_keys) < len(peers):
        peers = [other for other in peers if other.cardinality == "one"]
    if requirement not in peers:
        return []
    if len(available_keys) < len(peers):
        roles = ", ".join(other.label for other in peers)
        raise PlanError(
            f"{spec.name!r} requires {len(peers)} inputs of type {requirement.type} ({roles}), but"
            f" {len(available_keys)} are available.",
            fix="Configure a chat model, or pass a plan that names each input.",
        )
    return [available_keys[-len(peers) :][peers.index(requirement)]]
