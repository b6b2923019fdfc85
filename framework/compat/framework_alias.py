"""Import capgraph under the names that code written for ALS Expert uses, such as ``framework.base``.

The alias is a meta path finder. It returns the module objects of ``capgraph``, so a class imported
under an old name is the very same class.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

from capgraph.configs.errors import ConfigurationError

_NEW_NAMES = {
    "framework": "capgraph",
    "capabilities": "capgraph.capabilities",
    "infrastructure": "capgraph.infrastructure",
    "configs": "capgraph.configs",
}
"""Old top-level name to the package that it stands for."""


def install_framework_alias(*names: str) -> None:
    """Install import aliases for old package names, such as ``framework`` for ``capgraph``.

    Repeated calls have no effect. A submodule is loaded when it is imported by its old name.

    Args:
        *names: Old names to install: ``framework``, ``capabilities``, ``infrastructure``, or
            ``configs``. By default, all four are installed.

    Raises:
        ConfigurationError: A name is not an old package name, or an unrelated module with the
            same name has already been imported.

    >>> install_framework_alias("framework")
    >>> import framework.base
    >>> import capgraph.base
    >>> framework.base is capgraph.base
    True
    """
    wanted = names or tuple(_NEW_NAMES)
    for name in wanted:
        if name not in _NEW_NAMES:
            raise ConfigurationError(
                f"The alias {name!r} is invalid: capgraph has no package with this old name.",
                fix=f"Pass one of {', '.join(_NEW_NAMES)}.",
            )
        imported = sys.modules.get(name)
        if imported is not None and not _is_ours(imported, _NEW_NAMES[name]):
            raise ConfigurationError(
                f"The alias {name!r} cannot be installed: another module with this name is"
                f" imported from {getattr(imported, '__file__', None)!r}.",
                fix="Call install_framework_alias before that import, or pass the names you need.",
            )
    finder = next((item for item in sys.meta_path if isinstance(item, _AliasFinder)), None)
    if finder is None:
        finder = _AliasFinder()
        sys.meta_path.insert(0, finder)
    finder.names |= set(wanted)
    for name in wanted:
        sys.modules[name] = importlib.import_module(_NEW_NAMES[name])


def _is_ours(module: ModuleType, new_name: str) -> bool:
    """Return True if an imported module is the capgraph package with the given new name.

    The module may have been imported under the name of its source folder.
    """
    spec = importlib.util.find_spec(new_name)
    if spec is None or spec.origin is None or module.__file__ is None:
        return False
    return os.path.realpath(module.__file__) == os.path.realpath(spec.origin)


class _AliasFinder(MetaPathFinder):
    """Import finder that resolves old module names such as ``framework.x`` to ``capgraph.x``."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, rest = fullname.partition(".")
        if root not in self.names:
            return None
        new_name = f"{_NEW_NAMES[root]}.{rest}" if rest else _NEW_NAMES[root]
        try:
            module = importlib.import_module(new_name)
        except ModuleNotFoundError as exc:
            if exc.name is None or not new_name.startswith(exc.name):
                raise  # the module exists, and something that it imports does not
            return None
        return importlib.util.spec_from_loader(
            fullname, _AliasLoader(module), is_package=hasattr(module, "__path__")
        )


class _AliasLoader(InspectLoader):
    """Import loader that returns an already imported module under an old name.

    The loader also provides the module's code to ``runpy``, so that ``python -m`` works.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system replaced it by the alias's

    def get_code(self, fullname: str) -> CodeType | None:
        return self._module_loader().get_code(self._module.__name__)

    def get_source(self, fullname: str) -> str | None:
        return self._module_loader().get_source(self._module.__name__)

    def is_package(self, fullname: str) -> bool:
        return hasattr(self._module, "__path__")

    def _module_loader(self) -> InspectLoader:
        loader = self._spec and self._spec.loader
        if not isinstance(loader, InspectLoader):
            raise ImportError(f"Module {self._module.__name__} has no code that can be run.")
        return loader
