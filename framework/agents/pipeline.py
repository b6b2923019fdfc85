"""Team that runs its members in sequence. The output of each member is the next member's task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from capgraph.agents.result import AgentResult
from capgraph.agents.teams import BaseOrchestrator, TeamRun, name_members
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.selection import BaseRouter


class PipelineOrchestrator(BaseOrchestrator):
    """Team that runs its members in sequence and stops at the first failure.

    The keys of ``agent_outputs`` are ``step_0_<name>``, ``step_1_<name>``, and so on.

    Args:
        agents: Members in the order in which they run.
        pass_context: True if the members' context includes ``original_task``,
            ``step_0_output``, and so on, in addition to the caller's values. A context that is
            not a mapping is passed unchanged.
        router: Router that chooses the member for each step instead of the given order.
        **options: Options of :class:`~capgraph.agents.base.BaseAgent`.

    >>> import asyncio
    >>> row = PipelineOrchestrator([lambda task: task.upper(), lambda task: task + "!"])
    >>> asyncio.run(row.run("hello")).final_output
    'HELLO!'
    """

    @validate_arguments
    def __init__(
        self,
        agents: Iterable[Any] = (),
        pass_context: bool = True,
        router: BaseRouter | None = None,
        **options: Any,
    ) -> None:
        super().__init__(members=name_members(agents), router=router, **options)
        self.pass_context = pass_context

    def _group_outputs(
        self, completed: Sequence[tuple[str, str, AgentResult]]
    ) -> dict[str, AgentResult]:
        return {f"step_{place}_{name}": result for place, (name, _, result) in enumerate(completed)}

    async def lead(self, task: str, context: Any, team_run: TeamRun) -> Any:
        """Run the members one after another."""
        values: dict[str, Any] = {"original_task": task}
        current: Any = task
        for index, name in enumerate(self.members):
            text = current if isinstance(current, str) else str(current)
            member = await team_run.route(text) if self.router is not None else name
            is_mapping = context is None or isinstance(context, Mapping)
            member_context = (
                {**(context or {}), **values} if self.pass_context and is_mapping else context
            )
            [result] = await team_run.delegate([(member, text)], member_context)
            if not result.success:
                return current if index else ""
            current = values[f"step_{index}_output"] = result.output
        return current
