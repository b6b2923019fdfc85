"""What a user's own code may look like to a type checker; ``make lint`` checks this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel

from capgraph import (
    BaseCapability,
    BaseInfrastructureNode,
    CapabilityContext,
    build_graph,
    capability_node,
    infrastructure_node,
    open_graph,
)
from capgraph.adapters import tool_capability
from capgraph.base.ports import PermissionMode
from capgraph.behaviors import (
    AuditBehavior,
    CacheBehavior,
    CircuitBreakerBehavior,
    FallbackBehavior,
    GuardrailBehavior,
    HumanInLoopBehavior,
    RateLimitBehavior,
    RetryBehavior,
    TimeoutBehavior,
)


class Level(CapabilityContext):
    """A level."""

    metres: float


class Report(BaseModel):
    """An answer."""

    metres: float


@capability_node
class Change(BaseCapability):
    """A capability with two inputs of one type."""

    name = "change"
    description = "Tell the change."
    requires = [(Level, "one", "old"), ("LEVEL", "one", "new"), "PLACE", ("TIME", "optional")]

    async def execute(self) -> dict[str, Any]:
        """Tell it."""
        return {}


@capability_node
@dataclass
class Read(BaseCapability):
    """A capability that is a data class, and not a frozen one."""

    name = "read"
    description = "Read."
    effect = "none"
    unit: str = "m"

    async def execute(self) -> dict[str, Any]:
        """Read it."""
        return {}


@capability_node
class Pay(BaseCapability):
    """A capability with every declaration, in the forms that the guides use."""

    name = "pay"
    description = "Pay."
    provides = [Level]
    examples = ["pay it"]
    effect = "once"
    effect_key = ["order"]
    permission = "full_access"
    labels = ["secret"]
    removes_labels = ["untrusted"]
    undo = "refund"
    requires_approval = True
    timeout_seconds = 3
    max_parallel = 2
    queue = "payments"
    cost_usd = 1
    on_unknown = "rerun"
    paid: ClassVar[list[str]] = []

    class Parameters(BaseModel):
        """A step's parameters."""

        order: str = ""

    async def execute(self) -> dict[str, Any]:
        """Pay it."""
        return {}

    @staticmethod
    def parameters_from(task: str) -> dict[str, Any]:
        """Read the order."""
        return {"order": task}


@capability_node(examples=["book it"])
class Book(BaseCapability):
    """A capability whose undo is a class."""

    name = "book"
    description = "Book."
    effect = "idempotent"
    permission = PermissionMode.FULL_ACCESS
    undo = Pay

    @staticmethod
    async def execute(state: Any, **kwargs: Any) -> dict[str, Any]:
        """Book it."""
        return {}


@infrastructure_node
class Welcome(BaseInfrastructureNode):
    """A node that declares its place."""

    name = "welcome"
    description = "Welcome."
    before = "classifier"
    quiet = True

    @staticmethod
    async def execute(state: Any, **kwargs: Any) -> dict[str, Any]:
        """Do nothing."""
        return {}


def double(number: int) -> int:
    """Double a number."""
    return number * 2


tool = tool_capability(double, effect="none", examples=["double it"])
keys: tuple[str, ...] | None = Pay.capability_spec.effect_key
mode: PermissionMode | None = tool.capability_spec.permission
names: list[str] = [tool.langgraph_node.name, Welcome.infrastructure_spec.name]

graph = build_graph(
    [Read],
    behaviors=[
        RetryBehavior(max_retries=2),
        TimeoutBehavior(5),
        RateLimitBehavior(),
        CircuitBreakerBehavior(),
        FallbackBehavior(default={}),
        CacheBehavior(),
        HumanInLoopBehavior(),
        AuditBehavior(),
        GuardrailBehavior(),
    ],
)


async def ask() -> float:
    """Ask with a context, and read a typed answer."""
    typed = build_graph([Read], context_schema=Level, answer_type=Report)
    typed.invoke({}, context=Report(metres=1))  # type: ignore[call-overload]
    async with open_graph([Read], context_schema=Level, answer_type=Report) as opened:
        out = await opened.ainvoke({}, context=Level(metres=1))
        return typed.answer_of(out).metres + opened.answer_of(out).metres
