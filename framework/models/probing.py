"""Probe of servers whose structured output is unknown: one request each, before any turn.

A server behind a ``base_url`` may enforce a JSON schema, ignore it, or refuse the request. A probe asks
for one word and sends a schema that allows only another one. The result is cached on disk.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from capgraph.base.files import write_whole
from capgraph.configs.logger import get_logger, mask_secrets
from capgraph.configs.settings import StructuredMethod
from capgraph.models.local import cache_folder, is_local
from capgraph.models.roles import (
    PROBED,
    ROLES,
    address_of,
    chat_models,
    model_name,
    serves_grammar,
    structured_method,
    structured_methods,
)

PROBE_SECONDS = 60.0
"""Time limit of one probe; a small local model may be loading."""
_KEPT_SECONDS = 30 * 86_400.0
_METHODS: tuple[StructuredMethod, ...] = ("json_schema", "function_calling")
_WORD = "capgraph"
_FORM = {
    "title": "Probe",
    "description": "One word.",
    "type": "object",
    "properties": {"word": {"type": "string", "enum": [_WORD]}},
    "required": ["word"],
    "additionalProperties": False,
}
_QUESTION = 'Answer with this JSON: {"word": "ready"}'
_REFUSALS = frozenset({400, 404, 405, 415, 422, 501})


class UsedMethod(NamedTuple):
    """Structured output of a role.

    Attributes:
        role: The role.
        method: How its model is made to keep a form.
        reason: Why.
    """

    role: str
    method: StructuredMethod
    reason: str


async def probe_models(configured: Any, *, again: bool = False) -> None:
    """Ask each server whose structured output is unknown, and remember what it enforces.

    Nothing is asked if ``structured`` is set, if the model is not behind another address, or if the
    cache has the result. A server that cannot be reached is asked again at the next start.

    Args:
        configured: Whatever ``build_graph`` takes as ``model``.
        again: True to ask although the cache has the result.
    """
    # A chat model reads certificates when it is made, which must not hold up the loop.
    for model in await asyncio.to_thread(_unknown, configured):
        key = address_of(model)
        cached = None if again else PROBED.get(key) or await asyncio.to_thread(_cached, key)
        if cached is not None:
            PROBED[key] = cached
        elif (found := await _probe(model)) is not None:
            PROBED[key] = found
            await asyncio.to_thread(_store, key, found)


def methods_used(configured: Any) -> list[UsedMethod]:
    """Return how the model of each role is made to keep a form, and why."""
    wanted, models = structured_methods(configured), chat_models(configured)
    used = []
    for role, model in models.items():
        method = structured_method(model, wanted[role])
        if wanted[role] != "auto":
            reason = "set by structured"
        elif method == "text":
            reason = "the client accepts no form"
        elif serves_grammar(model):
            is_probed = address_of(model) in PROBED
            reason = "a probe showed it" if is_probed else "usual for its server; not probed"
        elif method == "json_schema":
            reason = "the model's profile has structured output"
        else:
            reason = "every model that calls tools has it"
        used.append(UsedMethod(role, method, reason))
    return used


def _unknown(configured: Any) -> list[Any]:
    """Return the models to probe, each address once."""
    described = configured if isinstance(configured, Mapping) else {"default": configured}
    named = {role: value for role, value in described.items() if not _is_local(value)}
    if not named:
        return []
    wanted = structured_methods(named)
    models = chat_models(named)
    auto = [models[role] for role in ROLES if role in models and wanted[role] == "auto"]
    return list({address_of(model): model for model in auto if serves_grammar(model)}.values())


def _is_local(value: Any) -> bool:
    name = value.get("model") if isinstance(value, Mapping) else getattr(value, "model", value)
    return isinstance(name, str) and is_local(name)


async def _probe(model: Any) -> StructuredMethod | None:
    """Return the first method that the server enforces, ``text`` for none, ``None`` if unknown."""
    log = get_logger("framework", "models")
    name, where = model_name(model), mask_secrets(address_of(model))
    for method in _METHODS:
        runnable = model.with_structured_output(_FORM, method=method, include_raw=True)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                found = await runnable.ainvoke(_QUESTION)
        except Exception as exc:  # a client raises errors of its own
            if getattr(exc, "status_code", None) in _REFUSALS:
                continue
            told = mask_secrets(str(exc) or type(exc).__name__)[:200]
            log.warning("The model %r at %s was not probed: %s", name, where, told)
            return None
        if found.get("parsed") == {"word": _WORD}:
            log.info("The model %r at %s enforces %s (probed).", name, where, method)
            return method
    log.info("The model %r at %s enforces no form (probed): its prompt holds it.", name, where)
    return "text"


def _file() -> Path:
    return cache_folder().parent / "structured.json"


def _cached(key: str) -> StructuredMethod | None:
    entry = _entries().get(key)
    if not isinstance(entry, dict) or entry.get("method") not in (*_METHODS, "text"):
        return None
    age = time.time() - float(entry.get("time", 0))
    method: StructuredMethod = entry["method"]
    return method if 0 <= age < _KEPT_SECONDS else None


def _entries() -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(_file().read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def _store(key: str, method: StructuredMethod) -> None:
    entries = {**_entries(), key: {"method": method, "time": time.time()}}
    with suppress(OSError):  # without a cache the next start asks again
        write_whole(_file(), json.dumps(entries, indent=1))
