"""Planning without a model: backward chaining over what capabilities need and give."""

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
    needs_provided_by,
    provided_needs,
    required_need,
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
    """Plan the selected capabilities and whatever they need, in an order that can run.

    An input comes from a selected capability if one provides its type, else from a stored
    context, else from the cheapest capability that can be pulled in. A stored context is not
    used when its own producer would now read something that a selected capability makes anew:
    it belongs to an earlier request. A capability that reads and gives the same type, such as a
    filter, stands between the other producers and the readers of that type. Optional inputs
    are linked when a capability of the plan or the caller supplies them; ``many`` takes all.
    A capability that would run on its defaults is replaced where another one supplies the same
    types and reads a parameter from the request. Equal arguments give equal plans.

    Args:
        task: The request; every step carries it as its objective.
        selected: Names of the chosen capabilities; their order breaks ties.
        catalog: The capabilities at hand.
        available: Stored context keys by type, the newest last.
        previous: The plan that this one replaces: its names are used again for the same
            capabilities, so that finished results can be kept.

    Raises:
        PlanError: A capability is unknown, a type cannot be supplied, or a capability has
            parameters that only a person or a model can choose.

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
    market = _Market(values.prefer_request_readers(_known(selected, catalog)), catalog, values)
    said = {name: values.read(name) for name in market.names}
    usable, chosen = market.choose(stored)
    if (missing := market.missing(chosen, usable)) is not None:
        # Followed to where it starts: the first thing that is out of reach for itself.
        within = usable | {need: [] for need in market.unmade() - usable.keys()}
        wider = market.pull_in(within)
        raise _unsupplied(*(market.missing(wider, usable) or missing), catalog, values)
    order = market.ordered(market.prune(chosen, usable), usable)
    said |= {name: values.read(name) for name in order}
    return _write(task, order, catalog, stored, usable, previous, said)


def requires_closure(
    selected: Iterable[str],
    catalog: Catalog,
    available: Available | None = None,
    *,
    task: str = "",
) -> tuple[str, ...]:
    """Name the selected capabilities and those that their needs pull in.

    Types that the caller gives count as supplied. A type that nobody can supply adds nothing;
    the planner reports it.

    Args:
        selected: Names of the chosen capabilities; unknown ones are left out.
        catalog: The capabilities at hand.
        available: Stored context keys by type; leave it out to have every producer that a
            planner could want, even where an older result is stored.
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
    market = _Market(values.prefer_request_readers(names), catalog, values)
    usable, chosen = market.choose(stored)
    return tuple(market.prune(chosen, usable))


def _known(selected: Sequence[str], catalog: Catalog) -> list[str]:
    names = []
    for name in dict.fromkeys(selected):
        if name in catalog.capabilities:
            names.append(name)
        elif name not in TERMINAL_STEPS:
            raise PlanError(
                f"The selected capability {name!r} is not registered.",
                fix=suggest_fix(name, known=catalog.capabilities),
            )
    return names


def _unsupplied(reader: str, need: str, catalog: Catalog, values: RequestValues) -> PlanError:
    context_type = need.removesuffix(MANY_SUFFIX)
    if context_type in catalog.provided_types:
        return PlanError(
            f"{reader!r} needs {context_type}, which the caller supplies, and none was given.",
            fix=f"Give {context_type} together with the request.",
        )
    makers = [
        name for name, spec in catalog.capabilities.items() if need in needs_provided_by(spec)
    ]
    effects = [name for name in makers if not values.can_auto_include(name)]
    unread = [problem for name in makers if (problem := values.read_error(name)) is not None]
    if unread and len(unread) == len(makers):
        return unread[0]
    if not makers:
        return PlanError(
            f"{reader!r} needs {context_type}, which no capability provides and no stored"
            " context holds.",
            fix=f"Register a capability that provides {context_type}, or give it with the request.",
        )
    if effects == makers:
        return PlanError(
            f"{reader!r} needs {context_type}, which only {join_names(makers)} provides; it has"
            " effects or parameters and was not asked for.",
            fix="Ask for it in the request, or set requires_approval so that a person decides.",
        )
    return PlanError(
        f"{reader!r} needs {context_type}; {join_names(makers)} would provide it, but cannot be"
        " supplied with what it needs itself.",
        fix=f"Give {context_type} or what its producer needs with the request.",
    )


class _Market:
    """Who can supply whom, for a selection of capabilities.

    Args:
        names: The selected capabilities.
        catalog: The capabilities at hand.
        values: What the request says of their parameters.
    """

    def __init__(self, names: list[str], catalog: Catalog, values: RequestValues) -> None:
        self.names = names
        self.values = values
        self.specs = catalog.capabilities
        self.given = set(provided_needs(catalog.provided_types, {}))
        self.gives = {name: needs_provided_by(spec) for name, spec in self.specs.items()}
        self.needs = {
            name: {required_need(need) for need in spec.requires if need.cardinality != "optional"}
            for name, spec in self.specs.items()
        }

    # Choosing: which capabilities take part.

    def choose(self, stored: dict[str, list[str]]) -> tuple[dict[str, list[str]], list[str]]:
        """Decide which stored contexts are usable and which capabilities are needed."""
        outdated = self.outdated() - self.given
        fresh = {need: keys for need, keys in stored.items() if need not in outdated}
        chosen = self.pull_in(fresh)
        if self.missing(chosen, fresh) is None or len(fresh) == len(stored):
            return fresh, chosen
        # An older result is better than no plan.
        return stored, self.pull_in(stored)

    def outdated(self) -> set[str]:
        """Name the needs whose stored contexts would come out differently if made now.

        These are what lies downstream of what a selected capability makes anew, through
        optional inputs too, as with the targets of a build.
        """
        made = {need for name in self.names for need in self.gives[name]}
        readers: dict[str, list[str]] = {}
        for name, spec in self.specs.items():
            for need in spec.requires:
                readers.setdefault(required_need(need), []).extend(self.gives[name])
        return reachable_from(made, readers) - made

    def unmade(self) -> set[str]:
        """Name the needs that nothing here meets without being asked for."""
        makers = {name for name in self.specs if self.values.can_auto_include(name)}
        made = {need for name in makers | {*self.names} for need in self.gives[name]}
        return {need for name in self.specs for need in self.needs[name]} - (made - self.given)

    def pull_in(self, stored: Mapping[str, list[str]]) -> list[str]:
        """Add, to the selected, the cheapest producers until no more is needed or can be had."""
        # One that reads nothing is the last resort where another one reads the request.
        able = {
            name: len(self.specs) + 1 if self.values.has_better_producers(name) else 1
            for name in self.specs
            if self.values.can_auto_include(name) and not self.values.defaults_hide_request(name)
        }
        best = self.supply(able | dict.fromkeys(self.names, 0), stored)[0]
        chosen = list(self.names)
        for name in chosen:  # it grows on the way
            makers = (
                best.get(required_need(need))
                for need in self.specs[name].requires
                if need.cardinality != "optional"
            )
            chosen += [m for m in dict.fromkeys(makers) if m is not None and m not in chosen]
        return chosen

    def supply(
        self, cost: Mapping[str, int], stored: Mapping[str, list[str]]
    ) -> tuple[dict[str, str], dict[str, set[str]]]:
        """Let capabilities supply each other as far as they can (Knuth's algorithm).

        Needs settle in order of cost, and a producer counts only once all it requires is
        settled, so that circles of capabilities that need each other never do.

        Args:
            cost: The capabilities that take part, each with what it costs by itself.
            stored: What is there already.

        Returns:
            The producer for each need, and what each capability still waits for.
        """
        rank = {name: place for place, name in enumerate(self.specs)}
        price = dict(cost)
        waiting = {name: self.needs[name] - stored.keys() for name in cost}
        readers: dict[str, list[str]] = {}
        for name, needs in waiting.items():
            for need in needs:
                readers.setdefault(need, []).append(name)
        queue = [(price[name], rank[name], name) for name, needs in waiting.items() if not needs]
        heapq.heapify(queue)
        best: dict[str, str] = {}
        while queue:
            paid, _, name = heapq.heappop(queue)
            for need in self.gives[name]:
                # What is stored needs no producer, unless a selected capability makes it anyway.
                if need in best or (need in stored and name not in self.names):
                    continue
                best[need] = name
                for reader in readers.pop(need, ()):
                    waiting[reader].discard(need)
                    price[reader] += paid
                    if not waiting[reader]:
                        heapq.heappush(queue, (price[reader], rank[reader], reader))
        return best, waiting

    def missing(
        self, chosen: Collection[str], stored: Mapping[str, list[str]]
    ) -> tuple[str, str] | None:
        """Return a capability and the need that keeps it from running, or ``None``."""
        _, waiting = self.supply(dict.fromkeys(chosen, 0), stored)
        wants = [(name, need) for name, needs in waiting.items() for need in sorted(needs)]
        made = {need for name, _ in wants for need in self.gives[name]}
        # Name the root of the trouble: what none of the others would bring.
        return next((pair for pair in wants if pair[1] not in made), wants[0] if wants else None)

    def prune(self, chosen: list[str], stored: Mapping[str, list[str]]) -> list[str]:
        """Drop every pulled-in capability that the rest can do without."""
        if self.missing(chosen, stored) is not None:
            return chosen
        for name in reversed(list(chosen)):
            rest = [other for other in chosen if other != name]
            if name not in self.names and self.missing(rest, stored) is None:
                chosen = rest
        return chosen

    # Ordering: when each takes its turn.

    def ordered(self, chosen: list[str], stored: Collection[str]) -> list[str]:
        """Put capabilities in an order in which each finds its inputs.

        Whoever could still get more from the others waits for them. What is left over then are
        capabilities that read and give the same types; they keep the order of selection.
        """
        had, left, done = set(stored), list(chosen), []

        def awaited(name: str) -> tuple[int, int]:
            wishes = {required_need(need) for need in self.specs[name].requires}
            others = [other for other in left if other != name]
            needed = [o for o in others if not self.needs[name].isdisjoint(self.gives[o])]
            wished = [o for o in others if not wishes.isdisjoint(self.gives[o])]
            return len(needed), len(wished)

        while left:
            name = min((name for name in left if self.needs[name] <= had), key=awaited)
            left.remove(name)
            done.append(name)
            had.update(self.gives[name])
        return done


def _write(
    task: str,
    order: list[str],
    catalog: Catalog,
    stored: Mapping[str, list[str]],
    usable: Mapping[str, list[str]],
    previous: ExecutionPlan | None,
    said: Mapping[str, dict[str, Any]],
) -> ExecutionPlan:
    old = {
        step.get("capability"): step.get("context_key")
        for step in plan_steps(previous)
        if isinstance(step, dict) and is_context_key(step.get("context_key"))
    }
    reused = {name: key for name in order if isinstance(key := old.get(name), str)}
    taken = {key for keys in stored.values() for key in keys} | set(reused.values())
    steps: list[PlannedStep] = []
    makers: dict[str, list[str]] = {}
    filtered: set[str] = set()
    for name in order:
        spec = catalog.capabilities[name]
        inputs = [
            {need.label: key}
            for need in spec.requires
            for key in _sources(need, spec, makers, filtered, usable, catalog)
        ]
        output = spec.provides[0] if spec.provides else None
        key = reused.get(name) or make_context_key(output or name, taken)
        taken.add(key)
        steps.append(build_step(key, name, output, task, inputs, said.get(name) or None))
        for need in needs_provided_by(spec):
            makers.setdefault(need, []).append(key)
            if any(required_need(read) == need for read in spec.requires):
                filtered.add(need)
    view = PlanView(list(steps), catalog, {}, None)
    steps.append(build_respond_step(view, taken, task))
    return ExecutionPlan(steps=steps)


def _sources(
    need: Requirement,
    spec: CapabilitySpec,
    makers: Mapping[str, list[str]],
    filtered: Collection[str],
    stored: Mapping[str, list[str]],
    catalog: Catalog,
) -> list[str]:
    """Name the contexts that one requirement reads."""
    want = required_need(need)
    made = makers.get(want, [])
    if need.role is not None and need.cardinality != "many":
        return _of_roles(need, spec, [*stored.get(want, ()), *made])
    if not made:
        if need.cardinality == "optional" and need.type not in catalog.provided_types:
            return []  # a result of an earlier request is not wished for by this one
        made = stored.get(want, [])
        # Of several stored ones, the newest is the one the request is about.
        return made if need.cardinality == "many" else made[-1:]
    if need.cardinality == "many":
        return made
    # A filter's result replaces what it read; of equal producers the first selected counts.
    return made[-1:] if want in filtered else made[:1]


def _of_roles(need: Requirement, spec: CapabilitySpec, there: list[str]) -> list[str]:
    """Choose for one of several inputs of a type, in the order in which results come about."""
    peers = [other for other in spec.requires if required_need(other) == need.type]
    if len(there) < len(peers):
        peers = [other for other in peers if other.cardinality == "one"]
    if need not in peers:
        return []
    if len(there) < len(peers):
        roles = ", ".join(other.label for other in peers)
        raise PlanError(
            f"{spec.name!r} needs {len(peers)} {need.type} ({roles}), and without a model there"
            f" are {len(there)} to choose from.",
            fix="Configure a chat model, or bring a plan that names each.",
        )
    return [there[-len(peers) :][peers.index(need)]]
