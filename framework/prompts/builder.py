"""Base class of prompt builders. Constant sections come first, so that providers can cache them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from capgraph.base import BaseExample, OrchestratorGuide, TaskClassifierGuide
from capgraph.configs.logger import get_logger


class PromptBuilder:
    """Builder of a prompt from sections that a subclass can override one by one.

    The order is role, task, instructions, examples, reference, dynamic context. Empty sections are
    omitted. Only the dynamic context differs between calls.

    Attributes:
        role: Role of the model.
        task: Task of the model, or ``None`` if the role describes the task.
        instructions: Rules for the model.
        examples: Examples, in display order.

    >>> class Pirate(PromptBuilder):
    ...     role = "You are a pirate."
    ...     instructions = "Answer in one line."
    >>> print(Pirate().get_system_instructions())
    You are a pirate.
    <BLANKLINE>
    Answer in one line.
    """

    role: ClassVar[str] = ""
    task: ClassVar[str | None] = None
    instructions: ClassVar[str] = ""
    examples: ClassVar[Sequence[BaseExample]] = ()

    def get_role(self) -> str:
        """Return the role of the model."""
        return self.role

    def get_task(self) -> str | None:
        """Return the task of the model."""
        return self.task

    def get_instructions(self) -> str:
        """Return the rules for the model."""
        return self.instructions

    def get_examples(self) -> Sequence[BaseExample]:
        """Return the examples for the prompt, which must be the same for every request."""
        return self.examples

    def get_reference(self, **_context: Any) -> str:
        """Return the prompt section that is the same for all requests to a registry.

        For example, this section lists the capabilities.
        """
        return ""

    def get_dynamic_context(self, **_context: Any) -> str:
        """Return the last section of the prompt, which depends on the request."""
        return ""

    def get_prefix(self, **context: Any) -> str:
        """Return the static part of the prompt, which model providers can cache.

        This is the prompt without the dynamic context at its end.
        """
        shown = BaseExample.join(self.get_examples())
        examples = f"EXAMPLES:\n{shown}" if shown else ""
        sections = (
            self.get_role(),
            self.get_task() or "",
            self.get_instructions(),
            examples,
            self.get_reference(**context),
        )
        return _join(sections)

    def get_system_instructions(self, **context: Any) -> str:
        """Return the complete system prompt.

        Args:
            **context: Values for the dynamic sections. Each subclass documents the values it
                accepts.
        """
        return _join((self.get_prefix(**context), self.get_dynamic_context(**context)))

    def get_orchestrator_guide(self) -> OrchestratorGuide | None:
        """Return the planning guide of the capability that this prompt builder belongs to.

        The default implementation logs a warning and returns None.
        """
        _warn_missing_guide(type(self), "planning")
        return None

    def get_classifier_guide(self) -> TaskClassifierGuide | None:
        """Return the selection guide of the capability that this prompt builder belongs to.

        The default implementation logs a warning and returns None.
        """
        _warn_missing_guide(type(self), "selection")
        return None


def _warn_missing_guide(cls: type[PromptBuilder], kind: str) -> None:
    method = "get_orchestrator_guide" if kind == "planning" else "get_classifier_guide"
    get_logger("framework", "prompts").warning(
        "%s has no %s guide. Fix: override %s.", cls.__name__, kind, method
    )


def _join(sections: Sequence[str]) -> str:
    return "\n\n".join(text.strip("\n") for text in sections if text.strip())
