"""Base class of the shipped capabilities, which loads their guides from ``guides.yml``."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import yaml

from capgraph.base import (
    BaseCapability,
    ClassifierExample,
    OrchestratorExample,
    OrchestratorGuide,
    TaskClassifierGuide,
)


@functools.cache
def _load_guides() -> dict[str, Any]:
    text = resources.files("capgraph.capabilities").joinpath("guides.yml").read_text("utf-8")
    # The C loader is ten times faster but not part of every PyYAML wheel.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    guides: dict[str, Any] = yaml.load(text, loader)  # noqa: S506 - both are safe
    return guides


class GuidedCapability(BaseCapability):
    """Base class of capabilities whose prompt guides are stored in ``guides.yml``.

    The file has a planner guide and a classifier guide under the name of each capability.

    >>> from capgraph.capabilities.memory import MemoryCapability
    >>> MemoryCapability().orchestrator_guide.priority
    50
    """

    def _create_orchestrator_guide(self) -> OrchestratorGuide:
        section = self._guide_section("planner")
        examples = [OrchestratorExample(**example) for example in section["examples"]]
        return OrchestratorGuide(**{**section, "examples": examples})

    def _create_classifier_guide(self) -> TaskClassifierGuide:
        section = self._guide_section("classifier")
        examples = [
            ClassifierExample(request, group["needed"], group["reason"])
            for group in section["examples"]
            for request in group["requests"]
        ]
        return TaskClassifierGuide(instructions=section["instructions"], examples=examples)

    def _guide_section(self, section: str) -> dict[str, Any]:
        guides = _load_guides()
        # A subclass with another name uses the guides of its base class.
        classes: list[Any] = [
            cls for cls in type(self).__mro__ if getattr(cls, "name", None) in guides
        ]
        guide: dict[str, Any] = guides[classes[0].name][section]
        return guide
