"""The offline selectors: a classifier fitted to the candidates, over words or vectors too.

Settings were chosen on training parts of public data only (CLINC150 training and validation
queries, BANKING77 training queries, a fixed half of MetaTool's queries); the figures that
``tests/benchmarks/selection.py`` prints come from the other parts.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from capgraph.base import ValidationError, require_extra
from capgraph.configs.bounded_dict import BoundedDict
from capgraph.registry import Candidate
from capgraph.selection.protocols import NO_EXCLUSIONS, Selection
from capgraph.selection.texts import MAX_CHARACTERS, split_clauses

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings

    from capgraph.selection.text_classifier import TextClassifier

_KEPT_FITS = 4
_SHOWN = 3


class LexicalSelector:
    """The default selector: learns from names, descriptions, instructions and examples.

    Fitted classifiers are kept on the instance, one for each set of candidates (the last
    few sets), and are fitted and used off the event loop.

    Args:
        margin: A further capability is chosen when its evidence is at least this
            share of the best one's, or when it nearly fits by itself.
        threshold: Score below which even the best capability does not fit.

    Raises:
        MissingExtraError: At first use, when numpy is not installed.

    >>> import asyncio
    >>> from capgraph.selection import Candidate
    >>> weather = Candidate("weather", "Tells the weather and the temperature of a place.",
    ...     positives=("Will it rain in Oslo?", "How warm is it in Rome?"))
    >>> news = Candidate("news", "Finds recent news.", positives=("Any news on elections?",))
    >>> selector = LexicalSelector()
    >>> asyncio.run(selector.select("How warm will it be in Lima?", [weather, news])).names
    ('weather',)
    >>> asyncio.run(selector.select("Write me a poem", [weather, news])).names
    ()
    """

    _embeddings: Embeddings | None = None

    def __init__(self, *, margin: float = 0.6, threshold: float = 0.5) -> None:
        for name, value in (("margin", margin), ("threshold", threshold)):
            if not 0.0 < value < 1.0:
                raise ValidationError(
                    f"The {name} of a selector is {value!r}.",
                    fix="Give a number between 0 and 1.",
                )
        self._margin = margin
        self._threshold = threshold
        self._fits: BoundedDict[tuple[Candidate, ...], TextClassifier] = BoundedDict(_KEPT_FITS)
        # A lock of asyncio belongs to one event loop; an instance may serve several.
        self._locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )

    async def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Fit ahead of the first request, so that it does not wait."""
        await self._fitted(tuple(candidates))

    async def score(self, task: str, candidates: Sequence[Candidate]) -> dict[str, float]:
        """Return a score from 0 to 1 for every candidate, best first; 0.5 starts to fit."""
        if not candidates or not task.strip():
            return {}
        _, _, rows = await self._evidence(task, tuple(candidates))
        return _scores(rows, candidates)

    async def nearest_candidates(
        self,
        task: str,
        candidates: Sequence[Candidate],
        limit: int,
        excluded: Mapping[str, str] = NO_EXCLUSIONS,
    ) -> tuple[Candidate, ...]:
        """Return the candidates that come nearest to a task, so that prompts stay short.

        They keep the order of ``candidates``: a prompt made of them has a stable beginning when
        the same ones are kept.
        """
        allowed = [candidate for candidate in candidates if candidate.name not in excluded]
        if len(allowed) > limit:
            # All are scored, not only the allowed ones: the classifier is that of the whole
            # registry and is not fitted anew for each combination.
            scores = await self.score(task, candidates)
            ranked = sorted(allowed, key=lambda candidate: -scores.get(candidate.name, 0.0))
            kept = {candidate.name for candidate in ranked[:limit]}
            allowed = [candidate for candidate in allowed if candidate.name in kept]
        return tuple(allowed)

    async def select(
        self,
        task: str,
        candidates: Sequence[Candidate],
        *,
        excluded: Mapping[str, str] = NO_EXCLUSIONS,
    ) -> Selection:
        """Choose the capabilities that the task needs; see :class:`Selector`."""
        if not task.strip():
            return Selection((), reason="The task is empty.")
        if not candidates:
            return Selection((), reason="There are no capabilities.")
        fitted, texts, rows = await self._evidence(task, tuple(candidates))
        scores = _scores(rows, candidates)
        open_ = [name for name in scores if name not in excluded]
        if not open_:
            return Selection((), scores, 0.0, "Every capability was excluded.")
        best = scores[open_[0]]
        if best < self._threshold:
            return Selection((), scores, best, self._none_reason(open_[0], best, excluded))

        def decide() -> set[str]:
            # Capabilities' own code too, which may be slow or read a file: not on the event loop.
            from capgraph.selection.candidate_choice import choose_candidates

            rows[:, [c.name in excluded for c in candidates]] = 0.0
            least = self._threshold / (1 - self._threshold)
            unexplained = (
                fitted.unexplained_evidence(texts[0]) if self._embeddings is None else None
            )
            taught = [bool(c.positives) for c in candidates]
            chosen = choose_candidates(rows, taught, unexplained, self._margin, least)
            sure = [c.matches_task(texts[0]) if c.matches_task else None for c in candidates]
            pairs = zip(candidates, chosen, sure, strict=True)
            return {c.name for c, by_text, known in pairs if known or (known is None and by_text)}

        chosen = await asyncio.to_thread(decide)
        names = tuple(name for name in open_ if name in chosen)
        return Selection(names, scores, best, _reason(names, scores))

    async def _evidence(
        self, task: str, candidates: tuple[Candidate, ...]
    ) -> tuple[TextClassifier, list[str], Any]:
        """Return the fit, the task with its clauses, and what each says for the candidates."""
        fitted = await self._fitted(candidates)
        task = task.strip()[:MAX_CHARACTERS]
        texts = [task, *split_clauses(task)]
        vectors = None
        if self._embeddings is not None:
            # Some models treat queries and documents differently, so not aembed_documents.
            vectors = await asyncio.gather(*map(self._embeddings.aembed_query, texts))
        return fitted, texts, await asyncio.to_thread(fitted.evidence, texts, vectors)

    async def _fitted(self, candidates: tuple[Candidate, ...]) -> TextClassifier:
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:
            found = self._fits.get(candidates) or await self._fit(candidates)
            self._fits[candidates] = found  # the last one used is the last to go
            return found

    async def _fit(self, candidates: tuple[Candidate, ...]) -> TextClassifier:
        rows = await asyncio.to_thread(_rows, candidates)
        vectors = None
        if self._embeddings is not None:
            vectors = await self._embeddings.aembed_documents(rows.texts)
        return await asyncio.to_thread(_fit, rows, vectors)

    def _none_reason(self, name: str, best: float, excluded: Mapping[str, str]) -> str:
        text = (
            f"No capability fits: the closest, {name}, scores {best:.2f}; "
            f"{self._threshold:.2f} is needed."
        )
        return text + (f" Excluded after failing: {', '.join(excluded)}." if excluded else "")


class EmbeddingSelector(LexicalSelector):
    """Chooses by sentence vectors and words together.

    A first request with new candidates embeds all their texts in one call; every
    further one embeds the task and, when it is compound, its clauses.

    Args:
        embeddings: Any LangChain embeddings; their asynchronous methods are used.
        margin: As for :class:`LexicalSelector`.
        threshold: As for :class:`LexicalSelector`.

    Raises:
        MissingExtraError: At first use, when numpy is not installed.
        ModelError: The embeddings gave something other than one vector for each text.
    """

    def __init__(
        self, embeddings: Embeddings, *, margin: float = 0.6, threshold: float = 0.5
    ) -> None:
        super().__init__(margin=margin, threshold=threshold)
        self._embeddings = embeddings


def _rows(candidates: tuple[Candidate, ...]) -> Any:
    require_extra("numpy", "offline")
    from capgraph.selection.similarity_classifier import collect_training_data

    return collect_training_data(candidates)


def _fit(rows: Any, vectors: list[list[float]] | None) -> TextClassifier:
    from capgraph.selection.text_classifier import TextClassifier

    return TextClassifier(rows, vectors)


def _scores(rows: Any, candidates: Sequence[Candidate]) -> dict[str, float]:
    """Map evidence to 0..1, so that evidence at its threshold gives 0.5; best first."""
    from capgraph.selection.candidate_choice import max_evidence

    pairs = zip(candidates, map(float, max_evidence(rows)), strict=True)
    ranked = sorted(pairs, key=lambda pair: -pair[1])
    return {candidate.name: value / (value + 1.0) for candidate, value in ranked}


def _reason(names: Sequence[str], scores: Mapping[str, float]) -> str:
    shown = ", ".join(f"{name} ({scores[name]:.2f})" for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"The task resembles what is served by {shown}{more}."
