"""The registry: what an agent is made of. An ordinary instance, never a global."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from capgraph.base.context import CapabilityContext
from capgraph.base.errors import CapgraphError, RegistryError
from capgraph.base.guides import OrchestratorExample
from capgraph.base.spec import CapabilitySpec, InfrastructureSpec
from capgraph.configs.suggestions import suggest_fix
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.registry.candidate import Candidate, parameter_texts
from capgraph.registry.discovery import (
    ENTRY_POINT_GROUP,
    import_modules,
    import_object,
    load_entry_points,
)
from capgraph.registry.registration import (
    check_insertion_point,
    check_name,
    find_adapted_capabilities,
    lacks_decorator,
    qualified_name,
    registration_error,
    registration_name,
    required_decorator,
)

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings

DEFAULT_INFRASTRUCTURE = ("capgraph.infrastructure",)
_ADAPTED = ("tools", "graphs", "agents", "mcp")
"""Sections of the settings that adapters turn into capabilities."""


class Registry:
    """Holds capabilities, infrastructure nodes and context types by name.

    It is filled by registering and becomes an immutable value when a graph is built of it
    (:meth:`frozen`); :meth:`with_` makes another one of it for another graph.

    Args:
        infrastructure: Modules or packages whose infrastructure nodes are registered at once; a
            later one replaces nodes of the same name.
        provided_types: Context types that the caller of the graph supplies.

    Raises:
        RegistryError: A module cannot be imported, or two registrations share a name.

    >>> registry = Registry()
    >>> "router" in registry.infrastructure
    True
    """

    @validate_arguments
    def __init__(
        self,
        infrastructure: Iterable[str] = DEFAULT_INFRASTRUCTURE,
        provided_types: Iterable[str] = (),
    ) -> None:
        self._capabilities: dict[str, CapabilitySpec] = {}
        self._infrastructure: dict[str, InfrastructureSpec] = {}
        self._context_types: dict[str, type[CapabilityContext]] = {}
        self._instances: dict[str, Any] = {}
        self._provided_types: set[str] = set(provided_types)
        self._frozen = False
        self._candidates: Sequence[Candidate] | None = None
        for place, name in enumerate(infrastructure):
            self.discover(name, override=place > 0)

    # --- reading --------------------------------------------------------------------------

    @property
    def capabilities(self) -> Mapping[str, CapabilitySpec]:
        """Capability name to what it declares, in order of registration."""
        return MappingProxyType(self._capabilities)

    @property
    def infrastructure(self) -> Mapping[str, InfrastructureSpec]:
        """Infrastructure node name to what it declares."""
        return MappingProxyType(self._infrastructure)

    @property
    def context_types(self) -> Mapping[str, type[CapabilityContext]]:
        """Context type name to its class."""
        return MappingProxyType(self._context_types)

    @property
    def provided_types(self) -> frozenset[str]:
        """Context types that the caller supplies."""
        return frozenset(self._provided_types)

    @validate_arguments
    def capability(self, name: str) -> Any:
        """Return the one instance that holds a capability's guides.

        Raises:
            RegistryError: No capability has that name.
        """
        if name not in self._capabilities:
            raise self._unknown(name)
        if name not in self._instances:
            self._instances[name] = self._capabilities[name].cls()
        return self._instances[name]

    def describe(self) -> str:
        """Describe the capabilities: a list for people."""
        return "\n".join(f"- {s.name}: {s.description}" for s in self._capabilities.values())

    def candidates(self) -> Sequence[Candidate]:
        """Return what a selector chooses from: every capability that is not always active."""
        if not self._frozen:
            return self._all_candidates()
        # Schemas of a thousand capabilities take half a second, and these do not change any more.
        if self._candidates is None:
            self._candidates = self._all_candidates()
        return self._candidates

    def _all_candidates(self) -> Sequence[Candidate]:
        found = []
        for name, spec in self._capabilities.items():
            if spec.always_active:
                continue
            guide = self._guide(name, "classifier_guide")
            examples = guide.examples if guide else []
            schema = spec.parameters.model_json_schema() if spec.parameters is not None else {}
            found.append(
                Candidate(
                    name=name,
                    description=spec.description,
                    instructions=guide.instructions if guide else "",
                    positives=tuple(e.query for e in examples if e.result),
                    negatives=tuple(e.query for e in examples if not e.result),
                    matches_task=getattr(spec.cls, "matches_task", None),
                    parameters=tuple(parameter_texts(schema)),
                )
            )
        return tuple(found)

    def planning_guides(self, names: Iterable[str]) -> str:
        """Return the planning advice of capabilities as one prompt section, in stable order."""
        entries = []
        for name in sorted(set(names) & set(self._capabilities)):
            guide = self._guide(name, "orchestrator_guide")
            if guide is not None:
                title = type(self.capability(name)).__name__.removesuffix("Capability")
                examples = OrchestratorExample.format_examples_for_prompt(guide.examples)
                entries.append((guide.priority, f"## {title}\n{guide.instructions}{examples}"))
        if not entries:
            return ""
        entries.sort(key=lambda entry: entry[0])
        return "# CAPABILITY PLANNING GUIDELINES\n" + "\n".join(text for _, text in entries)

    async def planning_notes(
        self,
        names: Iterable[str],
        state: Mapping[str, Any],
        settings: Settings,
        storage_key: str | None = None,
    ) -> dict[str, str]:
        """Return what capabilities tell a planner about the state at hand, by their names.

        Args:
            names: Of which capabilities.
            state: The state.
            settings: All settings.
            storage_key: Name of the folder of who asks.
        """
        found = {}
        for name in sorted(set(names) & set(self._capabilities)):
            notes = getattr(self._capabilities[name].cls, "planning_notes", None)
            text = (
                await notes(state, settings.capability_settings(name, storage_key))
                if notes is not None
                else ""
            )
            if text:
                found[name] = text
        return found

    def _guide(self, name: str, attribute: str) -> Any:
        capability = self.capability(name)
        # A class that does not inherit may have none; one that fails to be made must say so,
        # which getattr with a default would keep quiet.
        return getattr(capability, attribute) if hasattr(type(capability), attribute) else None

    # --- as a value -----------------------------------------------------------------------

    def freeze(self) -> Registry:
        """Close it for registrations and return it; what a graph is built of never changes."""
        for spec in self._capabilities.values():
            # What it uses may have been taken out or replaced since it was registered.
            recipe: Any = getattr(spec.cls, "recipe", None)
            if not self._frozen and _is_recipe(recipe):
                recipe.check(self)
        self._frozen = True
        return self

    @validate_arguments
    def with_(self, *items: Any, without: Iterable[str] = ()) -> Registry:
        """Return another registry; this one stays as it is.

        Args:
            *items: What comes on top; it replaces what has the same name.
            without: Names of capabilities to leave out.

        Raises:
            RegistryError: An item cannot be registered, two share a name, or a name is not there.

        >>> from capgraph.base import BaseCapability, capability_node
        >>> @capability_node
        ... class Hello(BaseCapability):
        ...     name = "hello"
        ...     description = "Says hello"
        ...     async def execute(self):
        ...         return {}
        >>> registry = Registry().freeze()
        >>> list(registry.with_(Hello).capabilities), list(registry.capabilities)
        (['hello'], [])
        """
        other = Registry(infrastructure=(), provided_types=self._provided_types)
        for table in ("_capabilities", "_infrastructure", "_context_types", "_instances"):
            getattr(other, table).update(getattr(self, table))
        for name in without:
            other.unregister(name)
        among = Registry(infrastructure=())  # two of one name among them are no replacement
        for item in items:
            made = item.as_capability(other) if _is_recipe(item) else item
            among.register(made)
            other.register(made, override=True)
        return other

    def _open(self) -> None:
        if self._frozen:
            raise RegistryError(
                "A graph was built of this registry, so it cannot change any more.",
                fix="Make another with registry.with_(...) and build a new graph of it; the same"
                " saver continues the threads.",
            )

    def _unknown(self, name: str) -> RegistryError:
        fix = suggest_fix(name, known=self._capabilities)
        return RegistryError(f"No capability is called {name!r}.", fix=fix)

    # --- writing --------------------------------------------------------------------------

    def register(self, item: Any, *, override: bool = False) -> Any:
        """Add a decorated class, a decorated function, a recipe or a context type.

        Args:
            item: What to add.
            override: Replace what has the same name instead of refusing.

        Returns:
            The item, so that the call can be used as a decorator.

        Raises:
            RegistryError: It is none of these, its name is taken by another one or cannot be a
                node's, it is an infrastructure node without a place in the graph, a recipe that does not fit to what is registered, or
                a graph was built of this registry.
        """
        self._open()
        if _is_recipe(item):
            self.register(item.as_capability(self), override=override)
            return item
        if isinstance(item, type) and issubclass(item, CapabilityContext):
            self._add(self._context_types, item.CONTEXT_TYPE, item, "context type", override)
            return item
        spec = getattr(item, "capability_spec", None)
        if isinstance(spec, CapabilitySpec) and spec.cls is item:
            check_name("capability", spec.name)
            for kind in spec.context_types:
                self._add(self._context_types, kind.CONTEXT_TYPE, kind, "context type", override)
            self._add(self._capabilities, spec.name, spec, "capability", override)
            self._instances.pop(spec.name, None)
            return item
        node = getattr(item, "infrastructure_spec", None)
        if isinstance(node, InfrastructureSpec) and node.cls is item:
            check_name("infrastructure node", node.name)
            check_insertion_point(node)
            self._add(self._infrastructure, node.name, node, "infrastructure node", override)
            return item
        raise registration_error(item, inherits=bool(spec or node))

    @validate_arguments
    def unregister(self, name: str) -> None:
        """Remove a capability.

        Raises:
            RegistryError: No capability has that name, or a graph was built of this registry.
        """
        self._open()
        if self._capabilities.pop(name, None) is None:
            raise self._unknown(name)
        self._instances.pop(name, None)

    def declare_provided(self, *types: str | type[CapabilityContext]) -> None:
        """Declare context types that the caller of the graph supplies.

        Raises:
            RegistryError: One is no context type, or a graph was built of this registry.
        """
        self._open()
        for kind in types:
            name = kind if isinstance(kind, str) else getattr(kind, "CONTEXT_TYPE", None)
            if not name:
                raise RegistryError(
                    f"{kind!r} is no context type.", fix="Give its name, or its class."
                )
            self._provided_types.add(name)

    @validate_arguments
    def discover(self, package: str, *, override: bool = False) -> list[str]:
        """Import a module, or every module of a package, and register what it defines.

        That includes capabilities that adapters made of tools, graphs and agents, and lists of
        them.

        Args:
            package: Dotted name.
            override: Replace what has the same name.

        Returns:
            Names of what was registered, in order.

        Raises:
            RegistryError: Modules could not be imported (each with its cause), classes are not
                decorated (each by name; one that only others derive from may begin with an
                underscore), or names clash. What could be imported stays registered.
        """
        problems: list[str] = []
        found: list[str] = []
        recipes: list[Any] = []
        for module in import_modules(package, problems):
            for value in list(vars(module).values()):
                if _is_recipe(value):
                    recipes.append(value)
                for item in find_adapted_capabilities(value):
                    self.register(item, override=override)
                    found.append(item.capability_spec.name)
                if not isinstance(value, type) or value.__module__ != module.__name__:
                    continue
                if (name := registration_name(value)) is not None:
                    self.register(value, override=override)
                    found.append(name)
                elif lacks_decorator(value):
                    problems.append(
                        f"{qualified_name(value)} is not decorated ({required_decorator(value)})"
                    )
        if recipes and not problems:
            from capgraph.planning.recipes import order_by_use

            for recipe in order_by_use(recipes):
                self.register(recipe, override=override)
                found.append(recipe.name)
        if problems:
            raise RegistryError(
                f"{package!r} is not registered whole: {'; '.join(problems)}.",
                fix="Correct what cannot be imported, or install what it imports. Decorate the"
                " classes, or begin the name of one that only others derive from with an underscore.",
            )
        return list(dict.fromkeys(found))

    def load_entry_points(self, group: str = ENTRY_POINT_GROUP) -> list[str]:
        """Register what installed distributions offer under an entry-point group.

        Raises:
            RegistryError: An entry point cannot be loaded, or names clash.
        """
        found = []
        for name, value in load_entry_points(group):
            if inspect.ismodule(value):
                found += self.discover(value.__name__)
            else:
                self.register(value)
                found.append(name)
        return found

    @validate_arguments
    def configure(
        self,
        *,
        include: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        override: Mapping[str, str] | None = None,
    ) -> None:
        """Keep, leave out and replace capabilities, as configuration says.

        Args:
            include: Names to keep; ``None`` for all.
            exclude: Names to leave out.
            override: Name to ``"module:Class"`` that takes its place.

        Raises:
            RegistryError: A name is not registered, or a replacement does not fit.
        """
        for name, target in (override or {}).items():
            item = import_object(target)
            spec = getattr(item, "capability_spec", None)
            if spec is None or spec.name != name:
                raise RegistryError(
                    f"{target!r} cannot replace {name!r}: it is"
                    f" {'capability ' + repr(spec.name) if spec else 'no capability'}.",
                    fix=f"Name a decorated capability class whose name is {name!r}.",
                )
            self.register(item, override=True)
        exclude = left_out = list(exclude)
        if include is not None:
            include = list(include)
            left_out += sorted(set(self._capabilities).difference(include))
        if unknown := [n for n in (*exclude, *(include or ())) if n not in self._capabilities]:
            raise self._unknown(unknown[0])
        for name in dict.fromkeys(left_out):
            self.unregister(name)

    @classmethod
    def from_settings(
        cls,
        settings: Any,
        problems: list[CapgraphError] | None = None,
        adapted: Iterable[Any] | None = None,
    ) -> Registry:
        """Build the registry that settings describe.

        Settings with ``tools``, ``graphs``, ``agents`` or ``mcp`` need
        :func:`~capgraph.adapters.settings_registry.open_registry`, which opens and closes them.

        Args:
            settings: ``capgraph.configs.settings.Settings``.
            problems: Takes what is wrong with a module or the recipes, each by itself; raised when
                not given.
            adapted: Capabilities that ``open_registry`` made of these four sections.

        Raises:
            RegistryError: Something named cannot be imported or does not fit together; or the
                settings have one of these sections, and ``adapted`` is not given.
        """
        sections = [name for name in _ADAPTED if getattr(settings, name)]
        if sections and adapted is None:
            raise RegistryError(
                f"The settings have {', '.join(sections)}, which Registry.from_settings does not"
                " open.",
                fix="Use 'async with open_registry(settings) as registry' of capgraph.adapters, or"
                " open_graph(settings=settings).",
            )
        registry = cls(
            infrastructure=settings.infrastructure, provided_types=settings.provided_types
        )
        chosen = {name: getattr(settings, name) for name in ("include", "exclude", "override")}
        works: list[Callable[[], Any]] = [
            *(partial(registry.discover, module) for module in settings.modules),
            *(partial(registry.register, item) for item in adapted or ()),
            partial(registry._load_recipes, settings.recipes),
            partial(registry.configure, **chosen),
        ]
        for work in works:
            try:
                work()
            except CapgraphError as exc:
                if problems is None:
                    raise
                problems.append(exc)
        return registry

    def _load_recipes(self, places: Sequence[str]) -> None:
        if places:
            from capgraph.planning.recipes import order_by_use
            from capgraph.registry.recipe_yaml import find_recipe_files, load_recipe

            for recipe in order_by_use(load_recipe(file) for file in find_recipe_files(places)):
                self.register(recipe)

    def _add(self, table: dict[str, Any], name: str, value: Any, kind: str, override: bool) -> None:
        known = table.get(name)
        if known is not None and known is not value and not override:
            raise RegistryError(
                f"The {kind} {name!r} is registered twice: {qualified_name(known)} and {qualified_name(value)}.",
                fix="Rename one of them, or pass override=True to replace the first.",
            )
        table[name] = value

    def __repr__(self) -> str:
        return (
            f"<Registry: {len(self._capabilities)} capabilities,"
            f" {len(self._context_types)} context types,"
            f" {len(self._infrastructure)} infrastructure nodes>"
        )


def _is_recipe(value: Any) -> bool:
    # Nobody has made one before its module was imported, which a graph without one need not do.
    recipes = sys.modules.get("capgraph.planning.recipes")
    return recipes is not None and isinstance(value, recipes.Recipe)
