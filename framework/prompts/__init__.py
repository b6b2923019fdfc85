"""Prompt builders, and the provider with which an application replaces them."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.prompts.builder import PromptBuilder as PromptBuilder
    from capgraph.prompts.data import DATA_RULE as DATA_RULE
    from capgraph.prompts.data import as_data as as_data
    from capgraph.prompts.data import as_request as as_request
    from capgraph.prompts.nodes import ClarificationPrompt as ClarificationPrompt
    from capgraph.prompts.nodes import ClassificationPrompt as ClassificationPrompt
    from capgraph.prompts.nodes import ErrorAnalysisPrompt as ErrorAnalysisPrompt
    from capgraph.prompts.nodes import OrchestratorPrompt as OrchestratorPrompt
    from capgraph.prompts.nodes import ResponseGenerationPrompt as ResponseGenerationPrompt
    from capgraph.prompts.nodes import TaskExtractionPrompt as TaskExtractionPrompt
    from capgraph.prompts.provider import PromptProvider as PromptProvider
    from capgraph.prompts.provider import get_framework_prompts as get_framework_prompts
    from capgraph.prompts.provider import use_prompts as use_prompts

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.prompts.builder": ("PromptBuilder",),
        "capgraph.prompts.data": ("DATA_RULE", "as_data", "as_request"),
        "capgraph.prompts.nodes": (
            "ClarificationPrompt",
            "ClassificationPrompt",
            "ErrorAnalysisPrompt",
            "OrchestratorPrompt",
            "ResponseGenerationPrompt",
            "TaskExtractionPrompt",
        ),
        "capgraph.prompts.provider": ("PromptProvider", "get_framework_prompts", "use_prompts"),
    },
)
