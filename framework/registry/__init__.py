"""The registry and how it finds what it holds."""

from typing import TYPE_CHECKING

from configs.lazy import found_in

if TYPE_CHECKING:
    from framework.registry.candidate import Candidate
    from framework.registry.recipe_yaml import load_recipe, recipe_files, save_recipe
    from framework.registry.registry import Registry

__all__ = ["Candidate", "Registry", "load_recipe", "recipe_files", "save_recipe"]

_PARTS = ("candidate", "registry", "recipe_yaml")
__getattr__, __dir__ = found_in(__name__, _PARTS, __all__)
