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

from configs.lazy import contents

if TYPE_CHECKING:
    from framework.planning.catalog import CLARIFY as CLARIFY
    from framework.planning.catalog import CLOSING as CLOSING
    from framework.planning.catalog import RESPOND as RESPOND
    from framework.planning.catalog import Available as Available
    from framework.planning.catalog import Catalog as Catalog
    from framework.planning.catalog import StaticCatalog as StaticCatalog
    from framework.planning.chain import chain_plan as chain_plan
    from framework.planning.chain import requires_closure as requires_closure
    from framework.planning.check import check_plan as check_plan
    from framework.planning.diagram import StepStatus as StepStatus
    from framework.planning.diagram import plan_mermaid as plan_mermaid
    from framework.planning.draft import Repair as Repair
    from framework.planning.draft import RepairedPlan as RepairedPlan
    from framework.planning.order import by_depth as by_depth
    from framework.planning.parameters import validated_parameters as validated_parameters
    from framework.planning.plan import Plan as Plan
    from framework.planning.problems import PROBLEM_KINDS as PROBLEM_KINDS
    from framework.planning.problems import Problem as Problem
    from framework.planning.recipes import Recipe as Recipe
    from framework.planning.recipes import expand_recipes as expand_recipes
    from framework.planning.recipes import recipe_of as recipe_of
    from framework.planning.repair import repair_plan as repair_plan
    from framework.planning.replan import CarryOver as CarryOver
    from framework.planning.replan import PlanVersion as PlanVersion
    from framework.planning.replan import carry_over as carry_over
    from framework.planning.replan import fingerprints as fingerprints
    from framework.planning.schedule import dependencies as dependencies
    from framework.planning.schedule import ready_steps as ready_steps

__getattr__, __dir__ = contents(__name__)
