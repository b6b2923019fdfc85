"""Functions that sanitize names, texts, and schemas from external tools and agents."""

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
    r"""Remove control and invisible characters from external text and limit its length.

    >>> sanitize_text("Adds two\x1b[2J numbers.\u202e"), sanitize_text("abcdef", 4)
    ('Adds two[2J numbers.', 'abc…')
    """
    text = strip_control_characters(raw).strip()
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def sanitize_schema(schema: Any) -> Any:
    r"""Sanitize the titles and descriptions in a JSON schema from an external source.

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
    """Create a valid and unused capability name for an external tool.

    >>> capability_name("files/read all", "disk"), capability_name("router")
    ('disk_files_read_all', 'router_tool')
    >>> capability_name("add", used_names=["add"])
    'add_2'
    """
    full_name = f"{prefix}_{external_name}" if prefix else external_name
    name = re.sub(r"[^A-Za-z0-9_-]", "_", full_name)[:60] or "tool"
    name = f"{name}_tool" if name in _RESERVED_NAMES else name
    number, unused_name = 1, name
    while unused_name in used_names:
        number += 1
        unused_name = f"{name}_{number}"
    return unused_name


def is_http_url(value: Any) -> bool:
    """Return True if a value is a string with an HTTP or HTTPS URL."""
    return isinstance(value, str) and value.startswith(("http://", "https://"))


def task_with_inputs(step: StepContext) -> str:
    """Return a step's task as text, followed by the step's inputs as JSON."""
    input_text = "\n\n" + json.dumps(serialize_inputs(step.inputs), ensure_ascii=False)
    return step.task + input_text if step.inputs else step.task


def create_remote_failure(subject: str, reason: str) -> CapabilityError:
    """Create an error for a failure that a remote agent or tool reported."""
    return CapabilityError(
        f"{subject} reported a failure: {sanitize_text(reason, 4000) or 'no reason was given'}"
    )


def unreachable_error(subject: str, exc: Exception) -> CapabilityError:
    """Create a retriable error for a remote agent that cannot be reached."""
    return CapabilityError(
        f"{subject} cannot be reached ({sanitize_text(str(exc), 300) or type(exc).__name__}).",
        fix="Check that it is running and that its address is correct.",
        severity=ErrorSeverity.RETRIABLE,
    )
