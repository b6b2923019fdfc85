"""Choosing the capabilities that a task needs.

Every strategy follows :class:`Selector`. The default, :class:`LexicalSelector`, needs no
model; :class:`EmbeddingSelector` takes any LangChain ``Embeddings``, for instance the local
:class:`~framework.selection.minilm.MiniLMEmbeddings`.
"""

from framework.registry import Candidate
from framework.selection.balancing import LoadBalancer
from framework.selection.embedding import EmbeddingSelector
from framework.selection.lexical import LexicalSelector
from framework.selection.protocols import Selection, Selector
from framework.selection.rules import Rule, RuleSelector
from framework.selection.shortlist import shortlist

__all__ = [
    "Candidate",
    "EmbeddingSelector",
    "LexicalSelector",
    "LoadBalancer",
    "Rule",
    "RuleSelector",
    "Selection",
    "Selector",
    "shortlist",
]
