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

from capgraph.configs.logger import get_logger, mask_secrets
from capgraph.configs.settings import StructuredMethod
from capgraph.helpers.files import write_atomic
from capgraph.models.local import cache_folder, is_local_model
from capgraph.models.roles import (
    MODEL_ROLES,
    PROBED_METHODS,
    chat_models,
    is_grammar_server,
    model_name,
    probe_key,
    structured_method,
    structured_methods,
)

PROBE_SECONDS = 60.0
"""Time limit of one probe; a small local model may be loading."""
_CACHE_SECONDS = 30 * 86_400.0
_METHODS: tuple[StructuredMethod, ...] = ("json_schema", "function_calling")
_EXPECTED_WORD = "capgraph"
_PROBE_SCHEMA = {
    "title": "Probe",
    "description": "One word.",
    "type": "object",
    "properties": {"word": {"type": "string", "enum": [_EXPECTED_WORD]}},
    "required": ["word"],
    "additionalProperties": False,
}
_QUESTION = 'Answer with this JSON: {"word": "ready"}'
_REFUSAL_STATUS_CODES = frozenset({400, 404, 405, 415, 422, 501})


class RoleMethod(NamedTuple):
    """Structured output of a role.

    Attributes:
        role: The role.
        method: How its model is made to keep a form.
        reason: Why.
    """

    role: str
    method: StructuredMethod
    reason: str


async def probe_models(configuration: Any, *, force: bool = False) -> None:
    """Ask each server whose structured output is unknown, and remember what it enforces.

    Nothing is asked if ``structured`` is set, if the model is not behind another address, or if the
    cache has the result. A server that cannot be reached is asked again at the next start.

    Args:
        configuration: Whatever ``build_graph`` takes as ``model``.
        force: True to ask although the cache has the result.
    """
    # A chat model reads certificates when it is made, which must not hold up the loop.
    for model in await asyncio.to_thread(_models_to_probe, configuration):
        key = probe_key(model)
        cached = (
            None
            if force
            else PROBED_METHODS.get(key) or await asyncio.to_thread(_read_cached_method, key)
        )
        if cached is not None:
            PROBED_METHODS[key] = cached
        elif (found := await _probe(model)) is not None:
            PROBED_METHODS[key] = found
            await asyncio.to_thread(_write_cache, key, found)


def describe_methods(configuration: Any) -> list[RoleMethod]:
    """Return how the model of each role is made to keep a form, and why."""
    wanted, models = structured_methods(configuration), chat_models(configuration)
    used = []
    for role, model in models.items():
        method = structured_method(model, wanted[role])
        if wanted[role] != "auto":
            reason = "set by structured"
        elif method == "text":
            reason = "the client accepts no form"
        elif is_grammar_server(model):
            is_probed = probe_key(model) in PROBED_METHODS
            reason = "a probe showed it" if is_probed else "usual for its server; not probed"
        elif method == "json_schema":
            reason = "the model's profile has structured output"
        else:
            reason = "every model that calls tools has it"
        used.append(RoleMethod(role, method, reason))
    return used


def _models_to_probe(configuration: Any) -> list[Any]:
    """Return the models to probe, each address once."""
    described = configuration if isinstance(configuration, Mapping) else {"default": configuration}
    named = {role: value for role, value in described.items() if not _is_local_entry(value)}
    if not named:
        return []
    wanted = structured_methods(named)
    models = chat_models(named)
    auto = [models[role] for role in MODEL_ROLES if role in models and wanted[role] == "auto"]
    return list({probe_key(model): model for model in auto if is_grammar_server(model)}.values())


def _is_local_entry(value: Any) -> bool:
    name = value.get("model") if isinstance(value, Mapping) else getattr(value, "model", value)
    return isinstance(name, str) and is_local_model(name)


async def _probe(model: Any) -> StructuredMethod | None:
    """Return the first method that the server enforces, ``text`` for none, ``None`` if unknown."""
    log = get_logger("framework", "models")
    name, where = model_name(model), mask_secrets(probe_key(model))
    for method in _METHODS:
        runnable = model.with_structured_output(_PROBE_SCHEMA, method=method, include_raw=True)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                found = await runnable.ainvoke(_QUESTION)
        except Exception as exc:  # a client raises errors of its own
            if getattr(exc, "status_code", None) in _REFUSAL_STATUS_CODES:
                continue
            told = mask_secrets(str(exc) or type(exc).__name__)[:200]
            log.warning("The model %r at %s was not probed: %s", name, where, told)
            return None
        if found.get("parsed") == {"word": _EXPECTED_WORD}:
            log.info("The model %r at %s enforces %s (probed).", name, where, method)
            return method
    log.info("The model %r at %s enforces no form (probed): its prompt holds it.", name, where)
    return "text"


def _cache_file() -> Path:
    return cache_folder().parent / "structured.json"


def _read_cached_method(key: str) -> StructuredMethod | None:
    entry = _read_cache().get(key)
    if not isinstance(entry, dict) or entry.get("method") not in (*_METHODS, "text"):
        return None
    age = time.time() - float(entry.get("time", 0))
    method: StructuredMethod = entry["method"]
    return method if 0 <= age < _CACHE_SECONDS else None


def _read_cache() -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(_cache_file().read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def _write_cache(key: str, method: StructuredMethod) -> None:
    entries = {**_read_cache(), key: {"method": method, "time": time.time()}}
    with suppress(OSError):  # without a cache the next start asks again
        write_atomic(_cache_file(), json.dumps(entries, indent=1))
