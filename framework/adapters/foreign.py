"""What strangers call things and say of them, in a form that plans, prompts and people can bear."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from capgraph.base.errors import CapabilityError, ErrorSeverity
from capgraph.base.spec import ROLES
from capgraph.base.step_context import StepContext
from capgraph.configs.safe_text import shown_text
from capgraph.pipeline.effect_ledger import plain_inputs

MAX_TEXT = 1_024
_TAKEN = frozenset({*ROLES, "respond", "clarify"})


def plain_text(given: str, limit: int = MAX_TEXT) -> str:
    r"""Return a stranger's text without characters that hide or overwrite, and not too long.

    >>> plain_text("Adds two\x1b[2J numbers.\u202e"), plain_text("abcdef", 4)
    ('Adds two[2J numbers.', 'abc…')
    """
    text = shown_text(given).strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def plain_schema(given: Any) -> Any:
    r"""Return a stranger's JSON schema, only its texts as :func:`plain_text` has them.

    >>> plain_schema({"title": "A\u200bB", "enum": ["A\u200bB"]})
    {'title': 'AB', 'enum': ['A\u200bB']}
    """
    if isinstance(given, list):
        return [plain_schema(part) for part in given]
    if not isinstance(given, dict):
        return given
    return {
        name: plain_text(part)
        if name in ("title", "description") and isinstance(part, str)
        else part
        if name in ("default", "enum", "const", "examples")
        else plain_schema(part)
        for name, part in given.items()
    }


def own_name(given: str, prefix: str = "", taken: Collection[str] = ()) -> str:
    """Return a name for a stranger's tool that graphs, plans and models can use.

    >>> own_name("files/read all", "disk"), own_name("router"), own_name("add", taken=["add"])
    ('disk_files_read_all', 'router_tool', 'add_2')
    """
    whole = f"{prefix}_{given}" if prefix else given
    name = re.sub(r"[^A-Za-z0-9_-]", "_", whole)[:60] or "tool"
    name = f"{name}_tool" if name in _TAKEN else name
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def is_url(place: Any) -> bool:
    """Tell whether it is the address of a server."""
    return isinstance(place, str) and place.startswith(("http://", "https://"))


def task_of(step: StepContext) -> str:
    """Return what a step is to do, with the values of its inputs behind it."""
    behind = "\n\n" + json.dumps(plain_inputs(step.inputs), ensure_ascii=False)
    return step.task + behind if step.inputs else step.task


def failed(what: str, why: str) -> CapabilityError:
    """Return the error of something that failed elsewhere, with what it says of it."""
    return CapabilityError(f"{what}: {plain_text(why, 4_000) or 'it does not say why'}")


def away(what: str, exc: Exception) -> CapabilityError:
    """Return the error of something that cannot be reached; nothing was sent to it."""
    return CapabilityError(
        f"{what} cannot be reached ({plain_text(str(exc), 300) or type(exc).__name__}).",
        fix="See whether it runs.",
        severity=ErrorSeverity.RETRIABLE,
    )
