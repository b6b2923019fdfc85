"""Choosing capabilities with a model: one call for all, or one question for each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from langchain_core.messages import BaseMessage
from pydantic import BaseModel, ConfigDict, Field, create_model

from capgraph.base import CapabilityMatch
from capgraph.base.errors import MalformedAnswerError
from capgraph.configs.logger import get_logger
from capgraph.configs.settings import SelectionSettings
from capgraph.models.calls import generate_structured
from capgraph.models.prompt import build_prompt
from capgraph.models.roles import RoleModel
from capgraph.prompts import PromptBuilder
from capgraph.selection import Candidate, LexicalSelector, Selection

_MAX_EXAMPLES = 6
_NONE: Mapping[str, str] = {}


class _Choice(BaseModel):
    # Providers that hold a model to the form want every field required.
    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        json_schema_extra=lambda form: form.update(required=list(form["properties"])),
    )

    reason: str
    capabilities: list[str]
    answer: str = ""


def choice_schema(names: Sequence[str]) -> type[_Choice]:
    """Return the form of a choice among names.

    The schema lists the names, so that a provider can hold the model to them; validation does
    not, so that an invented name can be dropped and reported instead of spoiling the answer.

    >>> choice_schema(["weather"]).model_json_schema()["properties"]["capabilities"]["items"]
    {'enum': ['weather'], 'type': 'string'}
    """
    listed = Field(
        description="Names of the capabilities that the request needs; empty when none fits.",
        json_schema_extra={"items": {"type": "string", "enum": list(names)}},
    )
    return create_model(
        "Choice",
        __base__=_Choice,
        __doc__="Which capabilities a request needs.",
        reason=(str, Field(description="Why, in one sentence.")),
        capabilities=(list[str], listed),
        answer=(str, Field("", description="If none fits: your reply, and what the agent can do.")),
    )


def describe_candidates(candidates: Sequence[Candidate]) -> str:
    """Write the capabilities down for a prompt, in alphabetical order.

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
    """Write down when a capability is needed, and when not.

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
        shown = [json.dumps(query, ensure_ascii=False) for query in queries[:max_examples]]
        if shown:
            lines.append(f"  {title}: {'; '.join(shown)}")
    return lines


@dataclass(eq=False)
class ModelSelector:
    """Asks a model once for the whole registry.

    Args:
        role: The model.
        prompt: Builder of the prompt.
        offline: Finds the nearest capabilities when there are more than the settings' shortlist.
        settings: How capabilities are chosen.
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
        excluded: Mapping[str, str] = _NONE,
    ) -> Selection:
        """Choose the capabilities that the task needs.

        Raises:
            ModelError: The model failed, refused, or named only capabilities that do not exist.
        """
        shown = await self.offline.nearest_candidates(
            task, candidates, self.settings.shortlist, excluded
        )
        if not shown:
            text = "Every capability was excluded." if candidates else "There are no capabilities."
            return Selection((), reason=text)
        return await self._choose(task, shown, excluded)

    async def _choose(
        self,
        task: str,
        shortlist: Sequence[Candidate],
        excluded: Mapping[str, str],
    ) -> Selection:
        names = sorted(candidate.name for candidate in shortlist)
        found: _Choice = await generate_structured(
            self.role, choice_schema(names), self._build_messages(task, shortlist, excluded)
        )
        chosen = list(dict.fromkeys(name for name in found.capabilities if name in names))
        invented = list(dict.fromkeys(n for n in found.capabilities if n not in names))
        reason = " ".join(found.reason.split())
        if invented:
            told = f"The model named what does not exist: {', '.join(map(repr, invented))}."
            if not chosen:
                raise MalformedAnswerError(
                    f"{told} Nothing else was chosen.",
                    fix=f"The capabilities are {', '.join(names)}.",
                )
            get_logger("framework", "classifier").warning("%s", told)
            reason = f"{reason} {told}".strip()
        answer = "" if chosen else found.answer.strip()
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
    """Asks a model one yes/no question for each capability, a few at once."""

    async def _choose(
        self,
        task: str,
        shortlist: Sequence[Candidate],
        excluded: Mapping[str, str],
    ) -> Selection:
        gate = asyncio.Semaphore(self.settings.max_concurrency)

        async def ask(candidate: Candidate) -> bool:
            messages = self._build_messages(task, [candidate], _NONE)
            async with gate:
                match: CapabilityMatch = await generate_structured(
                    self.role, CapabilityMatch, messages
                )
            return match.is_match

        try:
            async with asyncio.TaskGroup() as group:
                answers = [group.create_task(ask(candidate)) for candidate in shortlist]
        except ExceptionGroup as failed:
            # The first failure speaks for all; the questions still under way were cancelled.
            raise failed.exceptions[0] from failed.exceptions[0].__cause__
        chosen = [c.name for c, answer in zip(shortlist, answers, strict=True) if answer.result()]
        reason = f"The model said yes to {len(chosen)} of {len(shortlist)} capabilities."
        return Selection(tuple(chosen), {}, 1.0 if chosen else 0.0, reason)
