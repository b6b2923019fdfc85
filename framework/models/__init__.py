"""Chat models by role, and the strategies that use them."""

from configs.lazy import contents
from framework.models.roles import ROLES as ROLES
from framework.models.roles import RoleModel as RoleModel
from framework.models.roles import chat_models as chat_models
from framework.models.roles import role_behaviors as role_behaviors
from framework.models.strategies import model_strategies as model_strategies

__getattr__, __dir__ = contents(__name__)
