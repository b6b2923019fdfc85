"""Choosing who or what a task needs: capabilities for a plan, one agent for a request.

Every strategy that chooses capabilities follows :class:`Selector`. The default,
:class:`LexicalSelector`, needs no model; :class:`EmbeddingSelector` takes any LangChain
``Embeddings``. What sends a whole request to one of several agents is a :class:`BaseRouter`.
"""

from configs.lazy import contents
from framework.registry import Candidate as Candidate
from framework.selection.protocols import Selection as Selection
from framework.selection.protocols import Selector as Selector
from framework.selection.routers import BaseRouter as BaseRouter
from framework.selection.routers import LLMRouter as LLMRouter
from framework.selection.routers import LoadBalancingRouter as LoadBalancingRouter
from framework.selection.routers import RoutingDecision as RoutingDecision
from framework.selection.routers import RoutingRequest as RoutingRequest
from framework.selection.routers import RuleBasedRouter as RuleBasedRouter
from framework.selection.routers import SemanticRouter as SemanticRouter
from framework.selection.selectors import EmbeddingSelector as EmbeddingSelector
from framework.selection.selectors import LexicalSelector as LexicalSelector

__getattr__, __dir__ = contents(__name__)
