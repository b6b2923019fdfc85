"""Files for results that are too large for the state, if the capability declares ``large_result``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from capgraph.base.context import ResultFile
from capgraph.base.errors import CapabilityError, ErrorSeverity
from capgraph.base.ports import StepRecord
from capgraph.base.value_context import unwrap_value
from capgraph.helpers.data_size import exceeds_bytes
from capgraph.helpers.files import write_atomic
from capgraph.pipeline.effect_ledger import compute_digest
from capgraph.pipeline.step_execution import StepExecution


async def store_large_result(execution: StepExecution, record: StepRecord) -> StepRecord:
    """Write a result that exceeds ``limits.max_result_bytes`` to a file.

    Middleware, guards, and the quality gate have already checked the result itself.

    Args:
        execution: State of the step execution.
        record: Record of a successful step.

    Returns:
        A record whose only output is a ``ResultFile``, or ``record`` itself if its outputs are small
        enough or the capability does not declare ``large_result = "file"``.

    Raises:
        CapabilityError: The file cannot be written.
    """
    limit = execution.config.limits.max_result_bytes
    if execution.spec.large_result != "file" or not exceeds_bytes(record.contexts, limit):
        return record
    settings = execution.config.settings
    thread_id = execution.view.thread_id
    try:
        context = await asyncio.to_thread(
            _write_result, Path(settings.result_folder), thread_id, record
        )
    except OSError as exc:
        raise CapabilityError(
            f"The result of step {record.key!r} ({record.capability}) cannot be stored in"
            f" {settings.result_folder!r}: {exc.strerror}.",
            fix="create the folder with write permission, or change the setting result_folder.",
            severity=ErrorSeverity.CRITICAL,
        ) from exc
    contexts = {context.CONTEXT_TYPE: {record.key: context.model_dump(mode="json")}}
    return replace(record, contexts=contexts)


def _write_result(folder: Path, thread_id: str | None, record: StepRecord) -> ResultFile:
    outputs = {kind: entries[record.key] for kind, entries in record.contexts.items()}
    text, suffix = _format_outputs(outputs)
    # The same result has the same file, so that a repeated attempt does not write another file.
    name = compute_digest([thread_id, record.key, text])[:32]
    path = folder / f"{record.capability}-{name}.{suffix}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, text, mode=0o600)
    return ResultFile(path=str(path), size_bytes=path.stat().st_size, types=sorted(outputs))


def _format_outputs(outputs: Mapping[str, Any]) -> tuple[str, str]:
    """Return outputs as the text of a file, and the file name extension."""
    value: Any = outputs
    if len(outputs) == 1:
        value = unwrap_value(next(iter(outputs.values())), None)
    return (value, "txt") if isinstance(value, str) else (json.dumps(value), "json")
