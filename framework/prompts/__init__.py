"""Prompt builders and the provider that an application replaces them through."""

from configs.lazy import contents
from framework.prompts.builder import PromptBuilder as PromptBuilder
from framework.prompts.data import DATA_RULE as DATA_RULE
from framework.prompts.data import as_data as as_data
from framework.prompts.data import as_request as as_request
from framework.prompts.nodes import ClarificationPrompt as ClarificationPrompt
from framework.prompts.nodes import ClassificationPrompt as ClassificationPrompt
from framework.prompts.nodes import ErrorAnalysisPrompt as ErrorAnalysisPrompt
from framework.prompts.nodes import OrchestratorPrompt as OrchestratorPrompt
from framework.prompts.nodes import ResponseGenerationPrompt as ResponseGenerationPrompt
from framework.prompts.nodes import TaskExtractionPrompt as TaskExtractionPrompt
from framework.prompts.provider import PromptProvider as PromptProvider
from framework.prompts.provider import get_framework_prompts as get_framework_prompts
from framework.prompts.provider import use_prompts as use_prompts

__getattr__, __dir__ = contents(__name__)
