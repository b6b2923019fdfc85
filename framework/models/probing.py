"""Probe of structured output support, which sends one request to each unknown server.

A server behind a ``base_url`` may enforce a JSON schema, ignore it, or reject the request. A probe
asks for one word with a schema that allows only another word. Its result is cached on disk.
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
"""Time limit of one probe in seconds. It is long because a small local model may still be loading.
"""
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
    """Structured output method of a model role, with the reason for the choice.

    Attributes:
        role: Name of the role.
        method: Method that makes the model's output follow a schema.
        reason: Reason for the choice.
    """

    role: str
    method: StructuredMethod
    reason: str


async def probe_models(configuration: Any, *, force: bool = False) -> None:
    """Probe servers whose structured output support is unknown, and cache the results.

    A model is skipped if its ``structured`` setting is set, if it has no ``base_url``, or if
    its result is already cached. A server that cannot be reached is probed again at the next
    start.

    Args:
        configuration: The ``model`` argument of ``build_graph``.
        force: True to probe even if the cache contains the result.
    """
    # Creating a chat model reads certificates, which would block the event loop.
    for model in await asyncio.to_thread(_models_to_probe, configuration):
        key = probe_key(model)
        cached = (
            None
            if force
            else PROBED_METHODS.get(key) or await asyncio.to_thread(_read_cached_method, key)
        )
        if cached is not None:
            PROBED_METHODS[key] = cached
        elif (method := await _probe_structured_method(model)) is not None:
            PROBED_METHODS[key] = method
            await asyncio.to_thread(_write_cache, key, method)


def describe_methods(configuration: Any) -> list[RoleMethod]:
    """Return the structured output method of each model role, with the reason for it."""
    settings, models = structured_methods(configuration), chat_models(configuration)
    methods = []
    for role, model in models.items():
        method = structured_method(model, settings[role])
        if settings[role] != "auto":
            reason = "set by structured"
        elif method == "text":
            reason = "the client does not support schemas"
        elif is_grammar_server(model):
            is_probed = probe_key(model) in PROBED_METHODS
            reason = "found by a probe" if is_probed else "default for its server; not probed"
        elif method == "json_schema":
            reason = "the model's profile lists structured output"
        else:
            reason = "supported by every model that calls tools"
        methods.append(RoleMethod(role, method, reason))
    return methods


def _models_to_probe(configuration: Any) -> list[Any]:
    """List the models to probe, one for each combination of server and model name."""
    by_role = configuration if isinstance(configuration, Mapping) else {"default": configuration}
    remote = {role: value for role, value in by_role.items() if not _is_local_entry(value)}
    if not remote:
        return []
    settings = structured_methods(remote)
    models = chat_models(remote)
    auto = [models[role] for role in MODEL_ROLES if role in models and settings[role] == "auto"]
    return list({probe_key(model): model for model in auto if is_grammar_server(model)}.values())


def _is_local_entry(value: Any) -> bool:
    name = value.get("model") if isinstance(value, Mapping) else getattr(value, "model", value)
    return isinstance(name, str) and is_local_model(name)


async def _probe_structured_method(model: Any) -> StructuredMethod | None:
    """Probe a server for the first structured output method that it enforces.

    The result is ``text`` if the server enforces no method, and None if it cannot be reached.
    """
    log = get_logger("framework", "models")
    name, server = model_name(model), mask_secrets(probe_key(model))
    for method in _METHODS:
        runnable = model.with_structured_output(_PROBE_SCHEMA, method=method, include_raw=True)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                reply = await runnable.ainvoke(_QUESTION)
        except Exception as exc:  # each client raises its own errors
            if getattr(exc, "status_code", None) in _REFUSAL_STATUS_CODES:
                continue
            cause = mask_secrets(str(exc) or type(exc).__name__)[:200]
            log.warning("The model %r at %s could not be probed: %s", name, server, cause)
            return None
        if reply.get("parsed") == {"word": _EXPECTED_WORD}:
            log.info("The model %r at %s enforces %s (probed).", name, server, method)
            return method
    log.info(
        "The model %r at %s enforces no schema (probed). The prompt contains the schema instead.",
        name,
        server,
    )
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
        entries = json.loads(_cache_file().read_text(encoding="utf-8"))
        return entries if isinstance(entries, dict) else {}
    return {}


def _write_cache(key: str, method: StructuredMethod) -> None:
    entries = {**_read_cache(), key: {"method": method, "time": time.time()}}
    with suppress(OSError):  # without a cache, the next start probes again
        write_atomic(_cache_file(), json.dumps(entries, indent=1))
