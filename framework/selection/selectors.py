"""Selectors that work offline: a classifier that is fitted to the candidates.

The constants were tuned on the training parts of public data only (CLINC150 training and validation
queries, BANKING77 training queries, a fixed half of MetaTool's queries). The results of
``tests/benchmarks/selection.py`` come from the other parts.
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

_MAX_FITS = 4
_MAX_SHOWN_NAMES = 3


class LexicalSelector:
    """Default selector, which compares words with names, descriptions, instructions, and examples.

    Each instance caches the classifiers for the most recent sets of candidates. It fits and evaluates
    them in a worker thread.

    Args:
        margin: Minimum score of each further capability, as a fraction of the best score, between 0
            and 1. A capability that nearly fits by itself is selected as well.
        threshold: Minimum score of the best capability, between 0 and 1.

    Raises:
        MissingExtraError: numpy is not installed. Raised at first use.

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
                    f"The selector's {name} is {value!r}: expected a number between 0 and 1.",
                    fix="Pass a number above 0 and below 1.",
                    facts={name: value},
                )
        self._margin = margin
        self._threshold = threshold
        self._fits: BoundedDict[tuple[Candidate, ...], TextClassifier] = BoundedDict(_MAX_FITS)
        # An asyncio lock belongs to one event loop, and an instance may serve several.
        self._locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )

    async def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Fit the classifier for a set of candidates before the first request arrives."""
        await self._get_fit(tuple(candidates))

    async def score(self, task: str, candidates: Sequence[Candidate]) -> dict[str, float]:
        """Score candidates for a task from 0 to 1, in descending order.

        A candidate with a score of at least 0.5 fits the task.
        """
        if not candidates or not task.strip():
            return {}
        _, _, rows = await self._compute_evidence(task, tuple(candidates))
        return _compute_scores(rows, candidates)

    async def nearest_candidates(
        self,
        task: str,
        candidates: Sequence[Candidate],
        limit: int,
        excluded: Mapping[str, str] = NO_EXCLUSIONS,
    ) -> tuple[Candidate, ...]:
        """Return the highest-scoring candidates for a task, in the order of ``candidates``.

        Prompts list these candidates, and a stable order lets model providers cache the prompts.

        Args:
            task: The user's request.
            candidates: Capabilities to compare with the task.
            limit: Maximum number of candidates to return.
            excluded: Names of candidates to omit, mapped to the reasons.
        """
        allowed = [candidate for candidate in candidates if candidate.name not in excluded]
        if len(allowed) > limit:
            # Score all candidates, because a classifier is fitted for each set of candidates.
            scores = await self.score(task, candidates)
            ranked = sorted(allowed, key=lambda candidate: -scores.get(candidate.name, 0.0))
            names = {candidate.name for candidate in ranked[:limit]}
            allowed = [candidate for candidate in allowed if candidate.name in names]
        return tuple(allowed)

    async def select(
        self,
        task: str,
        candidates: Sequence[Candidate],
        *,
        excluded: Mapping[str, str] = NO_EXCLUSIONS,
    ) -> Selection:
        """Select the capabilities that a task needs, based on text similarity.

        See :meth:`Selector.select`.
        """
        if not task.strip():
            return Selection((), reason="The task is empty.")
        if not candidates:
            return Selection((), reason="There are no capabilities.")
        fitted, texts, rows = await self._compute_evidence(task, tuple(candidates))
        scores = _compute_scores(rows, candidates)
        allowed = [name for name in scores if name not in excluded]
        if not allowed:
            return Selection((), scores, 0.0, "Every capability was excluded.")
        best = scores[allowed[0]]
        if best < self._threshold:
            return Selection((), scores, best, self._explain_no_fit(allowed[0], best, excluded))

        def decide() -> set[str]:
            # In a worker thread, because matches_task of a capability may block.
            from capgraph.selection.candidate_choice import choose_candidates

            rows[:, [c.name in excluded for c in candidates]] = 0.0
            least = self._threshold / (1 - self._threshold)
            unexplained = (
                fitted.unexplained_evidence(texts[0]) if self._embeddings is None else None
            )
            taught = [bool(c.positives) for c in candidates]
            chosen = choose_candidates(
                rows, taught, unexplained, self._margin, least, fitted.is_exclusive
            )
            verdicts = [c.matches_task(texts[0]) if c.matches_task else None for c in candidates]
            pairs = zip(candidates, chosen, verdicts, strict=True)
            return {c.name for c, by_text, known in pairs if known or (known is None and by_text)}

        chosen = await asyncio.to_thread(decide)
        names = tuple(name for name in allowed if name in chosen)
        return Selection(names, scores, best, _explain_selection(names, scores))

    async def _compute_evidence(
        self, task: str, candidates: tuple[Candidate, ...]
    ) -> tuple[TextClassifier, list[str], Any]:
        """Compute similarity evidence for a task and its clauses.

        Returns the fitted classifier, the texts of the task and its clauses, and their evidence.
        """
        fitted = await self._get_fit(candidates)
        task = task.strip()[:MAX_CHARACTERS]
        texts = [task, *split_clauses(task)]
        vectors = None
        if self._embeddings is not None:
            # Some models treat queries and documents differently, so not aembed_documents.
            vectors = await asyncio.gather(*map(self._embeddings.aembed_query, texts))
        return fitted, texts, await asyncio.to_thread(fitted.evidence, texts, vectors)

    async def _get_fit(self, candidates: tuple[Candidate, ...]) -> TextClassifier:
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:
            found = self._fits.get(candidates) or await self._fit_classifier(candidates)
            self._fits[candidates] = found  # moves the entry to the end of the eviction order
            return found

    async def _fit_classifier(self, candidates: tuple[Candidate, ...]) -> TextClassifier:
        rows = await asyncio.to_thread(_collect_rows, candidates)
        vectors = None
        if self._embeddings is not None:
            vectors = await self._embeddings.aembed_documents(rows.texts)
        return await asyncio.to_thread(_fit_classifier, rows, vectors)

    def _explain_no_fit(self, name: str, best: float, excluded: Mapping[str, str]) -> str:
        text = (
            f"No capability fits: the best, {name}, scores {best:.2f}, below {self._threshold:.2f}."
        )
        return text + (f" Excluded after failing: {', '.join(excluded)}." if excluded else "")


class EmbeddingSelector(LexicalSelector):
    """Selector that compares both words and embeddings to find matching capabilities.

    The first request with new candidates embeds all candidate texts in one call. Each
    subsequent request embeds only the task and, if it is compound, its clauses.

    Args:
        embeddings: LangChain ``Embeddings``. Only the asynchronous methods are called.
        margin: See :class:`LexicalSelector`.
        threshold: See :class:`LexicalSelector`.

    Raises:
        MissingExtraError: numpy is not installed. Raised at first use.
        ModelError: The model does not return exactly one vector for each text.
    """

    def __init__(
        self, embeddings: Embeddings, *, margin: float = 0.6, threshold: float = 0.5
    ) -> None:
        super().__init__(margin=margin, threshold=threshold)
        self._embeddings = embeddings


def _collect_rows(candidates: tuple[Candidate, ...]) -> Any:
    require_extra("numpy", "offline")
    from capgraph.selection.similarity_classifier import collect_training_data

    return collect_training_data(candidates)


def _fit_classifier(rows: Any, vectors: list[list[float]] | None) -> TextClassifier:
    from capgraph.selection.text_classifier import TextClassifier

    return TextClassifier(rows, vectors)


def _compute_scores(rows: Any, candidates: Sequence[Candidate]) -> dict[str, float]:
    """Convert similarity evidence to scores from 0 to 1, sorted in descending order.

    Evidence exactly at the threshold becomes a score of 0.5.
    """
    from capgraph.selection.candidate_choice import max_evidence

    pairs = zip(candidates, map(float, max_evidence(rows)), strict=True)
    ranked = sorted(pairs, key=lambda pair: -pair[1])
    return {candidate.name: value / (value + 1.0) for candidate, value in ranked}


def _explain_selection(names: Sequence[str], scores: Mapping[str, float]) -> str:
    shown = ", ".join(f"{name} ({scores[name]:.2f})" for name in names[:_MAX_SHOWN_NAMES])
    more = f" and {len(names) - _MAX_SHOWN_NAMES} more" if len(names) > _MAX_SHOWN_NAMES else ""
    return f"The task matches {shown}{more}."
