"""Few-shot examples and guides: what a capability tells the classifier and the planner."""

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
    """An example that can be written into a prompt."""

    @abstractmethod
    def format_for_prompt(self) -> str:
        """Render the example as prompt text."""

    @staticmethod
    def join(
        examples: Sequence[BaseExample],
        separator: str = "\n",
        max_examples: int | None = None,
        randomize: bool = False,
        add_numbering: bool = False,
        rng: random.Random | None = None,
    ) -> str:
        """Render several examples.

        Args:
            examples: The examples, left as they are.
            separator: Text between two of them.
            max_examples: How many to use at most; 0 means none, ``None`` all.
            randomize: Shuffle a copy first.
            add_numbering: Put ``**Example n:**`` above each.
            rng: Source of the shuffle, so that a prompt can be repeated.
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
    """How to plan one step with a capability.

    Attributes:
        step: The planned step.
        scenario_description: When one would plan it.
        context_requirements: What must be there before.
        notes: Further hints.

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
        """Render scenario, requirements, the step's non-empty fields and the notes."""
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
        """Render numbered examples under a heading; ``""`` when there are none."""
        if not examples:
            return ""
        items = "".join(
            f"\n{n}. {example.format_for_prompt()}" for n, example in enumerate(examples, start=1)
        )
        return f"\n\n**Example Step Planning:**\n{items}"


def _format_field_value(value: Any) -> str:
    if isinstance(value, (str, dict, list)):
        # JSON puts text in double quotes and escapes quotes and line breaks.
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, (set, frozenset)):
        return json.dumps(sorted(value, key=str), ensure_ascii=False, default=str)
    return repr(value)


@dataclass
class ClassifierExample(BaseExample):
    """A request, whether it needs the capability, and why.

    Attributes:
        query: What a person might ask.
        result: Whether the capability is needed for it.
        reason: Why.

    >>> ClassifierExample("Rain today?", True, "Asks for weather").format_for_prompt()
    'User Query: "Rain today?" -> Expected Output: True -> Reason: Asks for weather'
    """

    query: str
    result: bool
    reason: str

    def format_for_prompt(self) -> str:
        """Render the example on one line."""
        query = self.query.replace("\\", "\\\\").replace('"', '\\"')
        query = " ".join(query.split())
        return f'User Query: "{query}" -> Expected Output: {self.result} -> Reason: {self.reason}'

    @staticmethod
    def format_examples_for_prompt(
        examples: Sequence[ClassifierExample], rng: random.Random | int | None = None
    ) -> str:
        """Render examples in random order, which keeps position from being learnt.

        Args:
            examples: The examples, left as they are.
            rng: A seed or generator for an order that can be repeated (prompt caches need that).
        """
        source = rng if isinstance(rng, random.Random) else random.Random(rng)  # noqa: S311
        shuffled = list(examples)
        source.shuffle(shuffled)
        return "\n".join(f"  - {example.format_for_prompt()}" for example in shuffled)


class OrchestratorGuide(BaseModel):
    """What the planner should know about a capability.

    Attributes:
        instructions: When and how to plan with it.
        examples: Steps planned well.
        priority: Place among the guides; lower comes first.

    In place of ``instructions`` the fields ``description``, ``when_to_use``,
    ``provides_context``, ``example_usage`` (and ``capability_name``, which is known anyway) are
    accepted and put together.

    >>> OrchestratorGuide(when_to_use="When dates are named").instructions
    'When dates are named'
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", defer_build=True)

    instructions: str
    examples: list[OrchestratorExample] = Field(default_factory=list)
    priority: int = 0

    @model_validator(mode="before")
    @classmethod
    def _from_parts(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "instructions" in given:
            return given
        rest = {key: value for key, value in given.items() if key not in _PARTS}
        rest.pop("capability_name", None)
        lines = [f"{title}{given[name]}" for name, title in _PARTS.items() if given.get(name)]
        return {**rest, "instructions": "\n".join(lines)} if lines else rest


_PARTS = {
    "description": "",
    "when_to_use": "",
    "provides_context": "Gives: ",
    "example_usage": "Example: ",
}


class ClassifierActions(BaseModel):
    """What to do when a capability matches; extend it with fields of your own."""


class TaskClassifierGuide(BaseModel):
    """What the classifier should know about a capability.

    Attributes:
        instructions: When the capability is needed.
        examples: Requests that need it and requests that do not.
        actions_if_true: What else a match sets off.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", defer_build=True)

    instructions: str
    examples: list[ClassifierExample] = Field(default_factory=list)
    actions_if_true: ClassifierActions = Field(default_factory=ClassifierActions)


def add_examples(
    guide: TaskClassifierGuide | None, examples: Sequence[str], description: str
) -> TaskClassifierGuide | None:
    """Return a guide that has a capability's declared examples too; ``None`` without any.

    Args:
        guide: The guide that the capability writes, if it writes one.
        examples: Requests that need the capability.
        description: What the capability does.

    >>> add_examples(None, ["Rain today?"], "Forecasts rain.").examples[0].result
    True
    """
    known = {example.query for example in guide.examples} if guide is not None else set()
    # A lone text is refused when the class is decorated; its letters are no requests.
    given = () if isinstance(examples, str) else examples
    added = [ClassifierExample(text, True, description) for text in given if text not in known]
    if not added:
        return guide
    if guide is None:
        return TaskClassifierGuide(instructions=description, examples=added)
    return guide.model_copy(update={"examples": [*guide.examples, *added]})
