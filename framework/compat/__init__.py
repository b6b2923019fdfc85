"""Compatibility layer: APIs of other systems for code that was written against them.

Nothing else in capgraph imports this package.
"""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.compat.framework_alias import install_framework_alias as install_framework_alias

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.compat.framework_alias": ("install_framework_alias",),
    },
)
