"""One server for people and other agents: runs that outlive requests, every protocol, a console."""

from typing import TYPE_CHECKING, Any

from configs.lazy import found_in
from framework.base.errors import require_extra

if TYPE_CHECKING:
    from framework.serve.app import create_app
    from framework.serve.identity import Identity
    from framework.serve.problems import AnswerRefusedError, ConflictError, NotThereError
    from framework.serve.runs import Run, Runs

__all__ = [
    "AnswerRefusedError",
    "ConflictError",
    "Identity",
    "NotThereError",
    "Run",
    "Runs",
    "create_app",
]

_find, __dir__ = found_in(__name__, ("problems", "identity", "runs", "app"), __all__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        require_extra("starlette", "serve")
    return _find(name)
