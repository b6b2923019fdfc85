"""The registry and how it finds what it holds."""

from framework.registry.candidate import Candidate
from framework.registry.recipe_files import load_recipe, recipe_files, save_recipe
from framework.registry.registry import Registry

__all__ = ["Candidate", "Registry", "load_recipe", "recipe_files", "save_recipe"]
