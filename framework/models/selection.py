"""Selectors that ask a chat model for capabilities: in one call, or with one call for each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from langchain_core.messages import BaseMessage
from pydantic import BaseModel, ConfigDict, Field, create_model

from capgraph.base import CapabilityMatch
from capgraph.base.errors import MalformedAnswerError, ModelError
from capgraph.configs.logger import get_logger
from capgraph.configs.settings import SelectionSettings
from capgraph.models.calls import generate_structured
from capgraph.models.prompt import build_prompt
from capgraph.models.roles import RoleModel
from capgraph.prompts import PromptBuilder
from capgraph.selection import Candidate, LexicalSelector, Selection
from capgraph.selection.protocols import NO_EXCLUSIONS

_MAX_EXAMPLES = 6


class _Choice(BaseModel):
    # Providers that enforce a schema expect every field to be required.
    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        json_schema_extra=lambda form: form.update(required=list(form["properties"])),
    )

    reason: str
    capabilities: list[str]
    answer: str = ""


def build_choice_schema(names: Sequence[str]) -> type[_Choice]:
    """Build a pydantic class for a model's selection from a list of capability names.

    The schema lists the names so that providers can enforce them. Validation does not check the
    names, because an invented name must be dropped and reported without rejecting the whole
    answer.

    >>> build_choice_schema(["weather"]).model_json_schema()["properties"]["capabilities"]["items"]
    {'enum': ['weather'], 'type': 'string'}
    """
    names_field = Field(
        description="Names of the capabilities that the request needs; empty when none fits.",
        json_schema_extra={"items": {"type": "string", "enum": list(names)}},
    )
    return create_model(
        "Choice",
        __base__=_Choice,
        __doc__="Which capabilities a request needs.",
        reason=(str, Field(description="Why, in one sentence.")),
        capabilities=(list[str], names_field),
        answer=(str, Field("", description="If none fits: your reply, and what the agent can do.")),
    )


def describe_candidates(candidates: Sequence[Candidate]) -> str:
    """Format candidate capabilities as prompt text, in alphabetical order.

    >>> print(describe_candidates([Candidate("rain", "Tells about rain.", positives=("Wet?",))]))
    - rain: Tells about rain.
      needed for: "Wet?"
    """
    lines = []
    for candidate in sorted(candidates, key=lambda item: item.name):
        lines.append(f"- {candidate.name}: {' '.join(candidate.description.split())}")
        lines += format_selection_hints(candidate, _MAX_EXAMPLES)
    return "\n".join(lines)


def format_selection_hints(candidate: Candidate, max_examples: int) -> list[str]:
    """Format prompt lines that describe when a capability is needed and when it is not.

    >>> format_selection_hints(Candidate("rain", "Tells about rain.", positives=("Wet?", "Dry?")), 1)
    ['  needed for: "Wet?"']
    """
    lines = []
    if candidate.instructions != candidate.description and candidate.instructions:
        lines.append(f"  when: {' '.join(candidate.instructions.split())}")
    for title, queries in (
        ("needed for", candidate.positives),
        ("not needed for", candidate.negatives),
    ):
        examples = [json.dumps(query, ensure_ascii=False) for query in queries[:max_examples]]
        if examples:
            lines.append(f"  {title}: {'; '.join(examples)}")
    return lines


@dataclass(eq=False)
class ModelSelector:
    """Selector that asks a chat model to choose among the capabilities in a single call.

    Args:
        role: Chat model for the selection role.
        prompt: Prompt builder.
        offline: Selector that finds the most similar capabilities when there are more than
            ``settings.shortlist``.
        settings: Selection settings.
    """

    role: RoleModel
    prompt: PromptBuilder
    offline: LexicalSelector
    settings: SelectionSettings

    async def select(
        self,
        task: str,
        candidates: Sequence[Candidate],
        *,
        excluded: Mapping[str, str] = NO_EXCLUSIONS,
    ) -> Selection:
        """Select the capabilities that a task needs.

        Raises:
            ModelError: The call failed, the model refused, or it named only unknown capabilities.
        """
        shortlist = await self.offline.nearest_candidates(
            task, candidates, self.settings.shortlist, excluded
        )
        if not shortlist:
            text = (
                "All capabilities are excluded." if candidates else "No capabilities are available."
            )
            return Selection((), reason=text)
        return await self._choose(task, shortlist, excluded)

    async def _choose(
        self, task: str, shortlist: Sequence[Candidate], excluded: Mapping[str, str]
    ) -> Selection:
        names = sorted(candidate.name for candidate in shortlist)
        reply: _Choice = await generate_structured(
            self.role, build_choice_schema(names), self._build_messages(task, shortlist, excluded)
        )
        chosen = list(dict.fromkeys(name for name in reply.capabilities if name in names))
        invented = list(dict.fromkeys(n for n in reply.capabilities if n not in names))
        reason = " ".join(reply.reason.split())
        if invented:
            problem = f"The model chose unknown capabilities: {', '.join(map(repr, invented))}."
            if not chosen:
                raise MalformedAnswerError(
                    f"{problem} The model selected no other capability.",
                    fix=f"Use {', '.join(names)}.",
                )
            get_logger("framework", "classifier").warning("%s", problem)
            reason = f"{reason} {problem}".strip()
        answer = "" if chosen else reply.answer.strip()
        return Selection(tuple(chosen), {}, 1.0 if chosen else 0.0, reason, answer)

    def _build_messages(
        self, task: str, shortlist: Sequence[Candidate], excluded: Mapping[str, str]
    ) -> list[BaseMessage]:
        context = {
            "capabilities": describe_candidates(shortlist),
            "task": task,
            "excluded": excluded,
        }
        return build_prompt(self.prompt, context)


class PerCapabilitySelector(ModelSelector):
    """Selector that asks a chat model a separate yes/no question about each capability.

    The questions are asked concurrently. A capability whose question fails is not selected. If
    every question fails, the selection fails.
    """

    async def _choose(
        self, task: str, shortlist: Sequence[Candidate], excluded: Mapping[str, str]
    ) -> Selection:
        gate = asyncio.Semaphore(self.settings.max_concurrency)

        failures: list[ModelError] = []

        async def ask(candidate: Candidate) -> bool:
            messages = self._build_messages(task, [candidate], NO_EXCLUSIONS)
            async with gate:
                try:
                    match: CapabilityMatch = await generate_structured(
                        self.role, CapabilityMatch, messages
                    )
                except ModelError as exc:
                    failures.append(exc)
                    get_logger("models", "selection").warning(
                        "%s is not selected, because its question failed: %s", candidate.name, exc
                    )
                    return False
            return match.is_match

        try:
            async with asyncio.TaskGroup() as group:
                answers = [group.create_task(ask(candidate)) for candidate in shortlist]
        except ExceptionGroup as failed:
            # The first failure is reported. The remaining questions were cancelled.
            raise failed.exceptions[0] from failed.exceptions[0].__cause__
        if failures and len(failures) == len(shortlist):
            raise failures[0]
        chosen = [c.name for c, answer in zip(shortlist, answers, strict=True) if answer.result()]
        reason = f"The model chose {len(chosen)} of {len(shortlist)} capabilities."
        if failures:
            reason += f" {len(failures)} questions failed."
        return Selection(tuple(chosen), {}, 1.0 if chosen else 0.0, reason)
