"""The few capabilities of hundreds that a chat model needs to be shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from framework.base import ValidationError
from framework.registry import Candidate
from framework.selection.protocols import NOTHING_EXCLUDED, Selector

_Score = Callable[[str, Sequence[Candidate]], Awaitable[Mapping[str, float]]]


async def shortlist(
    selector: Selector,
    task: str,
    candidates: Sequence[Candidate],
    *,
    limit: int,
    excluded: Mapping[str, str] = NOTHING_EXCLUDED,
) -> tuple[Candidate, ...]:
    """Return the candidates that come nearest to a task, so that prompts stay short.

    They keep the order of ``candidates``: a prompt made of them has a stable beginning
    when the same ones are kept.

    Args:
        selector: Chooses them; one with a method ``score``, such as the lexical selector, ranks
            them instead, so that as many as allowed are kept.
        task: What the person wants.
        candidates: All capabilities.
        limit: How many to keep.
        excluded: Names that are left out, with the reason.

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
    if len(allowed) <= limit:
        return tuple(allowed)
    score: _Score | None = getattr(selector, "score", None)
    if score is None:
        found = await selector.select(task, candidates, limit=limit, excluded=excluded)
        kept = set(found.names)
    else:
        # All candidates are scored, not only the allowed ones: the fitted classifier is that of
        # the whole registry and is not fitted anew for each combination.
        scores = await score(task, candidates)
        ranked = sorted(allowed, key=lambda candidate: -scores.get(candidate.name, 0.0))
        kept = {candidate.name for candidate in ranked[:limit]}
    return tuple(candidate for candidate in allowed if candidate.name in kept)
