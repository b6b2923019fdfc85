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

from configs.lazy import contents
from framework.evaluation.dataset import AnswerCheck as AnswerCheck
from framework.evaluation.dataset import Case as Case
from framework.evaluation.dataset import Dataset as Dataset
from framework.evaluation.dataset import Thresholds as Thresholds
from framework.evaluation.dataset import load_dataset as load_dataset
from framework.evaluation.from_threads import dataset_of_threads as dataset_of_threads
from framework.evaluation.from_threads import write_dataset as write_dataset
from framework.evaluation.metrics import Counts as Counts
from framework.evaluation.recording import Cost as Cost
from framework.evaluation.recording import Recording as Recording
from framework.evaluation.recording import Said as Said
from framework.evaluation.recording import TurnEnd as TurnEnd
from framework.evaluation.recording import Visit as Visit
from framework.evaluation.recording import load_recording as load_recording
from framework.evaluation.recording import record as record
from framework.evaluation.replay import Difference as Difference
from framework.evaluation.replay import Replay as Replay
from framework.evaluation.replay import replay as replay
from framework.evaluation.report import METRICS as METRICS
from framework.evaluation.report import CaseResult as CaseResult
from framework.evaluation.report import Report as Report
from framework.evaluation.report import ShortFall as ShortFall
from framework.evaluation.run import check_names as check_names
from framework.evaluation.run import evaluate as evaluate
from framework.evaluation.script import NoRecordError as NoRecordError
from framework.evaluation.takeover import Obstacle as Obstacle
from framework.evaluation.takeover import Takeover as Takeover
from framework.evaluation.takeover import check_threads as check_threads

__getattr__, __dir__ = contents(__name__)
