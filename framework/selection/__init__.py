"""Choosing who or what a task needs: capabilities for a plan, one agent for a request.

Every strategy that chooses capabilities follows :class:`Selector`. The default,
:class:`LexicalSelector`, needs no model; :class:`EmbeddingSelector` takes any LangChain
``Embeddings``. What sends a whole request to one of several agents is a :class:`BaseRouter`.
"""

from framework.registry import Candidate
from framework.selection.protocols import Selection, Selector
from framework.selection.routers import (
    BaseRouter,
    LLMRouter,
    LoadBalancingRouter,
    RoutingDecision,
    RoutingRequest,
    RuleBasedRouter,
    SemanticRouter,
)
from framework.selection.selectors import EmbeddingSelector, LexicalSelector

__all__ = [
    "BaseRouter",
    "Candidate",
    "EmbeddingSelector",
    "LLMRouter",
    "LexicalSelector",
    "LoadBalancingRouter",
    "RoutingDecision",
    "RoutingRequest",
    "RuleBasedRouter",
    "Selection",
    "Selector",
    "SemanticRouter",
]
