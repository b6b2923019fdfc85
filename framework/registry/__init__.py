"""The registry of capabilities, infrastructure nodes, and context types."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.registry.candidate import Candidate as Candidate
    from capgraph.registry.recipe_yaml import load_recipe as load_recipe
    from capgraph.registry.recipe_yaml import save_recipe as save_recipe
    from capgraph.registry.registry import Registry as Registry

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.registry.candidate": ("Candidate",),
        "capgraph.registry.recipe_yaml": ("load_recipe", "save_recipe"),
        "capgraph.registry.registry": ("Registry",),
    },
)
