"""Choosing the capabilities that a task needs.

Every strategy follows :class:`Selector`. The default, :class:`LexicalSelector`, needs no
model; :class:`EmbeddingSelector` takes any LangChain ``Embeddings``.
"""

from framework.registry import Candidate
from framework.selection.protocols import Selection, Selector
from framework.selection.selectors import EmbeddingSelector, LexicalSelector

__all__ = [
    "Candidate",
    "EmbeddingSelector",
    "LexicalSelector",
    "Selection",
    "Selector",
]
