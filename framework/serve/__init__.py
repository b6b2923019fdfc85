"""HTTP server for agents: a JSON API, AG-UI, MCP, A2A, OpenAI's API, and a console."""

from typing import TYPE_CHECKING, Any

from capgraph.base.errors import require_extra
from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.serve.app import create_app as create_app
    from capgraph.serve.identity import Identity as Identity
    from capgraph.serve.problems import AnswerRefusedError as AnswerRefusedError
    from capgraph.serve.problems import ConflictError as ConflictError
    from capgraph.serve.problems import NotFoundError as NotFoundError
    from capgraph.serve.runs import Run as Run
    from capgraph.serve.runs import Runs as Runs

_get, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.serve.app": ("create_app",),
        "capgraph.serve.identity": ("Identity",),
        "capgraph.serve.problems": ("AnswerRefusedError", "ConflictError", "NotFoundError"),
        "capgraph.serve.runs": ("Run", "Runs"),
    },
)


def __getattr__(name: str) -> Any:
    if name in __dir__():
        require_extra("starlette", "serve")
    return _get(name)
