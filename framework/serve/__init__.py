"""One server for people and other agents: runs that outlive requests, every protocol, a console."""

from typing import TYPE_CHECKING, Any

from framework.base.errors import require_extra

if TYPE_CHECKING:
    from framework.serve.app import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_extra("starlette", "serve")
    from framework.serve.app import create_app

    return create_app
