"""Lets the chat model write analysis code, as a step of its own.

Writing is apart from running so that a person sees the very code that will run: the approval
of the step ``python`` shows what this step wrote.
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
    """Asks the chat model for analysis code; what it wrote is not run here."""

    name = "write_python"
    description = "Write Python analysis code for a task that no other capability can do"
    provides: Sequence[ContextType] = ["CODE"]
    requires: Sequence[ContextType | tuple[ContextType, str]] = tuple(
        (data_type, "optional") for data_type in DATA_TYPES
    )
    effect: Effect = "none"

    async def execute(self) -> Code:
        """Describe the data to the model and take the code from its answer."""
        model = self.chat_model()
        if model is None:
            raise ValidationError(
                "No chat model is configured, so no code can be written.",
                fix="Configure a model, or give the code in parameters.code of the step 'python'.",
            )
        inputs = collect_inputs(self.inputs)
        builder = get_framework_prompts().get_python_prompt_builder()
        shown = {"task": self.task, "inputs": [describe_inputs(inputs)] if inputs else []}
        messages = [
            SystemMessage(builder.get_prefix(**shown)),
            HumanMessage(builder.get_dynamic_context(**shown)),
        ]
        answer = await model.ainvoke(messages)
        return Code(code=extract_code(str(answer.text)), purpose=self.task)


def extract_code(answer: str) -> str:
    r"""Take the longest fenced block of an answer, or the whole of it when it is plain code.

    Raises:
        ModelError: There is no code in it, or it is not Python.

    >>> extract_code("```py\nx = 1\n```")
    'x = 1\n'
    """
    blocks = _FENCE.findall(answer)
    code: str = max(blocks, key=len) if blocks else answer
    try:
        if not ast.parse(code).body:
            raise ValueError("nothing")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ModelError(
            f"The model was asked for Python code and answered something else ({error}).",
            fix="Ask again, or put the code into parameters.code of the step 'python'.",
            severity=ErrorSeverity.RETRIABLE,
        ) from error
    return code


def describe_inputs(inputs: dict[str, Any]) -> str:
    """Show the shape of the inputs: the same structure with long lists and texts cut short.

    >>> describe_inputs({"QUERY_RESULT": {"rows": [1, 2, 3, 4, 5]}})
    '{"QUERY_RESULT": {"rows": [1, 2, 3, "... 5 items in all"]}}'
    """
    return json.dumps(_sample(inputs, _SAMPLE_DEPTH), ensure_ascii=False)


def _sample(value: Any, depth: int) -> Any:
    """Cut one value short."""
    if isinstance(value, str):
        return value if len(value) <= _SAMPLE_TEXT else f"{value[:_SAMPLE_TEXT]}..."
    if isinstance(value, (dict, list)) and depth == 0:
        return "..."
    if isinstance(value, dict):
        return {key: _sample(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        shown = [_sample(item, depth - 1) for item in value[:_SAMPLE_ITEMS]]
        more = [f"... {len(value)} items in all"] if len(value) > _SAMPLE_ITEMS else []
        return shown + more
    return value
