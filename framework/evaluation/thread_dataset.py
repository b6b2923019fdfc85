"""Evaluation sets out of the turns of a database."""

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
from capgraph.stores.threads import iter_thread_ids

_OUTCOMES = get_args(Case.model_fields["outcome"].annotation)


async def dataset_from_threads(
    saver: BaseCheckpointSaver[Any],
    threads: Sequence[str] | None = None,
    *,
    name: str = "threads",
    limit: int | None = None,
) -> tuple[Dataset, dict[str, Recording]]:
    """Make an evaluation set of turns: each case is a turn that is replayed.

    Choice, plan, data flow, answer and ending of each turn are what is expected. A turn that is not
    over, or whose beginning is not kept, is left out.

    Args:
        saver: Where the threads are.
        threads: Which threads; all when not given.
        name: Name of the set.
        limit: At most so many turns, of the threads that were saved last.

    Returns:
        The set, and its recordings by the names that the cases give them.

    Raises:
        ConfigurationError: There is no such turn.
    """
    found: dict[str, Recording] = {}
    named = threads or [thread async for thread in iter_thread_ids(saver)]
    for thread in named:
        async for recording in iter_recordings(saver, thread):
            if recording.end.status in _OUTCOMES and len(found) != limit:
                found[f"{len(found) + 1:04}.json"] = recording
    if not found:
        raise ConfigurationError(
            "No turn that is over was found, whose beginning is kept.",
            fix="Check --db; histories go by persistence.keep_… and 'threads prune'.",
        )
    cases = [_build_case(file, recording) for file, recording in found.items()]
    return Dataset(version=1, name=name, cases=cases), found


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
    """Write a set, and its recordings to a folder beside it; secrets are masked.

    Args:
        path: The set's file, such as ``turns.yml``.
        dataset: The set.
        recordings: Name to recording.

    Raises:
        ConfigurationError: It cannot be written.
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
            held = json.dumps(recording.as_data(), indent=1, ensure_ascii=False)
            (folder / name).write_text(held, encoding="utf-8")
        file.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigurationError(
            f"The evaluation set {str(file)!r} cannot be written: {exc.strerror or exc}.",
            fix="Give a file in a folder that you may write to.",
        ) from exc
