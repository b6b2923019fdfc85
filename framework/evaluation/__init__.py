"""Evaluation: how well an agent chooses, plans and answers, over a set of requests.

A set is a YAML file of requests with what is expected of them; :func:`evaluate` runs them and
:class:`Report` holds the figures. The command ``capgraph eval`` is this with a terminal around it.

Counting and the run loop are the project's own. The maintained library that comes nearest,
pydantic-evals, was looked at: it requires the one release of pydantic-ai that bears its number
(a second agent framework beside LangGraph) and takes as long to import as all the rest together,
and what it would take over is a loop with a semaphore and a table; precision and recall of a
choice, and F1 of a plan's nodes and edges, it does not have. A graph of this project is an
ordinary async function to it, for those who keep their sets there.
"""

from typing import TYPE_CHECKING

from capgraph.configs.lazy import lazy_exports

if TYPE_CHECKING:
    from capgraph.evaluation.dataset import AnswerCheck as AnswerCheck
    from capgraph.evaluation.dataset import Case as Case
    from capgraph.evaluation.dataset import Dataset as Dataset
    from capgraph.evaluation.dataset import JudgeLabel as JudgeLabel
    from capgraph.evaluation.dataset import JudgeSettings as JudgeSettings
    from capgraph.evaluation.dataset import Thresholds as Thresholds
    from capgraph.evaluation.dataset import load_dataset as load_dataset
    from capgraph.evaluation.from_threads import dataset_of_threads as dataset_of_threads
    from capgraph.evaluation.from_threads import write_dataset as write_dataset
    from capgraph.evaluation.judge import Verdict as Verdict
    from capgraph.evaluation.metrics import Counts as Counts
    from capgraph.evaluation.recording import Cost as Cost
    from capgraph.evaluation.recording import RecordedAnswer as RecordedAnswer
    from capgraph.evaluation.recording import RecordedNodeRun as RecordedNodeRun
    from capgraph.evaluation.recording import Recording as Recording
    from capgraph.evaluation.recording import TurnEnd as TurnEnd
    from capgraph.evaluation.recording import load_recording as load_recording
    from capgraph.evaluation.recording import record as record
    from capgraph.evaluation.replay_turn import Difference as Difference
    from capgraph.evaluation.replay_turn import Replay as Replay
    from capgraph.evaluation.replay_turn import replay as replay
    from capgraph.evaluation.report import METRICS as METRICS
    from capgraph.evaluation.report import CaseResult as CaseResult
    from capgraph.evaluation.report import Report as Report
    from capgraph.evaluation.report import ThresholdFailure as ThresholdFailure
    from capgraph.evaluation.run import check_names as check_names
    from capgraph.evaluation.run import evaluate as evaluate
    from capgraph.evaluation.script import NoRecordError as NoRecordError
    from capgraph.evaluation.takeover import CompatibilityReport as CompatibilityReport
    from capgraph.evaluation.takeover import Incompatibility as Incompatibility
    from capgraph.evaluation.takeover import check_threads as check_threads

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
        "capgraph.evaluation.from_threads": ("dataset_of_threads", "write_dataset"),
        "capgraph.evaluation.judge": ("Verdict",),
        "capgraph.evaluation.metrics": ("Counts",),
        "capgraph.evaluation.recording": (
            "Cost",
            "RecordedAnswer",
            "RecordedNodeRun",
            "Recording",
            "TurnEnd",
            "load_recording",
            "record",
        ),
        "capgraph.evaluation.replay_turn": ("Difference", "Replay", "replay"),
        "capgraph.evaluation.report": ("CaseResult", "METRICS", "Report", "ThresholdFailure"),
        "capgraph.evaluation.run": ("check_names", "evaluate"),
        "capgraph.evaluation.script": ("NoRecordError",),
        "capgraph.evaluation.takeover": ("CompatibilityReport", "Incompatibility", "check_threads"),
    },
)
