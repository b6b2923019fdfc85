"""What can be put around a step or a model call, declared once."""

from framework.behaviors.base import BaseBehavior, BehaviorContext

__all__ = ["BaseBehavior", "BehaviorContext"]
