"""Chat models for each role, and the strategies that call them."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.models.roles import MODEL_ROLES as MODEL_ROLES
    from capgraph.models.roles import RoleModel as RoleModel
    from capgraph.models.roles import chat_models as chat_models
    from capgraph.models.roles import role_behaviors as role_behaviors
    from capgraph.models.strategies import model_strategies as model_strategies

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.models.roles": ("MODEL_ROLES", "RoleModel", "chat_models", "role_behaviors"),
        "capgraph.models.strategies": ("model_strategies",),
    },
)
