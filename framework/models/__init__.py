"""Chat models by role, and the strategies that use them."""

from framework.models.roles import ROLES, RoleModel, chat_models, role_behaviors
from framework.models.strategies import model_strategies

__all__ = ["ROLES", "RoleModel", "chat_models", "model_strategies", "role_behaviors"]
