"""The capability that computes what a question asks and says it in plain sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from capabilities.contexts import Dataset, Statistics
from capabilities.data.analysis.request import Request, Threshold, Unit, parse_request
from capabilities.data.analysis.run import compute
from capabilities.data.examples import (
    MOVEMENTS,
    PICTURES,
    TIMED_QUESTIONS,
    UNRELATED,
    UNTIMED_QUESTIONS,
)
from capabilities.data.fresh import dataset_for
from capabilities.data.words import MAX_TEXT
from capabilities.data.work import classify_data_error, run_work
from capabilities.periods.reading import read_times
from framework.base import (
    BaseCapability,
    ClassifierExample,
    OrchestratorExample,
    OrchestratorGuide,
    PlannedStep,
    TaskClassifierGuide,
    ValidationError,
    capability_node,
)

_Statistic = Literal[
    "max", "min", "mean", "median", "sum", "count", "std", "range", "percentile", "trend",
    "change", "compare", "anomalies", "correlation", "describe", "share",
]  # fmt: skip


class StatisticsParameters(BaseModel):
    """Parameters of ``statistics``; what is given wins over the words of the task.

    Attributes:
        statistics: What to compute.
        group_by: A unit of time to break the values down by.
        percentile: From 0 to 100, for the statistic ``percentile``.
        above: Count values above this limit.
        below: Count values below this limit.
        top: How many of the most extreme values.
    """

    model_config = ConfigDict(extra="forbid")

    statistics: list[_Statistic] = Field(default_factory=list, description="What to compute.")
    group_by: Unit | None = Field(default=None, description="Unit of time to break down by.")
    percentile: float | None = Field(default=None, ge=0, le=100)
    above: float | None = Field(default=None, description="Count values above this limit.")
    below: float | None = Field(default=None, description="Count values below this limit.")
    top: int | None = Field(default=None, ge=1, le=50)

    @field_validator("statistics", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        # A planner may write "max, trend": parameters of a plan are often plain text.
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return value


@capability_node
class StatisticsCapability(BaseCapability):
    """Computes statistics with DuckDB over the files that a data set describes.

    Extremes with their times, averages, totals, spread, percentiles, trends with their slope,
    breakdowns by month, weekday or category, comparisons, counts beyond a limit, first crossings,
    streaks, anomalies, shares and correlation.
    """

    name = "statistics"
    description = (
        "Computes the answer to a question about measurements: highest and lowest values with"
        " their dates, averages, totals, counts, trends, changes, comparisons, breakdowns by month"
        " or category, anomalies."
    )
    provides: list[str] = ["STATISTICS"]  # noqa: RUF012 - as every capability declares it
    requires = ["DATASET"]  # noqa: RUF012
    classify_error = staticmethod(classify_data_error)
    Parameters = StatisticsParameters

    async def execute(self) -> Statistics:
        """Compute what the task or the parameters ask."""
        settings = dict(self.config)
        dataset: Dataset = await run_work(
            settings,
            dataset_for,
            self.inputs["DATASET"],
            self.task,
            self.state,
            self.step,
            settings,
        )
        names = [measure.label for measure in dataset.measures]
        request = await run_work(settings, request_for, self.task, self.parameters, settings, names)
        return await run_work(
            settings, compute, dataset, self.task, settings, request, self.progress
        )

    def _create_orchestrator_guide(self) -> OrchestratorGuide:
        return OrchestratorGuide(
            instructions=(
                "Plan this after data_retrieval for every question that asks for a value. Repeat"
                " the question in the task objective: the sentences answer it."
            ),
            examples=[
                OrchestratorExample(
                    step=PlannedStep(
                        context_key="hottest_day",
                        capability="statistics",
                        task_objective="Find the hottest day and how the daily highs moved",
                        success_criteria="The day, its value and the trend are known",
                        expected_output="STATISTICS",
                        parameters={"statistics": "max, trend"},
                        inputs=[{"DATASET": "daily_highs"}],
                    ),
                    scenario_description="A question about extremes and movement",
                    context_requirements={"DATASET": "the selected measurements"},
                )
            ],
            priority=30,
        )

    def _create_classifier_guide(self) -> TaskClassifierGuide:
        return TaskClassifierGuide(
            instructions="Activate when a value must be computed from data.",
            examples=[
                *(ClassifierExample(q, True, "asks for a value") for q in TIMED_QUESTIONS),
                *(ClassifierExample(q, True, "asks for a value") for q in UNTIMED_QUESTIONS),
                *(
                    ClassifierExample(q, True, "asks how values moved")
                    for q in MOVEMENTS + PICTURES
                ),
                *(ClassifierExample(q, False, "needs no data") for q in UNRELATED),
            ],
        )


def request_for(
    task: str,
    parameters: StatisticsParameters,
    settings: dict[str, object],
    names: Sequence[str] = (),
) -> Request:
    """Combine what the task says with what the parameters state.

    Raises:
        ValidationError: The parameters contradict each other.
    """
    task = task[:MAX_TEXT]
    request = parse_request(task, read_times(task, settings).spans, names)
    if parameters.above is not None and parameters.below is not None:
        raise ValidationError(
            "Both 'above' and 'below' are given.", fix="Plan one step for each limit."
        )
    if parameters.statistics:
        request.statistics = list(parameters.statistics)
        request.directions = [(name, None) for name in ("max", "min") if name in request.statistics]
        request.crossing = None
        request.comparative = False
    if parameters.group_by is not None:
        request.group = parameters.group_by
        request.grouped_extreme = bool(request.directions)
        if not request.directions:
            request.statistics.append("breakdown")
    if parameters.percentile is not None:
        request.percentile = parameters.percentile / 100
        request.statistics.append("percentile")
    for limit, operator in ((parameters.above, ">"), (parameters.below, "<")):
        if limit is not None:
            request.threshold = Threshold(operator, limit)  # type: ignore[arg-type]
            request.statistics.append("threshold")
    if parameters.top is not None:
        request.top = parameters.top
    return request
