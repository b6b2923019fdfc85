"""Planning without a model: backward chaining over what capabilities need and give."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from framework.base import CapabilitySpec, ExecutionPlan, PlanError, PlannedStep, Requirement
from framework.planning.catalog import CLOSING, Available, Catalog, may_pull_in
from framework.planning.closing import closing_step
from framework.planning.graphs import reachable_from
from framework.planning.parameters import read_parameters
from framework.planning.reading import is_key, make_key, steps_of
from framework.planning.view import PlanView, listing


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
    Equal arguments give equal plans.

    Args:
        task: The request; every step carries it as its objective.
        selected: Names of the chosen capabilities; their order breaks ties.
        catalog: The capabilities at hand.
        available: Stored context keys by type, the newest last.
        previous: The plan that this one replaces: its names are used again for the same
            capabilities, so that finished results can be kept.

    Raises:
        PlanError: A capability is unknown, a type cannot be supplied, or a selected capability
            has parameters that only a person or a model can choose.

    >>> from framework.base import CapabilitySpec, Requirement
    >>> from framework.planning import StaticCatalog
    >>> catalog = StaticCatalog.of(
    ...     CapabilitySpec("fetch", "Fetch readings.", provides=("DATA",)),
    ...     CapabilitySpec("average", "Average them.", provides=("MEAN",),
    ...                    requires=(Requirement("DATA"),)),
    ... )
    >>> plan = chain_plan("What is the mean?", ["average"], catalog)
    >>> [(step["context_key"], step["inputs"]) for step in plan["steps"]]
    [('data', []), ('mean', [{'DATA': 'data'}]), ('user_response', [{'MEAN': 'mean'}])]
    """
    stored = {name: list(keys) for name, keys in (available or {}).items() if keys}
    names = _known(selected, catalog)
    said = {name: read_parameters(catalog.capabilities[name], task) for name in names}
    usable, chosen = _choose(names, catalog, stored)
    missing_type = _missing(chosen, catalog, usable)
    if missing_type is not None:
        raise _unsupplied(*_root(*missing_type, catalog, names, usable), catalog)
    chosen = _prune(chosen, names, catalog, usable)
    order = _ordered(chosen, catalog, usable)
    return _write(task, order, catalog, stored, usable, previous, said)


def requires_closure(
    selected: Iterable[str], catalog: Catalog, available: Available | None = None
) -> tuple[str, ...]:
    """Name the selected capabilities and those that their needs pull in.

    Types that the caller gives count as supplied. A type that nobody can supply adds nothing;
    the planner reports it.

    Args:
        selected: Names of the chosen capabilities; unknown ones are left out.
        catalog: The capabilities at hand.
        available: Stored context keys by type; leave it out to have every producer that a
            planner could want, even where an older result is stored.

    >>> from framework.base import CapabilitySpec, Requirement
    >>> from framework.planning import StaticCatalog
    >>> catalog = StaticCatalog.of(
    ...     CapabilitySpec("fetch", "Fetch readings.", provides=("DATA",)),
    ...     CapabilitySpec("average", "Average them.", requires=(Requirement("DATA"),)),
    ... )
    >>> requires_closure(["average"], catalog)
    ('average', 'fetch')
    """
    names = [name for name in dict.fromkeys(selected) if name in catalog.capabilities]
    stored = {name: list(keys) for name, keys in (available or {}).items() if keys}
    for given in catalog.given:
        stored.setdefault(given, ["given"])
    usable, chosen = _choose(names, catalog, stored)
    return tuple(_prune(chosen, names, catalog, usable))


def _known(selected: Sequence[str], catalog: Catalog) -> list[str]:
    names = []
    for name in dict.fromkeys(selected):
        if name in catalog.capabilities:
            names.append(name)
        elif name not in CLOSING:
            raise PlanError(
                f"The selected capability {name!r} is not registered.",
                fix=f"Select from: {listing(list(catalog.capabilities))}.",
            )
    return names


def _root(
    reader: str,
    context_type: str,
    catalog: Catalog,
    names: Collection[str],
    stored: Mapping[str, list[str]],
) -> tuple[str, str]:
    """Follow what is missing to where it starts: the first type that is out of reach for itself."""
    within_reach = {*stored, *_cheapest(names, catalog, stored)}
    seen = {context_type}
    while context_type not in catalog.given:
        further = [
            (name, kind)
            for name, spec in catalog.capabilities.items()
            if context_type in spec.provides and may_pull_in(spec)
            for kind in sorted(_needs(spec) - within_reach - seen)
        ]
        if not further:
            break
        reader, context_type = further[0]
        seen.add(context_type)
    return reader, context_type


def _unsupplied(reader: str, context_type: str, catalog: Catalog) -> PlanError:
    if context_type in catalog.given:
        return PlanError(
            f"{reader!r} needs {context_type}, which the caller supplies, and none was given.",
            fix=f"Give {context_type} together with the request.",
        )
    makers = [name for name, spec in catalog.capabilities.items() if context_type in spec.provides]
    effects = [name for name in makers if not may_pull_in(catalog.capabilities[name])]
    if not makers:
        return PlanError(
            f"{reader!r} needs {context_type}, which no capability provides and no stored"
            " context holds.",
            fix=f"Register a capability that provides {context_type}, or give it with the request.",
        )
    if effects == makers:
        return PlanError(
            f"{reader!r} needs {context_type}, which only {listing(makers)} provides; it has"
            " effects or parameters and was not asked for.",
            fix="Ask for it in the request, or set requires_approval so that a person decides.",
        )
    return PlanError(
        f"{reader!r} needs {context_type}; {listing(makers)} would provide it, but cannot be"
        " supplied with what it needs itself.",
        fix=f"Give {context_type} or what its producer needs with the request.",
    )


# Choosing: which capabilities take part.


def _choose(
    names: list[str], catalog: Catalog, stored: Mapping[str, list[str]]
) -> tuple[dict[str, list[str]], list[str]]:
    """Decide which stored contexts are usable and which capabilities are needed."""
    outdated = _outdated(names, catalog).difference(catalog.given)
    fresh = {name: keys for name, keys in stored.items() if name not in outdated}
    chosen = _pull_in(names, catalog, fresh)
    if _missing(chosen, catalog, fresh) is None or len(fresh) == len(stored):
        return fresh, chosen
    # An older result is better than no plan.
    kept = dict(stored)
    return kept, _pull_in(names, catalog, kept)


def _outdated(names: Collection[str], catalog: Catalog) -> set[str]:
    """Name the types whose stored contexts would come out differently if they were made now.

    These are what lies downstream of a type that a selected capability makes anew, through
    optional inputs too, as with the targets of a build.
    """
    made = {kind for name in names for kind in catalog.capabilities[name].provides}
    readers: dict[str, set[str]] = {}
    for spec in catalog.capabilities.values():
        for need in spec.requires:
            readers.setdefault(need.type, set()).update(spec.provides)
    return reachable_from(made, {kind: sorted(out) for kind, out in readers.items()}) - made


def _pull_in(names: list[str], catalog: Catalog, stored: Mapping[str, list[str]]) -> list[str]:
    """Add the cheapest producers until nothing more is needed or can be had."""
    best = _cheapest(names, catalog, stored)
    chosen = dict.fromkeys(names)
    work = list(names)
    while work:
        spec = catalog.capabilities[work.pop(0)]
        for need in spec.requires:
            maker = best.get(need.type)
            if need.cardinality != "optional" and maker and maker not in chosen:
                chosen[maker] = None
                work.append(maker)
    return list(chosen)


def _cheapest(
    names: Collection[str], catalog: Catalog, stored: Mapping[str, list[str]]
) -> dict[str, str]:
    """Find, for each type, the producer that pulls in the fewest others."""
    cost = {
        name: 0 if name in names else 1
        for name, spec in catalog.capabilities.items()
        if name in names or may_pull_in(spec)
    }
    return _supply(cost, names, catalog, stored)[0]


def _supply(
    cost: dict[str, int],
    names: Collection[str],
    catalog: Catalog,
    stored: Mapping[str, list[str]],
) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Let capabilities supply each other as far as they can (Knuth's algorithm).

    Types settle in order of cost, and a producer counts only once all it requires is settled,
    so that circles of capabilities that need each other never do.

    Args:
        cost: The capabilities that take part, each with what it costs by itself.
        names: Those whose results count even where the type is stored.
        catalog: The capabilities at hand.
        stored: What is there already.

    Returns:
        The producer of each type, and what each capability still waits for.
    """
    rank = {name: place for place, name in enumerate(catalog.capabilities)}
    waiting = {name: _needs(catalog.capabilities[name]) - stored.keys() for name in cost}
    readers: dict[str, list[str]] = {}
    for name, kinds in waiting.items():
        for kind in kinds:
            readers.setdefault(kind, []).append(name)
    queue = [(cost[name], rank[name], name) for name, kinds in waiting.items() if not kinds]
    heapq.heapify(queue)
    best: dict[str, str] = {}
    while queue:
        paid, _, name = heapq.heappop(queue)
        for kind in catalog.capabilities[name].provides:
            # What is stored needs no producer, unless a selected capability makes it anyway.
            if kind in best or (kind in stored and name not in names):
                continue
            best[kind] = name
            for reader in readers.pop(kind, ()):
                waiting[reader].discard(kind)
                cost[reader] += paid
                if not waiting[reader]:
                    heapq.heappush(queue, (cost[reader], rank[reader], reader))
    return best, waiting


def _missing(
    chosen: Collection[str], catalog: Catalog, stored: Mapping[str, list[str]]
) -> tuple[str, str] | None:
    """Return a capability and the type that keeps it from running, or ``None``."""
    _, waiting = _supply(dict.fromkeys(chosen, 0), chosen, catalog, stored)
    wants = [(name, kind) for name, kinds in waiting.items() for kind in sorted(kinds)]
    made = {kind for name, _ in wants for kind in catalog.capabilities[name].provides}
    # Name the root of the trouble: a type that none of the others would bring.
    return next((pair for pair in wants if pair[1] not in made), wants[0] if wants else None)


def _needs(spec: CapabilitySpec) -> set[str]:
    return {need.type for need in spec.requires if need.cardinality != "optional"}


def _prune(
    chosen: list[str],
    selected: Collection[str],
    catalog: Catalog,
    stored: Mapping[str, list[str]],
) -> list[str]:
    """Drop every pulled-in capability that the rest can do without."""
    if _missing(chosen, catalog, stored) is not None:
        return chosen
    for name in reversed(list(chosen)):
        if name not in selected:
            rest = [other for other in chosen if other != name]
            if _missing(rest, catalog, stored) is None:
                chosen = rest
    return chosen


# Ordering: when each takes its turn, and from whom it reads.


def _ordered(chosen: list[str], catalog: Catalog, stored: Collection[str]) -> list[str]:
    """Put capabilities in an order in which each finds its inputs.

    Whoever could still get more from the others waits for them. What is left over then are
    capabilities that read and give the same types; they keep the order of selection.
    """
    specs = {name: catalog.capabilities[name] for name in chosen}
    coming: dict[str, set[str]] = {}
    for name, spec in specs.items():
        for kind in spec.provides:
            coming.setdefault(kind, set()).add(name)

    def awaited(name: str) -> tuple[int, int]:
        needed = [coming.get(kind, set()) for kind in _needs(specs[name])]
        wished = [coming.get(need.type, set()) for need in specs[name].requires]
        return len(set().union(*needed) - {name}), len(set().union(*wished) - {name})

    had, left, done = set(stored), list(chosen), []
    while left:
        name = min((name for name in left if _needs(specs[name]) <= had), key=awaited)
        left.remove(name)
        done.append(name)
        had.update(specs[name].provides)
        for kind in specs[name].provides:
            coming[kind].discard(name)
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
        for step in steps_of(previous)
        if isinstance(step, dict) and is_key(step.get("context_key"))
    }
    reused = {name: key for name in order if isinstance(key := old.get(name), str)}
    taken = {key for keys in stored.values() for key in keys} | set(reused.values())
    steps: list[PlannedStep] = []
    makers: dict[str, list[str]] = {}
    filtered: set[str] = set()
    for name in order:
        spec = catalog.capabilities[name]
        inputs = [
            {need.type: key}
            for need in spec.requires
            for key in _sources(need, makers, filtered, usable, catalog)
        ]
        output = spec.provides[0] if spec.provides else None
        key = reused.get(name) or make_key(output or name, taken)
        taken.add(key)
        steps.append(
            PlannedStep(
                context_key=key,
                capability=name,
                task_objective=task,
                success_criteria=f"{output or name} is available as {key!r}.",
                expected_output=output,
                parameters=said.get(name) or None,
                inputs=inputs,
            )
        )
        for kind in spec.provides:
            makers.setdefault(kind, []).append(key)
            if any(need.type == kind for need in spec.requires):
                filtered.add(kind)
    view = PlanView(list(steps), catalog, stored, None)
    steps.append(closing_step(view, taken, task))
    return ExecutionPlan(steps=steps)


def _sources(
    need: Requirement,
    makers: Mapping[str, list[str]],
    filtered: Collection[str],
    stored: Mapping[str, list[str]],
    catalog: Catalog,
) -> list[str]:
    """Name the contexts that one requirement reads."""
    made = makers.get(need.type, [])
    if not made:
        if need.cardinality == "optional" and need.type not in catalog.given:
            return []  # a result of an earlier request is not wished for by this one
        made = stored.get(need.type, [])
        # Of several stored ones, the newest is the one the request is about.
        return made if need.cardinality == "many" else made[-1:]
    if need.cardinality == "many":
        return made
    # A filter's result replaces what it read; of equal producers the first selected counts.
    return made[-1:] if need.type in filtered else made[:1]
