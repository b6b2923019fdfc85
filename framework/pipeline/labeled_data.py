"""Labels of data that leaves a step for the store or the state, and that enters a step from there.

Inputs of a step have labels in the thread. A step can also read the LangGraph store and state keys of
the application directly. Their labels are stored with the data, and added to the step that reads it.
The labels of a file that a step wrote are stored under the path of the file. They are added to each step
whose parameters or inputs name the file.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from langgraph.store.base import BaseStore, GetOp, Item, Op, PutOp, Result, SearchOp

from capgraph.base.context import CapabilityContext
from capgraph.base.errors import ErrorSeverity, PolicyError
from capgraph.base.ports import Attempt, StepRecord
from capgraph.langgraph_compat import RUNTIME_KEY, replace_configurable
from capgraph.pipeline.authorize import planned_step
from capgraph.pipeline.effect_ledger import serialize_inputs
from capgraph.pipeline.run_config import current_runtime
from capgraph.pipeline.step_execution import StepExecution, propagate_labels
from capgraph.state import load_context
from capgraph.state.turn_view import STATE_KIND
from capgraph.stores.stored_labels import StoredLabels

_MAX_PATH_CHARS = 4096
_CLOCK_TOLERANCE_SECONDS = 0.1
"""Difference between the process's clock and the modification times of a file system."""
_LABELS = "capgraph labels"
"""First part of the namespaces with the labels of items."""


class LabeledStore(BaseStore):
    """LangGraph store that saves data labels (provenance tags) with items and restores them on reads.

    Args:
        store: Wrapped store.
        execution: Execution of the step.
    """

    supports_ttl: bool = True

    def __init__(self, store: BaseStore, execution: StepExecution) -> None:
        self._store, self._execution = store, execution
        self.supports_ttl = store.supports_ttl
        self.ttl_config = store.ttl_config

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run a batch of store operations, and track the labels of their items.

        See LangGraph's ``BaseStore``.
        """
        operations = list(ops)
        results = self._store.batch([*operations, *self._label_writes(operations)])
        results = _remove_labels(results[: len(operations)])
        if reads := _label_reads(operations, results):
            self._propagate_item_labels(self._store.batch(reads))
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run a batch of store operations asynchronously, and track the labels of their items.

        See LangGraph's ``BaseStore``.
        """
        operations = list(ops)
        results = await self._store.abatch([*operations, *self._label_writes(operations)])
        results = _remove_labels(results[: len(operations)])
        if reads := _label_reads(operations, results):
            self._propagate_item_labels(await self._store.abatch(reads))
        return results

    def _label_writes(self, operations: list[Op]) -> list[Op]:
        spec = self._execution.spec
        source = f"step {self._execution.key!r} ({spec.name})"
        labels = {**dict.fromkeys(spec.labels, source), **self._execution.labels}
        kept = {name: at for name, at in labels.items() if name not in spec.removes_labels}
        return [
            PutOp(
                (_LABELS, *op.namespace),
                op.key,
                kept if kept and op.value is not None else None,
                index=False,
                ttl=op.ttl,
            )
            for op in operations
            if isinstance(op, PutOp)
        ]

    @staticmethod
    def _propagate_item_labels(items: list[Result]) -> None:
        for item in items:
            if isinstance(item, Item):
                propagate_labels(item.value)


def _label_reads(operations: list[Op], results: list[Result]) -> list[Op]:
    reads: list[Op] = []
    for op, result in zip(operations, results, strict=True):
        if isinstance(op, GetOp | SearchOp):
            items = result if isinstance(result, list) else [result]
            reads += [
                GetOp((_LABELS, *item.namespace), item.key)
                for item in items
                if isinstance(item, Item)
            ]
    return reads


def _remove_labels(results: list[Result]) -> list[Result]:
    """Remove internal label items and label namespaces from store results."""

    def is_label(part: Any) -> bool:
        namespace = part.namespace if isinstance(part, Item) else part
        return isinstance(namespace, tuple) and namespace[:1] == (_LABELS,)

    shown: list[Any] = [
        [part for part in result if not is_label(part)] if isinstance(result, list) else result
        for result in results
    ]
    return shown


def labeled_runtime(execution: StepExecution) -> Any:
    """Return LangGraph's ``Runtime`` for a step, with a store that tracks data labels."""
    runtime = current_runtime()
    store = getattr(runtime, "store", None)
    if execution.flow is None or store is None or isinstance(store, LabeledStore):
        return runtime
    return runtime.override(store=LabeledStore(store, execution))


def runtime_scope(runtime: Any) -> AbstractContextManager[None]:
    """Return a context manager that makes LangGraph's ``get_store`` return a runtime's store."""
    if not isinstance(getattr(runtime, "store", None), LabeledStore):
        return nullcontext()
    return replace_configurable((), {RUNTIME_KEY: runtime})


def receive_state(execution: StepExecution, attempt: Attempt, path: tuple[str, ...]) -> None:
    """Add a state value's labels (provenance tags) to the step that reads the value.

    Args:
        execution: Execution of the step.
        attempt: Attempt of the step.
        path: Path of keys to the value. For context data, these are the state key, the type,
            and the context key.

    Raises:
        PolicyError: The labels do not allow the step to read the value, and no person approved
            the step.
    """
    flow, view = execution.flow, execution.view
    if flow is None:
        return
    labels: Mapping[str, str] = {}
    if len(path) == 1:
        stored = view.labels.get(f"{STATE_KIND}{path[0]}", {})
        labels = {name: source for one in stored.values() for name, source in one.items()}
    elif len(path) == 3 and path[2] not in _find_input_keys(
        attempt
    ):  # the plan was checked for inputs
        labels = flow.stored_labels(path[1], path[2], view)
    if not labels:
        return
    key = ".".join(path)
    verdict = flow.check(execution.spec, planned_step(attempt), labels)
    if verdict.decision != "allow" and execution.approval is None:
        raise PolicyError(
            f"Step {attempt.key!r} ({execution.spec.name}) must not read {key!r} in the state:"
            f" {' '.join(verdict.problems)}",
            fix="pass the data as an input, so that a person can approve the step.",
            severity=ErrorSeverity.CRITICAL,
        )
    propagate_labels(labels)


def _find_input_keys(attempt: Attempt) -> set[str]:
    return {key for entry in attempt.step.get("inputs") or () for key in entry.values()}


async def receive_files(execution: StepExecution, attempt: Attempt) -> Attempt:
    """Add the labels of the files that a step's parameters and inputs name to the step."""
    if execution.flow is not None:
        execution.named_texts = frozenset(
            _iterate_path_texts([dict(attempt.values), serialize_inputs(attempt.inputs)])
        )
        execution.file_labels = await _find_file_labels(execution)
        execution.labels = {**execution.file_labels, **execution.labels}
    return attempt


async def record_file_labels(
    execution: StepExecution, record: StepRecord, started_at: float
) -> None:
    """Store the labels of a step's result for the files that the step wrote.

    These are the files that the result lists (``CapabilityContext.get_files``), and the files that the
    step's parameters, inputs, or results name and that changed since the step began.

    Args:
        execution: State of the step execution.
        record: Outcome of the step, with its labels.
        started_at: Time at which the step began, in seconds since the epoch.
    """
    labels = {name: source for own in record.labels.values() for name, source in own.items()}
    if not labels:
        return
    results = [record.contexts, record.updates]
    named = {*execution.named_texts, *_iterate_path_texts(results)}
    modified_after = started_at - _CLOCK_TOLERANCE_SECONDS
    files = {
        *await asyncio.to_thread(_find_files, _listed_files(execution, record), ()),
        *await asyncio.to_thread(_find_files, named, _folders(execution), modified_after),
    }
    for path in sorted(files):
        await _file_labels(execution).record("", path, labels, execution.config.clock)


async def _find_file_labels(execution: StepExecution) -> dict[str, str]:
    if not execution.named_texts:
        return {}
    labels: dict[str, str] = {}
    paths = await asyncio.to_thread(_find_files, execution.named_texts, _folders(execution))
    for path in sorted(paths):
        stored = await _file_labels(execution).find("", path, execution.config.clock)
        labels = {**(stored or {}), **labels}
    return labels


def _file_labels(execution: StepExecution) -> StoredLabels:
    persistence = execution.context.ledger.journal.persistence
    return execution.config.file_labels if persistence is None else persistence.file_labels


def _folders(execution: StepExecution) -> list[str]:
    """Return the data folders to which the step's file names may be relative."""
    user = execution.view.caller.storage_key
    settings = execution.config.settings.capability_settings(execution.spec.name, user)
    return [*settings.get("data_folders", ())]


def _listed_files(execution: StepExecution, record: StepRecord) -> set[str]:
    types = execution.config.registry.context_types
    found: set[str] = set()
    for kind, entries in record.contexts.items():
        for key, entry in entries.items():
            loaded = load_context(kind, key, entry, types) if kind in types else None
            for context in loaded if isinstance(loaded, list) else [loaded]:
                found.update(context.get_files() if isinstance(context, CapabilityContext) else ())
    return found


def _iterate_path_texts(value: Any) -> Iterator[str]:
    """Yield the texts in nested plain data that are short enough for a path."""
    parts = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, str | os.PathLike):
            text = os.fspath(part)
            if isinstance(text, str) and 0 < len(text) <= _MAX_PATH_CHARS and "\0" not in text:
                yield text
        elif isinstance(part, Mapping):
            parts += part.values()
        elif isinstance(part, list | tuple):
            parts += part


def _find_files(
    texts: Iterable[str], folders: Collection[str], modified_after: float | None = None
) -> set[str]:
    """Return the resolved paths of the existing files that texts name.

    Args:
        texts: Paths, ``file:`` addresses, and other texts.
        folders: Folders to which a path may be relative, in addition to the working directory.
        modified_after: Earliest modification time of the files, if any.
    """
    found: set[str] = set()
    for text in texts:
        name = unquote(urlsplit(text).path) if text[:5].lower() == "file:" else text
        for folder in ("", *folders):
            try:
                path = Path(folder).expanduser().joinpath(Path(name).expanduser())
                status = path.stat()
                if path.is_file() and (modified_after is None or status.st_mtime >= modified_after):
                    found.add(os.path.realpath(path))
            except (OSError, RuntimeError, ValueError):  # the text names no file
                continue
    return found
