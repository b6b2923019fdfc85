"""Node that reduces the conversation to one task."""

from __future__ import annotations

from typing import Any

from capgraph.base import BaseInfrastructureNode, infrastructure_node
from capgraph.engine import Services
from capgraph.engine.default_strategies import LastMessageExtractor
from capgraph.engine.recipes import can_skip_extraction
from capgraph.planning.planner_traits import planner_traits
from capgraph.state import AgentState


@infrastructure_node
class TaskExtractionNode(BaseInfrastructureNode):
    """Node that extracts the task of the turn from the conversation history."""

    name = "task_extraction"
    description = "Task extraction"

    @staticmethod
    async def execute(
        state: AgentState, services: Services, streamer: Any, **_: Any
    ) -> dict[str, Any]:
        """Extract the task from the last message, using earlier messages as context."""
        streamer.status("Reading the request")
        view = services.view(state)
        is_bypassed = (
            view.caller_switches.get("task_extraction_bypass_enabled")
            or planner_traits(services.planner).reads_conversation
            or can_skip_extraction(view, services.registry_for(view))
        )
        extractor = LastMessageExtractor() if is_bypassed else services.extractor
        extracted = await extractor.extract(state.get("messages") or [])
        return {
            "task_current_task": extracted.task,
            "task_depends_on_chat_history": extracted.depends_on_chat_history,
            "task_depends_on_user_memory": extracted.depends_on_user_memory,
        }

    @staticmethod
    def get_retry_policy() -> dict[str, Any]:
        """Return the retry policy for transient model-service errors."""
        return {"max_attempts": 3, "delay_seconds": 1.0, "backoff_factor": 1.5}
