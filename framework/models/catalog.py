"""Listing of capabilities in a planner's prompt, and the selector that leaves the choice to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from capgraph.base import CapabilitySpec
from capgraph.models.selection import format_selection_hints
from capgraph.models.signatures import NO_NAMES, describe_capability, name_shared_choices
from capgraph.planning.recipes import drop_overlapping, recipe_of
from capgraph.prompts.data import sanitize_text
from capgraph.registry import Candidate, Registry
from capgraph.selection import Selection, Selector
from capgraph.selection.protocols import NO_EXCLUSIONS
from capgraph.selection.texts import FUNCTION_WORDS, identifier_words

_MAX_EXAMPLES = 2
_MAX_DESCRIBED = 12  # capabilities whose descriptions are worth their tokens in every prompt
_MAX_LIKELY = 4
_STEM_LENGTH = 4
_WORD = re.compile(r"[^\W\d_]{3,}")


class PlannerCatalog:
    """Catalog of capability descriptions for a planner that also selects capabilities.

    Args:
        registry: Registry of capabilities, which is read on first use and must be complete by
            then.
        max_tokens: Maximum number of tokens for the descriptions and notes in the prompt.
        is_brief: True to omit result types that no capability requires.
        omits_parsed_parameters: True to list capabilities that parse their task without parameters
            and without planning guide.
    """

    def __init__(
        self,
        registry: Registry,
        max_tokens: int,
        *,
        is_brief: bool = False,
        omits_parsed_parameters: bool = False,
    ) -> None:
        self._registry = registry
        self._max_tokens = max_tokens
        self.is_brief = is_brief
        self.omits_parsed_parameters = omits_parsed_parameters
        self._parameterless: dict[str, tuple[CapabilitySpec, CapabilitySpec]] = {}
        self._texts: dict[tuple[bool, bool], str] = {}
        self._caller_catalogs: WeakKeyDictionary[Any, PlannerCatalog] = WeakKeyDictionary()

    def for_caller(self, registry: Any) -> PlannerCatalog:
        """Return a catalog for the caller's registry, which may contain fewer capabilities."""
        if registry is self._registry or not isinstance(registry, Registry):
            return self
        if registry not in self._caller_catalogs:
            self._caller_catalogs[registry] = PlannerCatalog(
                registry,
                self._max_tokens,
                is_brief=self.is_brief,
                omits_parsed_parameters=self.omits_parsed_parameters,
            )
        return self._caller_catalogs[registry]

    def has_own_parameters(self, spec: CapabilitySpec) -> bool:
        """Return True if the planner fills in the parameters of a capability."""
        return not (self.omits_parsed_parameters and getattr(spec.cls, "parses_task", False))

    def planner_spec(self, spec: CapabilitySpec) -> CapabilitySpec:
        """Return the specification of a capability with the parameters that the planner fills in."""
        if self.has_own_parameters(spec):
            return spec
        known = self._parameterless.get(spec.name)
        if known is None or known[0] is not spec:
            # Schemas are cached by the identity of the specifications.
            known = self._parameterless[spec.name] = spec, replace(spec, parameters=None)
        return known[1]

    @cached_property
    def text(self) -> str:
        """Descriptions of all capabilities in alphabetical order, with selection hints."""
        return self.format()

    def format(self, *, has_fields: bool = True, is_abridged: bool = False) -> str:
        """Format the lines of all capabilities in alphabetical order, with selection hints.

        Args:
            has_fields: False to omit the fields of results, which only references need.
            is_abridged: True to omit the descriptions of capabilities with a telling name. See
                :meth:`describe_likely`.
        """
        key = (has_fields, is_abridged and self._is_long)
        if key not in self._texts:
            # Positive examples repeat the description, so only the negative ones are listed.
            hints = {
                c.name: format_selection_hints(replace(c, positives=()), _MAX_EXAMPLES)
                for c in self._registry.candidates()
            }
            specs = self._registry.capabilities
            self._texts[key] = format_capabilities(
                [self.planner_spec(specs[name]) for name in sorted(specs)],
                hints,
                self.is_brief,
                has_fields=has_fields,
                undescribed=self._telling_names if key[1] else (),
            )
        return self._texts[key]

    def describe_likely(self, texts: Iterable[str], names: Iterable[str] = ()) -> str:
        """Return the descriptions that an abridged catalog omits and that a request may need.

        Args:
            texts: The request, followed by the messages that it may continue. The first text with
                words of a capability decides.
            names: Capabilities to describe in any case.
        """
        if not self._is_long:
            return ""
        specs = self._registry.capabilities
        common = Counter(word for words in self._words.values() for word in words)
        wanted = next((w for w in map(_stems, texts) if not w.isdisjoint(common)), frozenset())
        scores = {
            name: sum(1 / common[word] for word in words & wanted)
            for name, words in self._words.items()
        }
        likely = sorted((name for name in scores if scores[name]), key=lambda n: (-scores[n], n))
        shown = [*dict.fromkeys([*names, *likely[:_MAX_LIKELY]])]
        return "\n".join(
            f"- {name}: {' '.join(specs[name].description.split())}"
            for name in shown
            if name in self._telling_names
        )

    @cached_property
    def _is_long(self) -> bool:
        return len(self._registry.capabilities) > _MAX_DESCRIBED

    @cached_property
    def _telling_names(self) -> frozenset[str]:
        """Names that repeat their descriptions, so that a model understands them alone."""
        found = set()
        for name, spec in self._registry.capabilities.items():
            words = _stems(identifier_words(name))
            if 2 * len(words & _stems(spec.description)) >= len(words) > 0:
                found.add(name)
        return frozenset(found)

    @cached_property
    def _words(self) -> dict[str, frozenset[str]]:
        """Stems of the words in each capability's signature and description."""
        specs = self._registry.capabilities.values()
        return {spec.name: _stems(describe_capability(spec)) for spec in specs}

    @cached_property
    def has_recipes(self) -> bool:
        """True if any capability is a recipe."""
        return any(recipe_of(spec) for spec in self._registry.capabilities.values())

    def single_recipe(self, names: Sequence[str]) -> str | None:
        """Return the recipe that covers all selected capabilities on its own, or None."""
        names_left = drop_overlapping(names, self._registry)
        single = names_left[0] if len(names_left) == 1 else ""
        return single if recipe_of(self._registry.capabilities.get(single)) else None

    @cached_property
    def guides(self) -> str:
        """Planning guides of all capabilities."""
        return self.guides_of(self._registry.capabilities)

    def guides_of(self, names: Iterable[str]) -> str:
        """Return the planning guides of capabilities whose parameters the planner fills in."""
        specs = self._registry.capabilities
        return self._registry.planning_guides(
            name for name in names if name in specs and self.has_own_parameters(specs[name])
        )

    @cached_property
    def remaining_tokens(self) -> int:
        """Approximate number of prompt tokens that the catalog leaves unused."""
        return self._max_tokens - (len(self.text) + len(self.guides)) // 4

    def trim_notes(self, notes: Mapping[str, str]) -> dict[str, str]:
        """Shorten the notes about capabilities to fit the remaining prompt tokens."""
        max_characters = 4 * max(self.remaining_tokens, self._max_tokens // 4) // max(len(notes), 1)
        return {name: sanitize_text(text, max_characters) for name, text in notes.items()}


@dataclass(eq=False)
class DeferringSelector:
    """Selector that leaves the choice to the planner while all capabilities fit its prompt.

    Args:
        catalog: Catalog of all capabilities.
        fallback: Selector to use when the catalog exceeds its token limit.
        offline: Selector that recognizes requests for a recipe, or ``None``.
    """

    catalog: PlannerCatalog
    fallback: Selector
    offline: Selector | None = None

    async def select(
        self,
        task: str,
        candidates: Sequence[Candidate],
        *,
        excluded: Mapping[str, str] = NO_EXCLUSIONS,
    ) -> Selection:
        """Select the matching recipe, all allowed capabilities, or the fallback's choice."""
        if self.offline is not None and self.catalog.has_recipes:
            offline_choice = await self.offline.select(task, candidates, excluded=excluded)
            if recipe := self.catalog.single_recipe(offline_choice.names):
                return replace(offline_choice, names=(recipe,))
        names = tuple(c.name for c in candidates if c.name not in excluded)
        if not names or self.catalog.remaining_tokens < 0:
            return await self.fallback.select(task, candidates, excluded=excluded)
        return Selection(names, reason="Chosen with the plan.", deferred=True)


def format_capabilities(
    specs: Sequence[CapabilitySpec],
    hints: Mapping[str, Sequence[str]],
    is_brief: bool,
    *,
    has_fields: bool = True,
    undescribed: Collection[str] = (),
) -> str:
    """Format the lines of capabilities, each with its selection hints.

    Args:
        specs: Capabilities to list.
        hints: Selection hints by capability name.
        is_brief: True to group effects, to name shared choices once, and to omit result types
            that no capability requires.
        has_fields: False to omit the fields of results.
        undescribed: Names of the capabilities whose descriptions are omitted.
    """
    producers: dict[str, list[str]] = {}
    for spec in specs:
        for context_type in spec.provides:
            producers.setdefault(context_type, []).append(spec.name)
    required_types = {need.type for spec in specs for need in spec.requires}
    type_names = name_shared_choices(specs) if is_brief else NO_NAMES
    lines = [f"{name} = {choices}" for choices, name in type_names.items()]
    effect_lines: list[str] = []
    for spec in specs:
        is_grouped = is_brief and spec.effect == "once"
        described = describe_capability(
            spec,
            producers,
            names_output=not is_brief or not required_types.isdisjoint(spec.provides),
            has_fields=has_fields,
            has_description=spec.name not in undescribed,
            has_effect_remark=not is_grouped,
            type_names=type_names,
        )
        (effect_lines if is_grouped else lines).extend([described, *hints.get(spec.name, ())])
    return "\n".join([*lines, *(["Only if asked for:"] if effect_lines else []), *effect_lines])


def _stems(text: str) -> frozenset[str]:
    words = (word.rstrip("s") for word in _WORD.findall(identifier_words(text)))
    return frozenset(word[:_STEM_LENGTH] for word in words if word not in FUNCTION_WORDS)
