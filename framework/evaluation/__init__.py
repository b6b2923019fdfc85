"""Evaluation of agents on sets of requests, and replay of recorded turns.

An evaluation set is a YAML file of requests with the expected results. :func:`evaluate` runs them
and returns a :class:`Report`. The command ``capgraph eval`` does the same in a terminal.

The project has its own evaluation loop and metrics. The closest library, pydantic-evals, depends on
one release of pydantic-ai (a second agent framework beside LangGraph), takes as long to import as
everything else together, and has neither precision and recall of a choice nor F1 of a plan's nodes
and edges. It can still evaluate a capgraph graph, which is an async function to it.
"""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.evaluation.dataset import AnswerCheck as AnswerCheck
    from capgraph.evaluation.dataset import Case as Case
    from capgraph.evaluation.dataset import Dataset as Dataset
    from capgraph.evaluation.dataset import JudgeLabel as JudgeLabel
    from capgraph.evaluation.dataset import JudgeSettings as JudgeSettings
    from capgraph.evaluation.dataset import Thresholds as Thresholds
    from capgraph.evaluation.dataset import load_dataset as load_dataset
    from capgraph.evaluation.evaluator import evaluate as evaluate
    from capgraph.evaluation.evaluator import validate_dataset as validate_dataset
    from capgraph.evaluation.judge import JudgeVerdict as JudgeVerdict
    from capgraph.evaluation.metrics import Counts as Counts
    from capgraph.evaluation.recording import RecordedAnswer as RecordedAnswer
    from capgraph.evaluation.recording import RecordedNodeRun as RecordedNodeRun
    from capgraph.evaluation.recording import RecordedOutcome as RecordedOutcome
    from capgraph.evaluation.recording import Recording as Recording
    from capgraph.evaluation.recording import TurnCost as TurnCost
    from capgraph.evaluation.recording import load_recording as load_recording
    from capgraph.evaluation.recording import record as record
    from capgraph.evaluation.replay_script import NoRecordError as NoRecordError
    from capgraph.evaluation.replay_turn import Difference as Difference
    from capgraph.evaluation.replay_turn import ReplayResult as ReplayResult
    from capgraph.evaluation.replay_turn import replay as replay
    from capgraph.evaluation.report import METRICS as METRICS
    from capgraph.evaluation.report import CaseResult as CaseResult
    from capgraph.evaluation.report import Report as Report
    from capgraph.evaluation.report import ThresholdFailure as ThresholdFailure
    from capgraph.evaluation.thread_compatibility import CompatibilityReport as CompatibilityReport
    from capgraph.evaluation.thread_compatibility import Incompatibility as Incompatibility
    from capgraph.evaluation.thread_compatibility import check_threads as check_threads
    from capgraph.evaluation.thread_dataset import dataset_from_threads as dataset_from_threads
    from capgraph.evaluation.thread_dataset import write_dataset as write_dataset

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.evaluation.dataset": (
            "AnswerCheck",
            "Case",
            "Dataset",
            "JudgeLabel",
            "JudgeSettings",
            "Thresholds",
            "load_dataset",
        ),
        "capgraph.evaluation.thread_dataset": ("dataset_from_threads", "write_dataset"),
        "capgraph.evaluation.judge": ("JudgeVerdict",),
        "capgraph.evaluation.metrics": ("Counts",),
        "capgraph.evaluation.recording": (
            "TurnCost",
            "RecordedAnswer",
            "RecordedNodeRun",
            "Recording",
            "RecordedOutcome",
            "load_recording",
            "record",
        ),
        "capgraph.evaluation.replay_turn": ("Difference", "ReplayResult", "replay"),
        "capgraph.evaluation.report": ("CaseResult", "METRICS", "Report", "ThresholdFailure"),
        "capgraph.evaluation.evaluator": ("validate_dataset", "evaluate"),
        "capgraph.evaluation.replay_script": ("NoRecordError",),
        "capgraph.evaluation.thread_compatibility": (
            "CompatibilityReport",
            "Incompatibility",
            "check_threads",
        ),
    },
)
