"""The offline selectors: a classifier fitted to the candidates, over words or vectors too.

Settings were chosen on training parts of public data only (CLINC150 training and validation
queries, BANKING77 training queries, a fixed half of MetaTool's queries); the figures that
``tests/benchmarks/selection.py`` prints come from the other parts.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from framework.base import ValidationError, require_extra
from framework.registry import Candidate
from framework.selection.protocols import NOTHING_EXCLUDED, Selection
from framework.selection.texts import MAX_CHARACTERS, clauses

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings

    from framework.selection.fit import Fit

_KEPT_FITS = 4
_SHOWN = 3
_NEARLY = 0.8


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
    >>> from framework.selection import Candidate
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
        self._fits: OrderedDict[tuple[Candidate, ...], Fit] = OrderedDict()
        # A lock of asyncio belongs to one event loop; an instance may serve several.
        self._locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )

    async def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Fit ahead of the first request, so that it does not wait."""
        await self._fitted(tuple(candidates))

    async def score(self, task: str, candidates: Sequence[Candidate]) -> dict[str, float]:
        """Return a score from 0 to 1 for every candidate, best first; 0.5 starts to fit."""
        evidence = await self._compare(task, tuple(candidates))
        return {name: _score(value) for name, value in evidence}

    async def select(
        self,
        task: str,
        candidates: Sequence[Candidate],
        *,
        limit: int | None = None,
        excluded: Mapping[str, str] = NOTHING_EXCLUDED,
    ) -> Selection:
        """Choose the capabilities that the task needs; see :class:`Selector`."""
        if limit is not None and limit < 1:
            raise ValidationError(
                f"The limit of a selection is {limit!r}.", fix="Give at least 1, or None."
            )
        if not task.strip():
            return Selection((), reason="The task is empty.")
        evidence = await self._compare(task, tuple(candidates))
        scores = {name: _score(value) for name, value in evidence}
        open_ = [(name, value) for name, value in evidence if name not in excluded]
        if not open_:
            text = "Every capability was excluded." if evidence else "There are no capabilities."
            return Selection((), scores, 0.0, text)
        top = open_[0][1]
        best = _score(top)
        if best < self._threshold:
            return Selection((), scores, best, self._none_reason(open_[0][0], best, excluded))
        # Beside the best: what is close to it, and what (nearly) fits by itself. The parts
        # of a compound request weaken one another, hence "nearly".
        enough = min(self._margin * top, _NEARLY * self._threshold / (1 - self._threshold))
        # Foreign code that may be slow or read a file: not on the event loop.
        sure = await asyncio.to_thread(_verdicts, task, candidates)
        names = tuple(
            name
            for name, value in open_
            if (sure.get(name) is None and value >= enough) or sure.get(name)
        )[:limit]
        return Selection(names, scores, best, _reason(names, scores))

    async def _compare(
        self, task: str, candidates: tuple[Candidate, ...]
    ) -> list[tuple[str, float]]:
        """Return the candidates with their evidence, strongest first."""
        if not candidates or not task.strip():
            return []
        fitted = await self._fitted(candidates)
        task = task.strip()[:MAX_CHARACTERS]
        texts = [task, *clauses(task)]
        vectors = None
        if self._embeddings is not None:
            # Some models treat queries and documents differently, so not aembed_documents.
            vectors = await asyncio.gather(*map(self._embeddings.aembed_query, texts))
        values = await asyncio.to_thread(fitted.evidence, texts, vectors)
        pairs = [(c.name, float(v)) for c, v in zip(candidates, values, strict=True)]
        return sorted(pairs, key=lambda pair: -pair[1])

    async def _fitted(self, candidates: tuple[Candidate, ...]) -> Fit:
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with lock:
            found = self._fits.pop(candidates, None) or await self._fit(candidates)
            self._fits[candidates] = found  # the last one used is the last to go
            while len(self._fits) > _KEPT_FITS:
                self._fits.popitem(last=False)
            return found

    async def _fit(self, candidates: tuple[Candidate, ...]) -> Fit:
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
    from framework.selection.head import training_rows

    return training_rows(candidates)


def _fit(rows: Any, vectors: list[list[float]] | None) -> Fit:
    from framework.selection.fit import Fit

    return Fit(rows, vectors)


def _verdicts(task: str, candidates: Sequence[Candidate]) -> dict[str, bool | None]:
    text = task[:MAX_CHARACTERS]
    return {c.name: c.recognises(text) for c in candidates if c.recognises is not None}


def _score(evidence: float) -> float:
    """Map evidence to 0..1, so that evidence at its threshold gives 0.5."""
    return evidence / (evidence + 1.0)


def _reason(names: Sequence[str], scores: Mapping[str, float]) -> str:
    shown = ", ".join(f"{name} ({scores[name]:.2f})" for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"The task resembles what is served by {shown}{more}."
