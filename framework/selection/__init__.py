"""Choosing the capabilities that a task needs.

Every strategy follows :class:`Selector`. The default, :class:`LexicalSelector`, needs no
model; :class:`EmbeddingSelector` takes any LangChain ``Embeddings``.
"""

from framework.registry import Candidate
from framework.selection.balancing import LoadBalancer
from framework.selection.protocols import Selection, Selector
from framework.selection.rules import Rule, RuleSelector
from framework.selection.selectors import EmbeddingSelector, LexicalSelector
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
