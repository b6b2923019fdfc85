"""Examples and guides with which a capability instructs the classifier and the planner."""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from capgraph.base.plan import PlannedStep


class BaseExample(ABC):
    """An example for a prompt."""

    @abstractmethod
    def format_for_prompt(self) -> str:
        """Return the example as prompt text."""

    @staticmethod
    def join(
        examples: Sequence[BaseExample],
        separator: str = "\n",
        max_examples: int | None = None,
        randomize: bool = False,
        add_numbering: bool = False,
        rng: random.Random | None = None,
    ) -> str:
        """Format several examples and join them into one text.

        Args:
            examples: Examples to format. The sequence is not modified.
            separator: Text between two consecutive examples.
            max_examples: Maximum number of examples. 0 means none, None means all.
            randomize: True to shuffle the examples.
            add_numbering: True to begin each example with ``**Example n:**``.
            rng: Random number generator for a reproducible order.
        """
        chosen = list(examples)
        if randomize:
            (rng or random.Random()).shuffle(chosen)  # noqa: S311 - an order, not a secret
        if max_examples is not None:
            chosen = chosen[:max_examples]
        texts = [example.format_for_prompt() for example in chosen]
        if add_numbering:
            texts = [f"**Example {n}:**\n{text}" for n, text in enumerate(texts, start=1)]
        return separator.join(texts)


@dataclass
class OrchestratorExample(BaseExample):
    """Example that shows the planner how to plan a step with a capability.

    Attributes:
        step: Planned step of the example.
        scenario_description: Situation in which to plan the step.
        context_requirements: Data that must be available, with explanations.
        notes: Additional advice.

    >>> print(OrchestratorExample(
    ...     PlannedStep(context_key="weather_data", capability="weather"), "User asks for weather"
    ... ).format_for_prompt(), end="")
    **User asks for weather**
       PlannedStep(
           context_key="weather_data",
           capability="weather"
       )
    """

    step: PlannedStep
    scenario_description: str
    context_requirements: dict[str, str] | None = None
    notes: str | None = None

    def format_for_prompt(self) -> str:
        """Format the scenario, requirements, planned step, and notes as text for a prompt."""
        lines = [f"**{self.scenario_description}**"]
        if self.context_requirements:
            lines.append("   - Context requirements:")
            lines += [f"     * {key}: {text}" for key, text in self.context_requirements.items()]
        lines.append("   PlannedStep(")
        filled = [
            f"       {name}={_format_field_value(self.step[name])}"  # type: ignore[literal-required]
            for name in PlannedStep.__annotations__
            if self.step.get(name) not in (None, [], {}, "")
        ]
        lines += [text + "," for text in filled[:-1]] + filled[-1:]
        lines.append("   )")
        if self.notes:
            lines.append(f"   - Note: {self.notes}")
        return "".join(line + "\n" for line in lines)

    @staticmethod
    def format_examples_for_prompt(examples: Sequence[OrchestratorExample]) -> str:
        """Format planning examples as a numbered list with a heading.

        Return an empty string if there are no examples.
        """
        if not examples:
            return ""
        items = "".join(
            f"\n{n}. {example.format_for_prompt()}" for n, example in enumerate(examples, start=1)
        )
        return f"\n\n**Example Step Planning:**\n{items}"


def _format_field_value(value: Any) -> str:
    if isinstance(value, (str, dict, list)):
        # JSON quotes text and escapes quotes and line breaks.
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, (set, frozenset)):
        return json.dumps(sorted(value, key=str), ensure_ascii=False, default=str)
    return repr(value)


@dataclass
class ClassifierExample(BaseExample):
    """Example of a user request, with the answer whether a capability is needed.

    Attributes:
        query: Text of the request.
        result: True if the request needs the capability.
        reason: Explanation of the result.

    >>> ClassifierExample("Rain today?", True, "Asks for weather").format_for_prompt()
    'User Query: "Rain today?" -> Expected Output: True -> Reason: Asks for weather'
    """

    query: str
    result: bool
    reason: str

    def format_for_prompt(self) -> str:
        """Return the example as one line."""
        query = self.query.replace("\\", "\\\\").replace('"', '\\"')
        query = " ".join(query.split())
        return f'User Query: "{query}" -> Expected Output: {self.result} -> Reason: {self.reason}'

    @staticmethod
    def format_examples_for_prompt(
        examples: Sequence[ClassifierExample], rng: random.Random | int | None = None
    ) -> str:
        """Format classifier examples in random order.

        The order is random so that the position of an example does not influence the model.

        Args:
            examples: Examples to format. The sequence is not modified.
            rng: Seed or random number generator for a reproducible order, which prompt caching
                requires.
        """
        source = rng if isinstance(rng, random.Random) else random.Random(rng)  # noqa: S311
        shuffled = list(examples)
        source.shuffle(shuffled)
        return "\n".join(f"  - {example.format_for_prompt()}" for example in shuffled)


class OrchestratorGuide(BaseModel):
    """Advice for the planner about a capability.

    Attributes:
        instructions: When and how to use the capability in a plan.
        examples: Examples of planned steps.
        priority: Position among the guides. Lower values come first.

    Instead of ``instructions``, the fields ``description``, ``when_to_use``, ``provides_context``, and
    ``example_usage`` are accepted and joined. ``capability_name`` is accepted and ignored.

    >>> OrchestratorGuide(when_to_use="When dates are named").instructions
    'When dates are named'
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", defer_build=True)

    instructions: str
    examples: list[OrchestratorExample] = Field(default_factory=list)
    priority: int = 0

    @model_validator(mode="before")
    @classmethod
    def _join_parts(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "instructions" in data:
            return data
        rest = {key: value for key, value in data.items() if key not in _PARTS}
        rest.pop("capability_name", None)
        lines = [f"{title}{data[name]}" for name, title in _PARTS.items() if data.get(name)]
        return {**rest, "instructions": "\n".join(lines)} if lines else rest


_PARTS = {
    "description": "",
    "when_to_use": "",
    "provides_context": "Gives: ",
    "example_usage": "Example: ",
}


class ClassifierActions(BaseModel):
    """Actions after a match. Subclass it to add fields."""


class TaskClassifierGuide(BaseModel):
    """Advice for the classifier about a capability.

    Attributes:
        instructions: When the capability is needed.
        examples: Requests that need the capability, and requests that do not.
        actions_if_true: Actions after a match.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", defer_build=True)

    instructions: str
    examples: list[ClassifierExample] = Field(default_factory=list)
    actions_if_true: ClassifierActions = Field(default_factory=ClassifierActions)


def add_examples(
    guide: TaskClassifierGuide | None, examples: Sequence[str], description: str
) -> TaskClassifierGuide | None:
    """Add the declared example requests of a capability to its classifier guide.

    Args:
        guide: Guide of the capability, if it has one.
        examples: Declared requests that need the capability.
        description: What the capability does.

    Returns:
        The guide with the examples, or None if there is neither a guide nor an example.

    >>> add_examples(None, ["Rain today?"], "Forecasts rain.").examples[0].result
    True
    """
    known = {example.query for example in guide.examples} if guide is not None else set()
    # The decorator refuses a single string later. Do not treat its characters as examples.
    texts = () if isinstance(examples, str) else examples
    added = [ClassifierExample(text, True, description) for text in texts if text not in known]
    if not added:
        return guide
    if guide is None:
        return TaskClassifierGuide(instructions=description, examples=added)
    return guide.model_copy(update={"examples": [*guide.examples, *added]})
