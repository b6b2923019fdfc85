"""Prompt builders and the provider that an application replaces them through."""

from framework.prompts.builder import PromptBuilder
from framework.prompts.data import DATA_RULE, as_data, as_request
from framework.prompts.nodes import (
    ClarificationPrompt,
    ClassificationPrompt,
    ErrorAnalysisPrompt,
    OrchestratorPrompt,
    ResponseGenerationPrompt,
    TaskExtractionPrompt,
)
from framework.prompts.provider import PromptProvider, get_framework_prompts, use_prompts

__all__ = [
    "DATA_RULE",
    "ClarificationPrompt",
    "ClassificationPrompt",
    "ErrorAnalysisPrompt",
    "OrchestratorPrompt",
    "PromptBuilder",
    "PromptProvider",
    "ResponseGenerationPrompt",
    "TaskExtractionPrompt",
    "as_data",
    "as_request",
    "get_framework_prompts",
    "use_prompts",
]
