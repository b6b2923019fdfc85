"""Selection by sentence vectors: any LangChain ``Embeddings`` under the same head.

Vectors and TF-IDF similarities are added, since each finds what the other misses:
vectors know that "rain" and "umbrella" belong together, n-grams that two part numbers
differ. Settings were chosen on training parts of public data only, with the vectors of
:class:`~framework.selection.minilm.MiniLMEmbeddings`; see :mod:`framework.selection.lexical`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from framework.base import ModelError, require_extra
from framework.registry import Candidate
from framework.selection.engine import HeadSelector
from framework.selection.head import EXTRA, Calibration, Head, Rows, training_rows
from framework.selection.lexical import LexicalIndex
from framework.selection.threads import one_blas_thread

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from numpy.typing import NDArray

_CALIBRATION = Calibration(none=0.13, many=0.50, logistic=0.14, slope=0.02, drop_unrelated=0.50)
_VECTOR_SHARE = 0.8  # of the similarity; TF-IDF gives the rest


class _EmbeddingFit:
    def __init__(self, rows: Rows, vectors: list[list[float]]) -> None:
        np = require_extra("numpy", EXTRA)
        raw = _array(vectors, len(rows.texts))
        # Many models put all texts in one corner of the space. Seen from the middle of
        # the general texts, unrelated texts have a similarity near zero with any model.
        self._centre = raw[rows.own :].mean(axis=0)
        self._vectors = self._scaled(raw)
        self._index = LexicalIndex(rows.texts, damp=not rows.logistic)
        with one_blas_thread():
            near = self._vectors @ self._vectors.T
        gram = _VECTOR_SHARE * near + np.float32(1 - _VECTOR_SHARE) * self._index.gram()
        self._head = Head(rows, gram, _CALIBRATION)

    def evidence(self, texts: Sequence[str], vectors: list[list[float]]) -> NDArray[Any]:
        with one_blas_thread():
            near = self._scaled(_array(vectors, len(texts))) @ self._vectors.T
        lexical = self._index.similarities(texts)
        return self._head.evidence(_VECTOR_SHARE * near + (1 - _VECTOR_SHARE) * lexical)

    def _scaled(self, raw: NDArray[Any]) -> NDArray[Any]:
        np = require_extra("numpy", EXTRA)
        if raw.shape[1] != self._centre.shape[0]:
            raise ModelError(
                f"The embeddings gave vectors of {raw.shape[1]} dimensions after vectors of "
                f"{self._centre.shape[0]}.",
                fix="Use one embedding model for documents and queries.",
            )
        moved = raw - self._centre
        length = np.linalg.norm(moved, axis=1, keepdims=True)
        return moved / np.maximum(length, 1e-9)  # type: ignore[no-any-return]


def _array(vectors: list[list[float]], expected: int) -> NDArray[Any]:
    np = require_extra("numpy", EXTRA)
    array = np.asarray(vectors, np.float32)
    if array.ndim != 2 or len(array) != expected or not np.isfinite(array).all():
        raise ModelError(
            f"The embeddings gave an array of shape {array.shape} for {expected} texts, "
            "or values that are not finite.",
            fix="Check the Embeddings object: one vector of finite numbers for each text.",
        )
    return array  # type: ignore[no-any-return]


class EmbeddingSelector(HeadSelector[_EmbeddingFit]):
    """Chooses by sentence vectors and TF-IDF together.

    A first request with new candidates embeds all their texts in one call; every
    further one embeds the task and, when it is compound, its clauses.

    Args:
        embeddings: Any LangChain embeddings; their asynchronous methods are used.
        margin: As for :class:`~framework.selection.lexical.LexicalSelector`.
        threshold: As for :class:`~framework.selection.lexical.LexicalSelector`.

    Raises:
        MissingExtraError: At first use, when scikit-learn is not installed.
        ModelError: The embeddings gave something other than one vector for each text.
    """

    def __init__(
        self, embeddings: Embeddings, *, margin: float = 0.6, threshold: float = 0.5
    ) -> None:
        super().__init__(margin=margin, threshold=threshold)
        self._embeddings = embeddings

    async def _fit(self, candidates: tuple[Candidate, ...]) -> _EmbeddingFit:
        rows = await self._in_thread(lambda: training_rows(candidates))
        vectors = await self._embeddings.aembed_documents(rows.texts)
        return await self._in_thread(lambda: _EmbeddingFit(rows, vectors))

    async def _evidence(self, fitted: _EmbeddingFit, texts: Sequence[str]) -> NDArray[Any]:
        # Some models treat queries and documents differently, so not aembed_documents.
        vectors = await asyncio.gather(*map(self._embeddings.aembed_query, texts))
        return await self._in_thread(lambda: fitted.evidence(texts, vectors))
