"""The few capabilities of hundreds that a chat model needs to be shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from framework.base import ValidationError
from framework.registry import Candidate
from framework.selection.protocols import NOTHING_EXCLUDED


class Scorer(Protocol):
    """Anything that ranks candidates, such as the lexical or the embedding selector."""

    async def score(self, task: str, candidates: Sequence[Candidate]) -> Mapping[str, float]:
        """Return a score for every candidate; higher fits better."""
        ...


async def shortlist(
    scorer: Scorer,
    task: str,
    candidates: Sequence[Candidate],
    *,
    limit: int,
    always: Collection[str] = (),
    excluded: Mapping[str, str] = NOTHING_EXCLUDED,
) -> tuple[Candidate, ...]:
    """Return the candidates that come nearest to a task, so that prompts stay short.

    They keep the order of ``candidates``: a prompt made of them has a stable beginning
    when the same ones are kept.

    Args:
        scorer: Ranks the candidates.
        task: What the person wants.
        candidates: All capabilities.
        limit: How many to keep, besides those in ``always``.
        always: Names that are kept whatever their score.
        excluded: Names that are left out, with the reason; wins over ``always``.

    Raises:
        ValidationError: ``limit`` is below 1.

    >>> import asyncio
    >>> from framework.selection import Candidate, LexicalSelector
    >>> many = [Candidate(f"sell_{thing}", f"Sells {thing}.") for thing in ("tea", "rice", "salt")]
    >>> kept = asyncio.run(shortlist(LexicalSelector(), "I need rice", many, limit=1))
    >>> [candidate.name for candidate in kept]
    ['sell_rice']
    """
    if limit < 1:
        raise ValidationError(f"The limit of a shortlist is {limit!r}.", fix="Give at least 1.")
    allowed = [candidate for candidate in candidates if candidate.name not in excluded]
    ranked = [candidate for candidate in allowed if candidate.name not in always]
    if len(ranked) <= limit:
        return tuple(allowed)
    # All candidates are scored, not only the allowed ones: the fitted head is that of the
    # whole registry and is not fitted anew for each combination.
    scores = await scorer.score(task, candidates)
    ranked.sort(key=lambda candidate: -scores.get(candidate.name, 0.0))
    kept = {candidate.name for candidate in ranked[:limit]} | set(always)
    return tuple(candidate for candidate in allowed if candidate.name in kept)
