"""Builder for plans written in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from capgraph.base.errors import PlanError
from capgraph.base.plan import ExecutionPlan, plan_limits
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.planning.plan_access import make_context_key


class Plan(dict[str, Any]):
    """Builder of an execution plan.

    A ``Plan`` is a dictionary of plan data, so it can be passed wherever a plan is accepted. Validate it
    with ``check_plan(plan, registry)``. The graph that runs it validates it, too, and adds the terminal
    step.

    Args:
        deadline: Maximum duration of all steps together, in seconds.
        budget: Limits for the turn, with the names of ``Budget`` arguments.

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
        **other_fields: Any,
    ) -> Plan:
        """Append a step to the plan.

        Args:
            capability: Capability class or function, or its name.
            key: Context key of the step's result. Derived from the capability's name by default.
            parameters: Parameter values for the capability.
            inputs: Mapping from context type to context key, or a list of such mappings.
            **other_fields: Additional fields of :class:`~capgraph.base.PlannedStep`, such as
                ``optional``.

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
        self["steps"].append({k: v for k, v in {**fields, **other_fields}.items() if v is not None})
        return self

    @validate_arguments
    def for_each(self, of: str, *, name: str = "item", on_failure: str = "stop") -> Plan:
        """Run the most recently added step once for each element of a list.

        Args:
            of: Path to the list, such as ``"batch.rows"``.
            name: Name by which the step's parameters refer to the current element.
            on_failure: ``stop`` to stop at the first failure, ``collect`` to continue with the
                remaining elements.
        """
        return self._update_last_step(for_each={"of": of, "as": name, "on_failure": on_failure})

    @validate_arguments
    def when(self, condition: Mapping[str, Any]) -> Plan:
        """Run the most recently added step only if a condition is true.

        Args:
            condition: Condition on earlier results, such as ``{"of": "tanks.pressure", "is": "<",
                "than": 3}``.
        """
        return self._update_last_step(when=dict(condition))

    def to_dict(self) -> ExecutionPlan:
        """Return the plan as plain data."""
        return cast("ExecutionPlan", {**self, "steps": [*self["steps"]]})

    def _update_last_step(self, **fields: Any) -> Plan:
        if not self["steps"]:
            raise PlanError("The plan has no steps.", fix="Call .step(…) first.")
        self["steps"][-1] |= fields
        return self
