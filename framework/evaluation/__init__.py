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

from framework.evaluation.dataset import AnswerCheck, Case, Dataset, Thresholds, load_dataset
from framework.evaluation.from_threads import dataset_of_threads, write_dataset
from framework.evaluation.metrics import Counts, count_edges, count_items, plan_edges, plan_nodes
from framework.evaluation.recording import (
    Cost,
    Recording,
    Said,
    TurnEnd,
    Visit,
    load_recording,
    record,
)
from framework.evaluation.replay import Difference, Replay, replay
from framework.evaluation.report import METRICS, CaseResult, Report, ShortFall
from framework.evaluation.run import check_names, evaluate
from framework.evaluation.script import NoRecordError
from framework.evaluation.takeover import Obstacle, Takeover, check_threads

__all__ = [
    "METRICS",
    "AnswerCheck",
    "Case",
    "CaseResult",
    "Cost",
    "Counts",
    "Dataset",
    "Difference",
    "NoRecordError",
    "Obstacle",
    "Recording",
    "Replay",
    "Report",
    "Said",
    "ShortFall",
    "Takeover",
    "Thresholds",
    "TurnEnd",
    "Visit",
    "check_names",
    "check_threads",
    "count_edges",
    "count_items",
    "dataset_of_threads",
    "evaluate",
    "load_dataset",
    "load_recording",
    "plan_edges",
    "plan_nodes",
    "record",
    "replay",
    "write_dataset",
]
