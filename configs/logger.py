"""Component loggers on top of the standard library's ``logging``.

Importing this module configures nothing and never changes the root logger. An application that wants
output calls :func:`configure_logging` or configures ``logging`` itself.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import textwrap
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
    """Logger with extra methods for message kinds that have no standard logging level.

    The methods ``success``, ``key_info``, ``approval``, and ``resume`` log at INFO, and
    ``timing`` logs at DEBUG. Each method sets ``record.kind``, which a formatter can use.
    """

    def __init__(self, logger: logging.Logger, component: str, color: str | None = None) -> None:
        super().__init__(logger, {"component": component, "color": color})

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the component's name and color to the log record as extra fields."""
        extra = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        kwargs["extra"] = extra
        return msg, kwargs

    def _kind(self, kind: str, level: int, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log a message with ``record.kind`` set to the given message kind."""
        kwargs["extra"] = {**(kwargs.get("extra") or {}), "kind": kind}
        self.log(level, msg, *args, **kwargs)

    success: partialmethod[None] = partialmethod(_kind, "success", logging.INFO)
    """Log that an operation succeeded."""
    key_info: partialmethod[None] = partialmethod(_kind, "key_info", logging.INFO)
    """Log an important fact."""
    timing: partialmethod[None] = partialmethod(_kind, "timing", logging.DEBUG)
    """Log how long an operation took."""
    approval: partialmethod[None] = partialmethod(_kind, "approval", logging.INFO)
    """Log an approval request or decision."""
    resume: partialmethod[None] = partialmethod(_kind, "resume", logging.INFO)
    """Log that a run resumes."""


def get_logger(
    source: str | None = None,
    component: str | None = None,
    *,
    name: str | None = None,
    color: str | None = None,
) -> ComponentLogger:
    """Return the logger for a component of a package or application.

    Args:
        source: Package or application that contains the component, such as ``"framework"``.
        component: Name of the component.
        name: Full logger name, used instead of ``source`` and ``component``.
        color: Color hint for terminal handlers.

    Raises:
        ValueError: Neither ``name`` nor both ``source`` and ``component`` are passed.

    >>> get_logger("framework", "router").name
    'capgraph.framework.router'
    """
    if name:
        return _component(name, name, color)
    if not source or not component:
        raise ValueError(
            f"get_logger() is missing an argument: source is {source!r} and component is"
            f" {component!r}. Fix: call get_logger('framework', 'router') or"
            " get_logger(name='my_app')."
        )
    return _component(f"{source}.{component}", component, color)


@lru_cache(maxsize=1024)  # called in every step
def _component(name: str, component: str, color: str | None) -> ComponentLogger:
    return ComponentLogger(logging.getLogger(f"{_ROOT}.{name}"), component, color)


class SafeFormatter(logging.Formatter):
    """Log formatter that masks secrets and escapes control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record as a single line, followed by its traceback if there is one."""
        message = escape_control_characters(mask_secrets(record.getMessage()))
        copy = logging.makeLogRecord({**record.__dict__, "msg": message, "args": None})
        if copy.exc_info and not copy.exc_text:
            copy.exc_text = mask_secrets(self.formatException(copy.exc_info))
        return super().format(copy)


class _TerminalFormatter(SafeFormatter):
    """Log formatter that breaks long messages between words."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.exc_info:
            return text
        columns = shutil.get_terminal_size().columns
        return textwrap.fill(
            text,
            columns,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )


class JsonFormatter(SafeFormatter):
    """Log formatter that writes each record as one JSON object per line.

    The object includes the values that are passed to the logging call as ``extra={"fields": …}``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record as a single line of JSON."""
        entry = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": super().format(record),
            **mask_data(getattr(record, "fields", {})),
        }
        return json.dumps(entry, ensure_ascii=False, default=str)


def configure_logging(level: int | str = logging.WARNING, *, json_lines: bool = False) -> None:
    """Configure the ``capgraph`` loggers to write to standard error.

    Call this function again to change the level.

    Args:
        level: Lowest level to log.
        json_lines: True to write each record as a JSON object.
    """
    root = logging.getLogger(_ROOT)
    root.setLevel(level)
    if not any(isinstance(handler.formatter, SafeFormatter) for handler in root.handlers):
        handler = logging.StreamHandler()
        formatter = _TerminalFormatter if sys.stderr.isatty() else SafeFormatter
        handler.setFormatter(formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.propagate = False
    for known in root.handlers:
        if json_lines and isinstance(known.formatter, SafeFormatter):
            known.setFormatter(JsonFormatter("%(message)s"))
