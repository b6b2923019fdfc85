"""Builder for plans written in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from capgraph.base.errors import PlanError
from capgraph.base.plan import ExecutionPlan, plan_limits
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.planning.plan_access import make_context_key


class Plan(dict[str, Any]):
    """Plan that is built step by step.

    A ``Plan`` is a dictionary of plan data. Pass it wherever a plan is accepted. It is validated by
    ``check_plan(plan, registry)`` and by the graph that runs it. The graph adds the terminal step.

    Args:
        deadline: Maximum duration of all steps together, in seconds.
        budget: Limits for the turn, by the names of a ``Budget``.

    >>> plan = (
    ...     Plan(deadline=60)
    ...     .step("read_tanks", key="tanks")
    ...     .step("fill_tank", key="filled", parameters={"name": {"$from": "item"}})
    ...     .for_each("tanks.names")
    ...     .when({"of": "tanks.pressure", "is": "<", "than": 3})
    ... )
    >>> plan["steps"][1]["for_each"]
    {'of': 'tanks.names', 'as': 'item', 'on_failure': 'stop'}
    """

    @validate_arguments
    def __init__(
        self, *, deadline: float | None = None, budget: Mapping[str, float] | None = None
    ) -> None:
        bounds = plan_limits({"deadline": deadline, "budget": dict(budget or {})})
        super().__init__(steps=[], **bounds)

    @validate_arguments
    def step(
        self,
        capability: Any,
        *,
        key: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        inputs: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
        **more: Any,
    ) -> Plan:
        """Add a step.

        Args:
            capability: A capability, or its name.
            key: The step's context key; derived from the capability's name by default.
            parameters: The step's parameters.
            inputs: Context type to context key, or a list of such mappings.
            **more: Further fields of a :class:`~capgraph.base.PlannedStep`, such as ``optional``.

        Raises:
            PlanError: ``capability`` is neither a capability nor a name.
        """
        spec = getattr(capability, "capability_spec", None)
        name = capability if spec is None else spec.name
        if not isinstance(name, str):
            raise PlanError(
                f"{capability!r} is not a capability.",
                fix="Pass a class or function decorated with @capability_node, or its name.",
            )
        entries = (
            [{kind: of} for kind, of in inputs.items()] if isinstance(inputs, Mapping) else inputs
        )
        used_keys = [step["context_key"] for step in self["steps"]]
        fields: dict[str, Any] = {
            "context_key": make_context_key(name, used_keys) if key is None else key,
            "capability": name,
            "parameters": None if parameters is None else dict(parameters),
            "inputs": None if entries is None else [dict(entry) for entry in entries],
        }
        self["steps"].append({k: v for k, v in {**fields, **more}.items() if v is not None})
        return self

    @validate_arguments
    def for_each(self, of: str, *, name: str = "item", on_failure: str = "stop") -> Plan:
        """Run the last step once for each element of a list.

        Args:
            of: Path of the list.
            name: Name by which the step's parameters refer to the element.
            on_failure: ``stop`` or ``collect``.
        """
        return self._last(for_each={"of": of, "as": name, "on_failure": on_failure})

    @validate_arguments
    def when(self, condition: Mapping[str, Any]) -> Plan:
        """Run the last step only if a condition is true."""
        return self._last(when=dict(condition))

    def to_dict(self) -> ExecutionPlan:
        """Return the plan as plain data."""
        return cast("ExecutionPlan", {**self, "steps": [*self["steps"]]})

    def _last(self, **more: Any) -> Plan:
        if not self["steps"]:
            raise PlanError("The plan has no steps.", fix="Call .step(…) first.")
        self["steps"][-1] |= more
        return self
