"""Selection without a model: TF-IDF over words and characters.

Needs the extra ``offline`` (scikit-learn), no model files and no network. Settings were
chosen on training parts of public data only (CLINC150 training and validation queries,
BANKING77 training queries, a fixed half of MetaTool's queries); the figures that
``tests/benchmarks/selection.py`` prints come from the other parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from framework.base import require_extra
from framework.registry import Candidate
from framework.selection.engine import HeadSelector
from framework.selection.head import EXTRA, Calibration, Head, Rows, training_rows
from framework.selection.texts import FUNCTION_WORDS, normalise

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CALIBRATION = Calibration(none=0.10, many=0.40, logistic=0.10, slope=0.01, drop_unrelated=0.35)
_WORD_SHARE = 0.3  # of the similarity; character n-grams give the rest
_FUNCTION_WORD_WEIGHT = 0.2
_BLOCK = 256
_WORD = r"(?u)\b\w+\b"  # unlike scikit-learn's own pattern, words of one letter too


class LexicalIndex:
    """TF-IDF similarities to a fixed set of texts.

    Args:
        texts: The texts that queries are compared with.
        damp: Let function words count less. With few examples they are most of what
            two texts share by chance; with many they help to tell requests apart.
    """

    def __init__(self, texts: Sequence[str], *, damp: bool) -> None:
        text_features = require_extra("sklearn.feature_extraction.text", EXTRA)
        np = require_extra("numpy", EXTRA)
        common = {"sublinear_tf": True, "strip_accents": "unicode", "dtype": np.float32}
        self._words = text_features.TfidfVectorizer(
            ngram_range=(1, 2),
            token_pattern=_WORD,
            **common,
        )
        self._characters = text_features.TfidfVectorizer(
            analyzer="char_wb", ngram_range=(2, 4), **common
        )
        prepared = [normalise(text) for text in texts]
        self._words.fit(prepared)
        self._characters.fit(prepared)
        if damp:
            for token, column in self._words.vocabulary_.items():
                if FUNCTION_WORDS.issuperset(token.split()):
                    self._words.idf_[column] *= _FUNCTION_WORD_WEIGHT
        self._features = self._transform(prepared)
        self._transposed = self._features.T.tocsr()

    def gram(self) -> NDArray[Any]:
        """Return the similarity of every text to every other."""
        np = require_extra("numpy", EXTRA)
        count = self._features.shape[0]
        out = np.empty((count, count), np.float32)
        for start in range(0, count, _BLOCK):  # the sparse product would take twice the memory
            stop = start + _BLOCK
            out[start:stop] = (self._features[start:stop] @ self._transposed).toarray()
        return out  # type: ignore[no-any-return]

    def similarities(self, texts: Sequence[str]) -> NDArray[Any]:
        """Return the similarity of each given text to every text of the index."""
        queries = self._transform([normalise(text) for text in texts])
        return (queries @ self._transposed).toarray()  # type: ignore[no-any-return]

    def _transform(self, prepared: Sequence[str]) -> Any:
        sparse = require_extra("scipy.sparse", EXTRA)
        words = self._words.transform(prepared) * _WORD_SHARE**0.5
        characters = self._characters.transform(prepared) * (1 - _WORD_SHARE) ** 0.5
        return sparse.hstack([words, characters]).tocsr()


class _LexicalFit:
    def __init__(self, rows: Rows) -> None:
        self._index = LexicalIndex(rows.texts, damp=not rows.logistic)
        self._head = Head(rows, self._index.gram(), _CALIBRATION)

    def evidence(self, texts: Sequence[str]) -> NDArray[Any]:
        return self._head.evidence(self._index.similarities(texts))


class LexicalSelector(HeadSelector[_LexicalFit]):
    """The default selector: learns from names, descriptions, instructions and examples.

    Fitted heads are kept on the instance, one for each set of candidates (the last
    few sets), and are fitted and used off the event loop.

    Args:
        margin: A further capability is chosen when its evidence is at least this
            share of the best one's, or when it nearly fits by itself.
        threshold: Score below which even the best capability does not fit.

    Raises:
        MissingExtraError: At first use, when scikit-learn is not installed.

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

    async def _fit(self, candidates: tuple[Candidate, ...]) -> _LexicalFit:
        return await self._in_thread(lambda: _LexicalFit(training_rows(candidates)))

    async def _evidence(self, fitted: _LexicalFit, texts: Sequence[str]) -> NDArray[Any]:
        return await self._in_thread(lambda: fitted.evidence(texts))
