"""What strangers call things and say of them, in a form that plans, prompts and people can bear."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from capgraph.base.errors import CapabilityError, ErrorSeverity
from capgraph.base.spec import INFRASTRUCTURE_ROLES
from capgraph.base.step_context import StepContext
from capgraph.configs.safe_text import strip_control_characters
from capgraph.pipeline.effect_ledger import serialize_inputs

MAX_TEXT_LENGTH = 1_024
_RESERVED_NAMES = frozenset({*INFRASTRUCTURE_ROLES, "respond", "clarify"})


def sanitize_text(raw: str, max_length: int = MAX_TEXT_LENGTH) -> str:
    r"""Return a stranger's text without characters that hide or overwrite, and not too long.

    >>> sanitize_text("Adds two\x1b[2J numbers.\u202e"), sanitize_text("abcdef", 4)
    ('Adds two[2J numbers.', 'abc…')
    """
    text = strip_control_characters(raw).strip()
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def sanitize_schema(schema: Any) -> Any:
    r"""Return a stranger's JSON schema, only its texts as :func:`plain_text` has them.

    >>> sanitize_schema({"title": "A\u200bB", "enum": ["A\u200bB"]})
    {'title': 'AB', 'enum': ['A\u200bB']}
    """
    if isinstance(schema, list):
        return [sanitize_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: sanitize_text(part)
        if name in ("title", "description") and isinstance(part, str)
        else part
        if name in ("default", "enum", "const", "examples")
        else sanitize_schema(part)
        for name, part in schema.items()
    }


def capability_name(external_name: str, prefix: str = "", used_names: Collection[str] = ()) -> str:
    """Return a name for a stranger's tool that graphs, plans and models can use.

    >>> capability_name("files/read all", "disk"), capability_name("router"), capability_name("add", used_names=["add"])
    ('disk_files_read_all', 'router_tool', 'add_2')
    """
    whole = f"{prefix}_{external_name}" if prefix else external_name
    name = re.sub(r"[^A-Za-z0-9_-]", "_", whole)[:60] or "tool"
    name = f"{name}_tool" if name in _RESERVED_NAMES else name
    number, free = 1, name
    while free in used_names:
        number += 1
        free = f"{name}_{number}"
    return free


def is_http_url(value: Any) -> bool:
    """Tell whether it is the address of a server."""
    return isinstance(value, str) and value.startswith(("http://", "https://"))


def task_with_inputs(step: StepContext) -> str:
    """Return what a step is to do, with the values of its inputs behind it."""
    behind = "\n\n" + json.dumps(serialize_inputs(step.inputs), ensure_ascii=False)
    return step.task + behind if step.inputs else step.task


def remote_failure(subject: str, reason: str) -> CapabilityError:
    """Return the error of something that failed elsewhere, with what it says of it."""
    return CapabilityError(f"{subject}: {sanitize_text(reason, 4_000) or 'it does not say why'}")


def unreachable_error(subject: str, exc: Exception) -> CapabilityError:
    """Return the error of something that cannot be reached; nothing was sent to it."""
    return CapabilityError(
        f"{subject} cannot be reached ({sanitize_text(str(exc), 300) or type(exc).__name__}).",
        fix="See whether it runs.",
        severity=ErrorSeverity.RETRIABLE,
    )
