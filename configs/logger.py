"""Component loggers on top of the standard library's logging.

Nothing is configured when this module is imported, and the root logger is never touched:
an application that wants output calls :func:`configure_logging` or its own set-up.
"""

from __future__ import annotations

import json
import logging
from collections.abc import MutableMapping
from datetime import UTC, datetime
from functools import lru_cache, partialmethod
from typing import Any

from capgraph.configs.safe_text import (
    MAX_MESSAGE_CHARS,
    SecretMasker,
    escape_control_characters,
    mask_data,
    mask_secrets,
    use_masker,
)

__all__ = [
    "MAX_MESSAGE_CHARS",
    "ComponentLogger",
    "SafeFormatter",
    "SecretMasker",
    "configure_logging",
    "escape_control_characters",
    "get_logger",
    "mask_data",
    "mask_secrets",
    "use_masker",
]

_ROOT = "capgraph"


class ComponentLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger with the kinds of message that an agent's components write.

    Besides the standard levels it has ``success``, ``key_info``, ``timing``, ``approval`` and
    ``resume``; each is an INFO record (``timing`` a DEBUG record) with ``record.kind`` set.
    """

    def __init__(self, logger: logging.Logger, component: str, color: str | None = None) -> None:
        super().__init__(logger, {"component": component, "color": color})

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Attach component and colour to the record."""
        extra = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        kwargs["extra"] = extra
        return msg, kwargs

    def _kind(self, kind: str, level: int, msg: str, *args: Any, **kwargs: Any) -> None:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), "kind": kind}
        self.log(level, msg, *args, **kwargs)

    success: partialmethod[None] = partialmethod(_kind, "success", logging.INFO)
    """Report that something worked."""
    key_info: partialmethod[None] = partialmethod(_kind, "key_info", logging.INFO)
    """Report something that a reader of the log looks for."""
    timing: partialmethod[None] = partialmethod(_kind, "timing", logging.DEBUG)
    """Report how long something took."""
    approval: partialmethod[None] = partialmethod(_kind, "approval", logging.INFO)
    """Report that a person is asked or has answered."""
    resume: partialmethod[None] = partialmethod(_kind, "resume", logging.INFO)
    """Report that a run goes on after a pause."""


def get_logger(
    source: str | None = None,
    component: str | None = None,
    *,
    name: str | None = None,
    color: str | None = None,
) -> ComponentLogger:
    """Return the logger of a component.

    Args:
        source: Where the component belongs, such as ``"framework"``.
        component: The component's name.
        name: Full name instead of ``source`` and ``component``.
        color: Colour hint for terminal handlers.

    Raises:
        ValueError: Neither ``name`` nor both of ``source`` and ``component`` are given.

    >>> get_logger("framework", "router").name
    'capgraph.framework.router'
    """
    if name:
        return _component(name, name, color)
    if not source or not component:
        raise ValueError(
            f"get_logger needs source and component, got source={source!r} and"
            f" component={component!r}. Fix: call get_logger('framework', 'router')"
            " or get_logger(name='my_app')."
        )
    return _component(f"{source}.{component}", component, color)


@lru_cache(maxsize=1024)  # every step asks for its own
def _component(name: str, component: str, color: str | None) -> ComponentLogger:
    return ComponentLogger(logging.getLogger(f"{_ROOT}.{name}"), component, color)


class SafeFormatter(logging.Formatter):
    """Formatter that masks secrets and keeps control characters out of the output."""

    def format(self, record: logging.LogRecord) -> str:
        """Render the record; only tracebacks keep their line breaks."""
        message = escape_control_characters(mask_secrets(record.getMessage()))
        copy = logging.makeLogRecord({**record.__dict__, "msg": message, "args": None})
        if copy.exc_info and not copy.exc_text:
            copy.exc_text = mask_secrets(self.formatException(copy.exc_info))
        return super().format(copy)


class JsonFormatter(SafeFormatter):
    """Formatter that writes each record as one JSON object, with what ``extra={"fields": …}`` says."""

    def format(self, record: logging.LogRecord) -> str:
        """Render the record."""
        told = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": super().format(record),
            **mask_data(getattr(record, "fields", {})),
        }
        return json.dumps(told, ensure_ascii=False, default=str)


def configure_logging(level: int | str = logging.WARNING, *, json_lines: bool = False) -> None:
    """Send the project's log records to standard error. Calling it again changes the level.

    Args:
        level: Lowest level that is shown.
        json_lines: Whether each is written as a JSON object from now on.
    """
    root = logging.getLogger(_ROOT)
    root.setLevel(level)
    if not any(isinstance(handler.formatter, SafeFormatter) for handler in root.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(SafeFormatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.propagate = False
    for known in root.handlers:
        if json_lines and isinstance(known.formatter, SafeFormatter):
            known.setFormatter(JsonFormatter("%(message)s"))
