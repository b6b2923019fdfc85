"""Plan checking, repair, construction, scheduling, comparison, and diagrams.

Every function here is pure: plain data in, plain data out, no I/O and no graph engine.

- :func:`check_plan` reports every problem of a plan. :func:`repair_plan` corrects each problem that
  has exactly one solution.
- :func:`chain_plan` plans without a model. :func:`requires_closure` names the capabilities it would
  use.
- :func:`dependencies` and :func:`ready_steps` determine when steps can run.
- :func:`carry_over` and :func:`fingerprints` reuse finished results when a plan is replaced.
- :class:`Plan` builds a plan in Python.
- :class:`Recipe` packages a plan as a capability. :func:`expand_recipes` replaces recipes with their
  steps.
- :func:`plan_mermaid` draws a plan.
"""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.planning.catalog import CLARIFY as CLARIFY
    from capgraph.planning.catalog import RESPOND as RESPOND
    from capgraph.planning.catalog import TERMINAL_STEPS as TERMINAL_STEPS
    from capgraph.planning.catalog import Available as Available
    from capgraph.planning.catalog import Catalog as Catalog
    from capgraph.planning.catalog import StaticCatalog as StaticCatalog
    from capgraph.planning.chain import chain_plan as chain_plan
    from capgraph.planning.chain import requires_closure as requires_closure
    from capgraph.planning.check import check_plan as check_plan
    from capgraph.planning.diagram import StepStatus as StepStatus
    from capgraph.planning.diagram import plan_mermaid as plan_mermaid
    from capgraph.planning.draft import Repair as Repair
    from capgraph.planning.draft import RepairedPlan as RepairedPlan
    from capgraph.planning.parameters import validated_parameters as validated_parameters
    from capgraph.planning.plan import Plan as Plan
    from capgraph.planning.problems import PROBLEM_KINDS as PROBLEM_KINDS
    from capgraph.planning.problems import Problem as Problem
    from capgraph.planning.recipes import Recipe as Recipe
    from capgraph.planning.recipes import expand_recipes as expand_recipes
    from capgraph.planning.recipes import recipe_of as recipe_of
    from capgraph.planning.repair import repair_plan as repair_plan
    from capgraph.planning.replan import CarryOver as CarryOver
    from capgraph.planning.replan import PlanVersion as PlanVersion
    from capgraph.planning.replan import carry_over as carry_over
    from capgraph.planning.replan import fingerprints as fingerprints
    from capgraph.planning.schedule import by_depth as by_depth
    from capgraph.planning.schedule import dependencies as dependencies
    from capgraph.planning.schedule import ready_steps as ready_steps
    from capgraph.planning.schedule import recorded_order as recorded_order
    from capgraph.planning.schedule import with_plan_order as with_plan_order

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.planning.catalog": (
            "Available",
            "CLARIFY",
            "TERMINAL_STEPS",
            "Catalog",
            "RESPOND",
            "StaticCatalog",
        ),
        "capgraph.planning.chain": ("chain_plan", "requires_closure"),
        "capgraph.planning.check": ("check_plan",),
        "capgraph.planning.diagram": ("StepStatus", "plan_mermaid"),
        "capgraph.planning.draft": ("Repair", "RepairedPlan"),
        "capgraph.planning.parameters": ("validated_parameters",),
        "capgraph.planning.plan": ("Plan",),
        "capgraph.planning.problems": ("PROBLEM_KINDS", "Problem"),
        "capgraph.planning.recipes": ("Recipe", "expand_recipes", "recipe_of"),
        "capgraph.planning.repair": ("repair_plan",),
        "capgraph.planning.replan": ("CarryOver", "PlanVersion", "carry_over", "fingerprints"),
        "capgraph.planning.schedule": (
            "by_depth",
            "dependencies",
            "ready_steps",
            "recorded_order",
            "with_plan_order",
        ),
    },
)
