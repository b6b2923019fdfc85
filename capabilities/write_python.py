"""Capability in which the chat model writes analysis code.

Writing and running are separate steps, so that a person approves the exact code that will run.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import HumanMessage, SystemMessage

from capgraph.base import ErrorSeverity, ModelError, ValidationError, capability_node
from capgraph.base.capability import ContextType
from capgraph.base.spec import Effect
from capgraph.capabilities.guided import GuidedCapability
from capgraph.capabilities.python import DATA_TYPES, Code, collect_inputs
from capgraph.prompts import get_framework_prompts

_FENCE = re.compile(r"^```(?:python|py)?[ \t]*\n((?:(?!```).*\n)*)```[ \t]*$", re.MULTILINE)
_SAMPLE_ITEMS, _SAMPLE_TEXT, _SAMPLE_DEPTH = 3, 200, 8


@capability_node
class WritePython(GuidedCapability):
    """Capability that uses the chat model to write analysis code for a later step to run."""

    name = "write_python"
    description = "Write Python analysis code for a task that no other capability can do"
    provides: Sequence[ContextType] = ["CODE"]
    requires: Sequence[ContextType | tuple[ContextType, str]] = tuple(
        (data_type, "optional") for data_type in DATA_TYPES
    )
    effect: Effect = "none"

    async def execute(self) -> Code:
        """Ask the chat model to write Python code for the task and its data.

        Raises:
            ValidationError: No chat model is configured.
            ModelError: The answer contains no valid Python code.
        """
        model = self.chat_model()
        if model is None:
            raise ValidationError(
                "The graph has no chat model, which the step 'write_python' needs.",
                fix="Configure a model, or put the code into parameters.code of the step 'python'.",
            )
        inputs = collect_inputs(self.inputs)
        builder = get_framework_prompts().get_python_prompt_builder()
        context = {"task": self.task, "inputs": [describe_inputs(inputs)] if inputs else []}
        messages = [
            SystemMessage(builder.get_prefix(**context)),
            HumanMessage(builder.get_dynamic_context(**context)),
        ]
        answer = await model.ainvoke(messages)
        return Code(code=extract_code(str(answer.text)), purpose=self.task)


def extract_code(answer: str) -> str:
    r"""Extract Python code from a model's answer.

    The longest fenced code block is used, or the whole answer if it has no fenced block.

    Raises:
        ModelError: The answer contains no code, or the code is not valid Python.

    >>> extract_code("```py\nx = 1\n```")
    'x = 1\n'
    """
    blocks = _FENCE.findall(answer)
    code: str = max(blocks, key=len) if blocks else answer
    try:
        if not ast.parse(code).body:
            raise ValueError("no statements")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ModelError(
            f"The model's answer is not valid Python code: {error}.",
            fix="Ask again, or put the code into parameters.code of the step 'python'.",
            severity=ErrorSeverity.RETRIABLE,
        ) from error
    return code


def describe_inputs(inputs: dict[str, Any]) -> str:
    """Describe the structure of a step's inputs as JSON, with long lists and strings shortened.

    >>> describe_inputs({"QUERY_RESULT": {"rows": [1, 2, 3, 4, 5]}})
    '{"QUERY_RESULT": {"rows": [1, 2, 3, "... 5 items in all"]}}'
    """
    return json.dumps(_shorten_value(inputs, _SAMPLE_DEPTH), ensure_ascii=False)


def _shorten_value(value: Any, depth: int) -> Any:
    """Return a copy of a value with long strings, long lists, and deep nesting shortened."""
    if isinstance(value, str):
        return value if len(value) <= _SAMPLE_TEXT else f"{value[:_SAMPLE_TEXT]}..."
    if isinstance(value, (dict, list)) and depth == 0:
        return "..."
    if isinstance(value, dict):
        return {key: _shorten_value(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        shown = [_shorten_value(item, depth - 1) for item in value[:_SAMPLE_ITEMS]]
        more = [f"... {len(value)} items in all"] if len(value) > _SAMPLE_ITEMS else []
        return shown + more
    return value
