"""Plans before they run: checked, mended, made, scheduled, compared and drawn.

Everything here is pure: plain data in, plain data out, no I/O and no graph engine.

- :func:`check_plan` finds every problem of a plan at once; :func:`repair_plan` mends what has
  exactly one right answer.
- :func:`chain_plan` plans without a model; :func:`requires_closure` names what it would use.
- :func:`dependencies`, :func:`ready_steps` say when steps can run.
- :func:`carry_over`, :func:`fingerprints` keep what is done when a plan is replaced.
- :class:`Plan` writes one in Python.
- :class:`Recipe` is a plan as a capability; :func:`expand_recipes` writes it out.
- :func:`plan_mermaid` draws it.
"""

from typing import TYPE_CHECKING

from configs.lazy import found_in

if TYPE_CHECKING:
    from framework.planning.catalog import (
        CLARIFY,
        CLOSING,
        RESPOND,
        Available,
        Catalog,
        StaticCatalog,
    )
    from framework.planning.chain import chain_plan, requires_closure
    from framework.planning.check import DEFAULT_MAX_STEPS, check_plan
    from framework.planning.diagram import StepStatus, plan_mermaid
    from framework.planning.draft import Repair, RepairedPlan
    from framework.planning.order import by_depth
    from framework.planning.parameters import validated_parameters
    from framework.planning.plan import Plan
    from framework.planning.problems import PROBLEM_KINDS, Problem
    from framework.planning.recipes import Recipe, expand_recipes, recipe_of
    from framework.planning.repair import repair_plan
    from framework.planning.replan import (
        CarryOver,
        PlanVersion,
        carry_over,
        fingerprints,
    )
    from framework.planning.schedule import (
        dependencies,
        ready_steps,
    )

__all__ = [
    "CLARIFY",
    "CLOSING",
    "DEFAULT_MAX_STEPS",
    "PROBLEM_KINDS",
    "RESPOND",
    "Available",
    "CarryOver",
    "Catalog",
    "Plan",
    "PlanVersion",
    "Problem",
    "Recipe",
    "Repair",
    "RepairedPlan",
    "StaticCatalog",
    "StepStatus",
    "by_depth",
    "carry_over",
    "chain_plan",
    "check_plan",
    "dependencies",
    "expand_recipes",
    "fingerprints",
    "plan_mermaid",
    "ready_steps",
    "recipe_of",
    "repair_plan",
    "requires_closure",
    "validated_parameters",
]

_PARTS = (
    "catalog",
    "problems",
    "schedule",
    "order",
    "replan",
    "parameters",
    "chain",
    "draft",
    "check",
    "repair",
    "recipes",
    "diagram",
    "plan",
)
__getattr__, __dir__ = found_in(__name__, _PARTS, __all__)
