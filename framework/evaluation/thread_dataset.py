"""Functions that build evaluation sets from the turns in a checkpointer."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from langgraph.checkpoint.base import BaseCheckpointSaver

from capgraph.configs.errors import ConfigurationError
from capgraph.configs.logger import mask_data
from capgraph.evaluation.dataset import Case, Dataset
from capgraph.evaluation.metrics import plan_edges, plan_nodes
from capgraph.evaluation.recording import Recording, iter_recordings
from capgraph.helpers.files import write_atomic
from capgraph.stores.threads import iter_thread_ids

_OUTCOMES = get_args(Case.model_fields["outcome"].annotation)


async def dataset_from_threads(
    saver: BaseCheckpointSaver[Any],
    threads: Sequence[str] | None = None,
    *,
    name: str = "threads",
    limit: int | None = None,
) -> tuple[Dataset, dict[str, Recording]]:
    """Create an evaluation set from stored turns, together with a recording of each turn.

    Each case replays one turn and expects the same selection, plan, data flow, answer, and
    outcome. Unfinished turns, and turns whose first checkpoint was deleted, are skipped.

    Args:
        saver: Checkpointer that contains the threads.
        threads: Thread IDs. Defaults to all threads.
        name: Name of the set.
        limit: Maximum number of turns, from the most recently saved threads.

    Returns:
        The evaluation set, and the recordings by the file names that the cases reference.

    Raises:
        ConfigurationError: No turn can be used.
    """
    recordings: dict[str, Recording] = {}
    thread_ids = threads or [thread async for thread in iter_thread_ids(saver)]
    for thread in thread_ids:
        async for recording in iter_recordings(saver, thread):
            if recording.end.status in _OUTCOMES and len(recordings) != limit:
                recordings[f"{len(recordings) + 1:04}.json"] = recording
    if not recordings:
        raise ConfigurationError(
            "The selected threads contain no finished turn with a complete history.",
            fix="Check --db, and that persistence.keep_… or 'threads prune' did not delete the history.",
        )
    cases = [_build_case(file, recording) for file, recording in recordings.items()]
    return Dataset(version=1, name=name, cases=cases), recordings


def _build_case(file: str, recording: Recording) -> Case:
    end, plan = recording.end, {"steps": recording.end.plan}
    expected: dict[str, Any] = mask_data(
        {
            "request": recording.request or "(the caller brought a plan)",
            "answer": [{"contains": end.answer}] if end.answer else [],
        }
    )
    return Case(
        **expected,
        name=f"{recording.thread} turn {recording.turn}",
        capabilities=plan_nodes(plan),
        edges=plan_edges(plan),
        outcome=end.status,
        recording=file,
    )


def write_dataset(
    path: str | os.PathLike[str], dataset: Dataset, recordings: Mapping[str, Recording]
) -> None:
    """Write an evaluation set to a file, and its recordings to a folder next to the file.

    Secrets are masked in the recordings.

    Args:
        path: Path of the set's file, such as ``turns.yml``.
        dataset: Evaluation set to write.
        recordings: Recordings by file name.

    Raises:
        ConfigurationError: A file cannot be written.
    """
    file = Path(path)
    folder = file.with_name(f"{file.stem}_turns")
    data = dataset.model_dump(mode="json", exclude_defaults=True)
    for case in data["cases"]:
        case["recording"] = f"{folder.name}/{case['recording']}"
        case["edges"] = [" -> ".join(edge) for edge in case["edges"]]
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, recording in recordings.items():
            content = json.dumps(recording.as_data(), indent=1, ensure_ascii=False)
            write_atomic(folder / name, content, mode=0o600)
        write_atomic(file, text, mode=0o600)
    except OSError as exc:
        raise ConfigurationError(
            f"The evaluation set {str(file)!r} cannot be written: {exc.strerror or exc}.",
            fix="Pass a file in a writable folder.",
        ) from exc
