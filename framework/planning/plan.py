"""Plans written in Python: the same data, with less to type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from capgraph.base.errors import PlanError
from capgraph.base.plan import ExecutionPlan, plan_limits
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.planning.plan_access import make_context_key


class Plan(dict[str, Any]):
    """A plan that is put together step by step.

    It is the plan itself: every function, input, and setting that takes a plan takes it. It is
    checked where every plan is, by ``check_plan(plan, registry)`` and by the graph that runs it.
    The graph adds the closing step.

    Args:
        deadline: Seconds that the steps may take, all in all.
        budget: What the turn may use up, by the names of a ``Budget``.

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
            key: The step's context key; made of the capability's name when not given.
            parameters: Its parameters.
            inputs: Context type to the key that is read, or a list of such.
            **more: Further fields of a :class:`~capgraph.base.PlannedStep`, such as ``optional``.

        Raises:
            PlanError: It is neither a capability nor a name.
        """
        spec = getattr(capability, "capability_spec", None)
        name = capability if spec is None else spec.name
        if not isinstance(name, str):
            raise PlanError(
                f"{capability!r} is no capability.",
                fix="Give one that @capability_node made, or its name.",
            )
        given = (
            [{kind: of} for kind, of in inputs.items()] if isinstance(inputs, Mapping) else inputs
        )
        taken = [step["context_key"] for step in self["steps"]]
        found: dict[str, Any] = {
            "context_key": make_context_key(name, taken) if key is None else key,
            "capability": name,
            "parameters": None if parameters is None else dict(parameters),
            "inputs": None if given is None else [dict(entry) for entry in given],
        }
        self["steps"].append({k: v for k, v in {**found, **more}.items() if v is not None})
        return self

    @validate_arguments
    def for_each(self, of: str, *, name: str = "item", on_failure: str = "stop") -> Plan:
        """Run the last step once for each element of a list.

        Args:
            of: The path of the list.
            name: By which name its parameters mean the element.
            on_failure: ``stop`` or ``collect``.
        """
        return self._last(for_each={"of": of, "as": name, "on_failure": on_failure})

    @validate_arguments
    def when(self, condition: Mapping[str, Any]) -> Plan:
        """Have the last step run only where a condition holds."""
        return self._last(when=dict(condition))

    def to_dict(self) -> ExecutionPlan:
        """Return the plan as plain data."""
        return cast("ExecutionPlan", {**self, "steps": [*self["steps"]]})

    def _last(self, **more: Any) -> Plan:
        if not self["steps"]:
            raise PlanError("There is no step yet.", fix="Call .step(…) first.")
        self["steps"][-1] |= more
        return self
