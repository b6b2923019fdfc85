"""A team in a row: what one gives is the task of the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from capgraph.agents.result import AgentResult
from capgraph.agents.teams import BaseOrchestrator, TeamRun, name_members
from capgraph.helpers.argument_validation import validate_arguments
from capgraph.selection import BaseRouter


class PipelineOrchestrator(BaseOrchestrator):
    """Members in a row: the output of each is the task of the next. A failure ends the row.

    In ``agent_outputs`` they are ``step_0_<name>`` and so on.

    Args:
        agents: The members in order.
        pass_context: Whether members find what came before in their context: ``original_task``
            and ``step_0_output`` and so on, beside what the caller gave. A context that is no
            mapping is passed as it is.
        router: Chooses, at each place, one of the members, in place of the order.
        **options: As for :class:`~capgraph.agents.base.BaseAgent`.

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
        """Do the work; see :class:`~capgraph.agents.teams.BaseOrchestrator`."""
        known: dict[str, Any] = {"original_task": task}
        current: Any = task
        for place, name in enumerate(self.members):
            text = current if isinstance(current, str) else str(current)
            chosen = await team_run.route(text) if self.router is not None else name
            mapping = context is None or isinstance(context, Mapping)
            passed = {**(context or {}), **known} if self.pass_context and mapping else context
            [result] = await team_run.delegate([(chosen, text)], passed)
            if not result.success:
                return current if place else ""
            current = known[f"step_{place}_output"] = result.output
        return current
