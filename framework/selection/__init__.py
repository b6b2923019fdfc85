"""Selection of capabilities for a plan, and routing of requests to agents.

A :class:`Selector` chooses the capabilities that a task needs. The default,
:class:`LexicalSelector`, works without a model. :class:`EmbeddingSelector` uses any LangChain
``Embeddings``. A :class:`BaseRouter` sends a whole request to one of several agents.
"""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.registry import Candidate as Candidate
    from capgraph.selection.protocols import Selection as Selection
    from capgraph.selection.protocols import Selector as Selector
    from capgraph.selection.routers import BaseRouter as BaseRouter
    from capgraph.selection.routers import LLMRouter as LLMRouter
    from capgraph.selection.routers import LoadBalancingRouter as LoadBalancingRouter
    from capgraph.selection.routers import RoutingDecision as RoutingDecision
    from capgraph.selection.routers import RoutingRequest as RoutingRequest
    from capgraph.selection.routers import RuleBasedRouter as RuleBasedRouter
    from capgraph.selection.routers import SemanticRouter as SemanticRouter
    from capgraph.selection.selectors import EmbeddingSelector as EmbeddingSelector
    from capgraph.selection.selectors import LexicalSelector as LexicalSelector

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.registry": ("Candidate",),
        "capgraph.selection.protocols": ("Selection", "Selector"),
        "capgraph.selection.routers": (
            "BaseRouter",
            "LLMRouter",
            "LoadBalancingRouter",
            "RoutingDecision",
            "RoutingRequest",
            "RuleBasedRouter",
            "SemanticRouter",
        ),
        "capgraph.selection.selectors": ("EmbeddingSelector", "LexicalSelector"),
    },
)
