"""Plans: written, checked, repaired, scheduled, replaced and drawn. Pure, without I/O."""

from framework.planning.catalog import CLARIFY, CLOSING, RESPOND, Available, Catalog, StaticCatalog
from framework.planning.chain import chain_plan, requires_closure
from framework.planning.check import check_plan
from framework.planning.diagram import plan_mermaid, versions_mermaid
from framework.planning.problems import Problem
from framework.planning.repair import repair_plan
from framework.planning.replan import (
    CarryOver,
    PlanVersion,
    carry_over,
    fingerprint,
    fingerprints,
    next_version,
)
from framework.planning.schedule import (
    blocked_steps,
    critical_path,
    dependencies,
    is_chain,
    makespan,
    ready_steps,
)

__all__ = [
    "CLARIFY",
    "CLOSING",
    "RESPOND",
    "Available",
    "CarryOver",
    "Catalog",
    "PlanVersion",
    "Problem",
    "StaticCatalog",
    "blocked_steps",
    "carry_over",
    "chain_plan",
    "check_plan",
    "critical_path",
    "dependencies",
    "fingerprint",
    "fingerprints",
    "is_chain",
    "makespan",
    "next_version",
    "plan_mermaid",
    "ready_steps",
    "repair_plan",
    "requires_closure",
    "versions_mermaid",
]
