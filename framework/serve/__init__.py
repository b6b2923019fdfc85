"""One server for people and other agents: runs that outlive requests, every protocol, a console."""

from typing import TYPE_CHECKING, Any

from configs.lazy import contents
from framework.base.errors import require_extra

if TYPE_CHECKING:
    from framework.serve.app import create_app as create_app
    from framework.serve.identity import Identity as Identity
    from framework.serve.problems import AnswerRefusedError as AnswerRefusedError
    from framework.serve.problems import ConflictError as ConflictError
    from framework.serve.problems import NotThereError as NotThereError
    from framework.serve.runs import Run as Run
    from framework.serve.runs import Runs as Runs

_find, __dir__ = contents(__name__)


def __getattr__(name: str) -> Any:
    if name in __dir__():
        require_extra("starlette", "serve")
    return _find(name)
