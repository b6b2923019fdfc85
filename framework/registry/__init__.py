"""The registry and how it finds what it holds."""

from typing import TYPE_CHECKING

from configs.lazy import contents

if TYPE_CHECKING:
    from framework.registry.candidate import Candidate as Candidate
    from framework.registry.recipe_yaml import load_recipe as load_recipe
    from framework.registry.recipe_yaml import save_recipe as save_recipe
    from framework.registry.registry import Registry as Registry

__getattr__, __dir__ = contents(__name__)
