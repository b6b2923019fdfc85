"""What a prompt is made of: fixed sections first, so that providers can cache them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from capgraph.base import BaseExample, OrchestratorGuide, TaskClassifierGuide


class PromptBuilder:
    """Puts a prompt together from sections that a subclass replaces one by one.

    The order is role, task, instructions, examples, reference, dynamic context; empty sections
    are left out. All but the last are the same from call to call.

    Attributes:
        role: Who the model is.
        task: What it is to do; ``None`` when the role says it.
        instructions: The rules.
        examples: Examples, in the order in which they are shown.

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
        """Say who the model is."""
        return self.role

    def get_task(self) -> str | None:
        """Say what it is to do."""
        return self.task

    def get_instructions(self) -> str:
        """Give the rules."""
        return self.instructions

    def get_examples(self) -> Sequence[BaseExample]:
        """Give examples; they must not depend on the request."""
        return self.examples

    def get_reference(self, **_context: Any) -> str:
        """Give what stays the same while the registry does, such as the list of capabilities."""
        return ""

    def get_dynamic_context(self, **_context: Any) -> str:
        """Give what belongs to this one request; it comes last."""
        return ""

    def get_prefix(self, **context: Any) -> str:
        """Join every section but the dynamic context."""
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
        """Join all sections.

        Args:
            **context: What the dynamic sections need; each builder documents its own.
        """
        return _join((self.get_prefix(**context), self.get_dynamic_context(**context)))

    def get_orchestrator_guide(self) -> OrchestratorGuide | None:
        """Give planning advice, for the builder of a capability's prompt."""
        return None

    def get_classifier_guide(self) -> TaskClassifierGuide | None:
        """Give selection advice, for the builder of a capability's prompt."""
        return None


def _join(sections: Sequence[str]) -> str:
    return "\n\n".join(text.strip("\n") for text in sections if text.strip())
