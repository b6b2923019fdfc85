"""The registry: the capabilities, nodes, and context types of an agent, as an ordinary instance."""

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
    create_registration_error,
    find_adapted_capabilities,
    find_registration_name,
    find_required_decorator,
    lacks_decorator,
    qualified_name,
)

if TYPE_CHECKING:
    from capgraph.configs.settings import Settings

DEFAULT_INFRASTRUCTURE = ("capgraph.infrastructure",)
_ADAPTED = ("tools", "graphs", "agents", "mcp")
"""Settings sections whose entries adapters convert to capabilities."""


class Registry:
    """Registry of capabilities, infrastructure nodes, and context types by name.

    Building a graph freezes its registry (see :meth:`freeze`). To use different items in
    another graph, create a modified copy with :meth:`with_`.

    Args:
        infrastructure: Modules or packages whose infrastructure nodes are registered. A later
            module replaces nodes with the same name.
        provided_types: Context types that the caller of the graph supplies.

    Raises:
        RegistryError: A module cannot be imported, or two registrations have the same name.

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
        """Specifications of the registered capabilities by name, in order of registration."""
        return MappingProxyType(self._capabilities)

    @property
    def infrastructure(self) -> Mapping[str, InfrastructureSpec]:
        """Specifications of the registered infrastructure nodes, by name."""
        return MappingProxyType(self._infrastructure)

    @property
    def context_types(self) -> Mapping[str, type[CapabilityContext]]:
        """The context classes by type name."""
        return MappingProxyType(self._context_types)

    @property
    def provided_types(self) -> frozenset[str]:
        """Names of the context types that the caller of the graph supplies."""
        return frozenset(self._provided_types)

    @validate_arguments
    def capability(self, name: str) -> Any:
        """Return the instance of a registered capability.

        The instance provides the capability's planning and selection guides.

        Raises:
            RegistryError: No capability has that name.
        """
        if name not in self._capabilities:
            raise self._unknown_capability(name)
        if name not in self._instances:
            self._instances[name] = self._capabilities[name].cls()
        return self._instances[name]

    def describe(self) -> str:
        """Return the names and descriptions of all capabilities as a Markdown list."""
        return "\n".join(f"- {s.name}: {s.description}" for s in self._capabilities.values())

    def candidates(self) -> Sequence[Candidate]:
        """Return the capabilities that can be selected for a task.

        Capabilities that are always active are not included.
        """
        if not self._frozen:
            return self._create_candidates()
        # Cached: generating the schemas of a thousand capabilities takes half a second.
        if self._candidates is None:
            self._candidates = self._create_candidates()
        return self._candidates

    def _create_candidates(self) -> Sequence[Candidate]:
        candidates = []
        for name, spec in self._capabilities.items():
            if spec.always_active:
                continue
            guide = self._load_guide(name, "classifier_guide")
            examples = guide.examples if guide else []
            schema = spec.parameters.model_json_schema() if spec.parameters is not None else {}
            candidates.append(
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
        return tuple(candidates)

    def planning_guides(self, names: Iterable[str]) -> str:
        """Combine the planning guides of capabilities into one prompt section, in stable order."""
        entries = []
        for name in sorted(set(names) & set(self._capabilities)):
            guide = self._load_guide(name, "orchestrator_guide")
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
        """Collect the planning notes that capabilities provide for the current state.

        Args:
            names: Names of the capabilities.
            state: State of the graph.
            settings: Settings whose capability sections are passed to ``planning_notes``.
            storage_key: Name of the caller's storage folder.

        Returns:
            Non-empty notes, keyed by capability name.
        """
        texts = {}
        for name in sorted(set(names) & set(self._capabilities)):
            notes = getattr(self._capabilities[name].cls, "planning_notes", None)
            text = (
                await notes(state, settings.capability_settings(name, storage_key))
                if notes is not None
                else ""
            )
            if text:
                texts[name] = text
        return texts

    def _load_guide(self, name: str, attribute: str) -> Any:
        capability = self.capability(name)
        # A class that is not a subclass of BaseCapability may have no guide. getattr with a default
        # would hide an AttributeError that the guide itself raises.
        return getattr(capability, attribute) if hasattr(type(capability), attribute) else None

    # --- copying --------------------------------------------------------------------------

    def freeze(self) -> Registry:
        """Freeze the registry to prevent further registrations, and return it.

        Raises:
            RegistryError: A registered recipe uses a capability that was removed or changed.
        """
        for spec in self._capabilities.values():
            # Its capabilities may have been removed or replaced since its registration.
            recipe: Any = getattr(spec.cls, "recipe", None)
            if not self._frozen and _is_recipe(recipe):
                recipe.check(self)
        self._frozen = True
        return self

    @validate_arguments
    def with_(self, *items: Any, without: Iterable[str] = ()) -> Registry:
        """Return a copy of the registry with items added or removed.

        The original registry does not change.

        Args:
            *items: Items to register. Each item replaces an existing item with the same name.
            without: Names of capabilities to remove.

        Raises:
            RegistryError: An item cannot be registered, two items have the same name, or a name is
                not registered.

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
        new_items = Registry(infrastructure=())  # raises if two new items have the same name
        for item in items:
            capability = item.as_capability(other) if _is_recipe(item) else item
            new_items.register(capability)
            other.register(capability, override=True)
        return other

    def _check_not_frozen(self) -> None:
        if self._frozen:
            raise RegistryError(
                "The registry is frozen: a graph was built from it.",
                fix="Create a changed copy with registry.with_(...) and build a new graph from it."
                " With the same saver, it continues the threads.",
            )

    def _unknown_capability(self, name: str) -> RegistryError:
        fix = suggest_fix(name, candidates=self._capabilities)
        return RegistryError(
            f"The capability {name!r} is not registered.", fix=fix, facts={"name": name}
        )

    # --- writing --------------------------------------------------------------------------

    def register(self, item: Any, *, override: bool = False) -> Any:
        """Register a decorated class, a decorated function, a recipe, or a context type.

        Args:
            item: Object to register.
            override: Whether to replace a registered item with the same name.

        Returns:
            The item, so that the method can be used as a decorator.

        Raises:
            RegistryError: The item has an unsupported type, its name is invalid or already
                registered, an infrastructure node has no position in the graph, a recipe does not
                match the registered capabilities, or the registry is frozen.
        """
        self._check_not_frozen()
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
        raise create_registration_error(item, inherits=bool(spec or node))

    @validate_arguments
    def unregister(self, name: str) -> None:
        """Remove a capability from the registry.

        Raises:
            RegistryError: No capability has this name, or the registry is frozen.
        """
        self._check_not_frozen()
        if self._capabilities.pop(name, None) is None:
            raise self._unknown_capability(name)
        self._instances.pop(name, None)

    def declare_provided(self, *types: str | type[CapabilityContext]) -> None:
        """Declare context types that the caller of the graph supplies.

        The class of a context type is also registered, so that the caller's data is validated.

        Raises:
            RegistryError: An argument is not a context type, or the registry is frozen.
        """
        self._check_not_frozen()
        for kind in types:
            name = kind if isinstance(kind, str) else getattr(kind, "CONTEXT_TYPE", None)
            if not name:
                raise RegistryError(
                    f"{kind!r} is not a context type.",
                    fix="Pass the name or the class of a context type.",
                )
            self._provided_types.add(name)
            if isinstance(kind, type):
                self._add(self._context_types, name, kind, "context type", False)

    @validate_arguments
    def discover(self, package: str, *, override: bool = False) -> list[str]:
        """Import a module or a package's modules and register the items they define.

        Capabilities that adapters created from tools, graphs, and agents are included, as are lists
        of them.

        Args:
            package: Dotted name of the module or package.
            override: Whether to replace registered items with the same name.

        Returns:
            Names of the registered items, in order of registration.

        Raises:
            RegistryError: Modules cannot be imported, classes are not decorated, or names are not
                unique. The message lists every cause. Items of imported modules stay registered.
                Prefix the name of an undecorated base class with an underscore.
        """
        problems: list[str] = []
        names: list[str] = []
        recipes: list[Any] = []
        for module in import_modules(package, problems):
            for value in list(vars(module).values()):
                if _is_recipe(value):
                    recipes.append(value)
                for item in find_adapted_capabilities(value):
                    self.register(item, override=override)
                    names.append(item.capability_spec.name)
                if not isinstance(value, type) or value.__module__ != module.__name__:
                    continue
                if (name := find_registration_name(value)) is not None:
                    self.register(value, override=override)
                    names.append(name)
                elif lacks_decorator(value):
                    problems.append(
                        f"{qualified_name(value)} is not decorated ({find_required_decorator(value)})"
                    )
        if recipes and not problems:
            from capgraph.planning.recipes import order_by_use

            for recipe in order_by_use(recipes):
                self.register(recipe, override=override)
                names.append(recipe.name)
        if problems:
            raise RegistryError(
                f"{package!r} is only partly registered: {'; '.join(problems)}.",
                fix="Correct the imports or install missing packages. Decorate the classes, or"
                " prefix the name of a base class with an underscore.",
            )
        return list(dict.fromkeys(names))

    def load_entry_points(self, group: str = ENTRY_POINT_GROUP) -> list[str]:
        """Register the items that installed distributions offer in an entry-point group.

        Raises:
            RegistryError: An entry point cannot be loaded, or names are not unique.
        """
        names = []
        for name, value in load_entry_points(group):
            if inspect.ismodule(value):
                names += self.discover(value.__name__)
            else:
                self.register(value)
                names.append(name)
        return names

    @validate_arguments
    def configure(
        self,
        *,
        include: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        override: Mapping[str, str] | None = None,
    ) -> None:
        """Filter and replace the capabilities in the registry.

        Args:
            include: Names of the capabilities to keep. ``None`` keeps all capabilities.
            exclude: Names of the capabilities to remove.
            override: Import references (``"module:Class"``) of replacements, by capability name.

        Raises:
            RegistryError: A name is not registered, or a replacement has a different name.
        """
        for name, target in (override or {}).items():
            item = import_object(target)
            spec = getattr(item, "capability_spec", None)
            if spec is None or spec.name != name:
                raise RegistryError(
                    f"{target!r} cannot replace the capability {name!r}, because it is {('the capability ' + repr(spec.name) if spec else 'not a capability')}.",
                    fix=f"Use a decorated capability class whose name is {name!r}.",
                )
            self.register(item, override=True)
        exclude = left_out = list(exclude)
        if include is not None:
            include = list(include)
            left_out += sorted(set(self._capabilities).difference(include))
        if unknown := [n for n in (*exclude, *(include or ())) if n not in self._capabilities]:
            raise self._unknown_capability(unknown[0])
        for name in dict.fromkeys(left_out):
            self.unregister(name)

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        problems: list[CapgraphError] | None = None,
        adapted: Iterable[Any] | None = None,
    ) -> Registry:
        """Create a registry from application settings.

        Settings with ``tools``, ``graphs``, ``agents``, or ``mcp`` require
        :func:`~capgraph.adapters.settings_registry.open_registry`, which also opens and closes
        their connections.

        Args:
            settings: Application settings (``capgraph.configs.settings.Settings``).
            problems: List to which errors are appended. By default, the first error is raised.
            adapted: Capabilities that ``open_registry`` created from these four sections.

        Raises:
            RegistryError: A module or item cannot be imported or registered, or the settings have
                one of these four sections and ``adapted`` is omitted.
        """
        sections = [name for name in _ADAPTED if getattr(settings, name)]
        if sections and adapted is None:
            raise RegistryError(
                f"The settings sections {', '.join(sections)} are not supported by"
                " Registry.from_settings: they open connections.",
                fix="Use 'async with open_registry(settings) as registry' from capgraph.adapters, or"
                " open_graph(settings=settings).",
            )
        registry = cls(
            infrastructure=settings.infrastructure, provided_types=settings.provided_types
        )
        selection = {name: getattr(settings, name) for name in ("include", "exclude", "override")}
        actions: list[Callable[[], Any]] = [
            *(partial(registry.discover, module) for module in settings.modules),
            *(partial(registry.register, item) for item in adapted or ()),
            partial(registry._load_recipes, settings.recipes),
            partial(registry.configure, **selection),
        ]
        for action in actions:
            try:
                action()
            except CapgraphError as exc:
                if problems is None:
                    raise
                problems.append(exc)
        return registry

    def _load_recipes(self, paths: Sequence[str]) -> None:
        if paths:
            from capgraph.planning.recipes import order_by_use
            from capgraph.registry.recipe_yaml import find_recipe_files, load_recipe

            for recipe in order_by_use(load_recipe(file) for file in find_recipe_files(paths)):
                self.register(recipe)

    def _add(self, table: dict[str, Any], name: str, value: Any, kind: str, override: bool) -> None:
        known = table.get(name)
        if known is not None and known is not value and not override:
            raise RegistryError(
                f"The {kind} {name!r} is registered twice: by {qualified_name(known)} and"
                f" {qualified_name(value)}.",
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
    # No recipe exists before its module is imported. A graph without recipes does not import it.
    recipes = sys.modules.get("capgraph.planning.recipes")
    return recipes is not None and isinstance(value, recipes.Recipe)
