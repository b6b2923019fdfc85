"""The capability that finds the files, columns and rows a question is about."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from capabilities.contexts import Dataset, DataSource, TimeRange
from capabilities.data.examples import (
    MOVEMENTS,
    PICTURES,
    TIMED_QUESTIONS,
    UNRELATED,
    UNTIMED_QUESTIONS,
)
from capabilities.data.fresh import made_in_this_plan
from capabilities.data.retrieve import retrieve
from capabilities.data.table_match import Wish
from capabilities.data.work import classify_data_error, run_work
from framework.base import (
    BaseCapability,
    ClassifierExample,
    OrchestratorExample,
    OrchestratorGuide,
    PlannedStep,
    TaskClassifierGuide,
    capability_node,
)


class DataRetrievalParameters(BaseModel):
    """Parameters of ``data_retrieval``; what is given wins over the words of the task.

    Attributes:
        columns: Columns to measure, by their names in the file.
        series: Values of a category to keep, such as ticker symbols.
        group_by: A column to group by.
        table: The file or table to use, when there are several.
        unit: Unit of the values, when the file does not name it.
    """

    model_config = ConfigDict(extra="forbid")

    columns: list[str] = Field(default_factory=list, description="Columns to measure.")
    series: list[str] = Field(
        default_factory=list, description="Values of a category to keep, such as ['AAPL']."
    )
    group_by: str | None = Field(default=None, description="Column to group by.")
    table: str | None = Field(default=None, description="File or table to use.")
    unit: str | None = Field(default=None, description="Unit of the values, such as '°C'.")

    @field_validator("columns", "series", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        # A planner may write "max, trend": parameters of a plan are often plain text.
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return value


@capability_node
class DataRetrieval(BaseCapability):
    """Finds columns and rows in CSV, TSV, Parquet, JSON and SQLite files with DuckDB.

    The data set that it gives is a description, from which later steps compute over the files
    themselves; rows never enter the state but for a short preview.

    Settings: ``timezone``, ``day_first``, ``max_file_bytes``, ``memory_limit``, ``threads``.
    """

    name = "data_retrieval"
    description = (
        "Selects measurements from the user's data files (CSV, TSV, Parquet, SQLite): finds the"
        " time column, the columns and the series that the request means."
    )
    provides: list[str] = ["DATASET"]  # noqa: RUF012 - as every capability declares it
    requires = ["DATA_SOURCE", ("TIME_RANGE", "optional")]  # noqa: RUF012
    classify_error = staticmethod(classify_data_error)
    Parameters = DataRetrievalParameters

    async def execute(self) -> Dataset:
        """Describe the data set that the task means."""
        source: DataSource = self.inputs["DATA_SOURCE"]
        times: TimeRange | None = self.inputs.get("TIME_RANGE")
        if times is not None and times.read_from:
            # A time that an earlier turn spoke of is not the time of this question.
            fresh = made_in_this_plan(self.state, self.step, "TIME_RANGE")
            times = times if fresh else None
        stated: DataRetrievalParameters = self.parameters
        wish = Wish(
            columns=tuple(stated.columns),
            series=tuple(stated.series),
            group_by=stated.group_by,
            table=stated.table,
            unit=stated.unit,
        )
        return await run_work(
            self.config,
            retrieve,
            source.files,
            self.task,
            times,
            wish,
            dict(self.config),
            self.progress,
        )

    def _create_orchestrator_guide(self) -> OrchestratorGuide:
        return OrchestratorGuide(
            instructions=(
                "Plan this before statistics and plotting. Keep the words for the quantity, the"
                " place and the grouping in the task objective. State columns or series as"
                " parameters only when their names in the file are known."
            ),
            examples=[
                OrchestratorExample(
                    step=PlannedStep(
                        context_key="daily_highs",
                        capability="data_retrieval",
                        task_objective="Get the daily high temperatures of the period",
                        success_criteria="The column of daily highs is selected",
                        expected_output="DATASET",
                        parameters={},
                        inputs=[{"DATA_SOURCE": "files"}, {"TIME_RANGE": "summer_2015"}],
                    ),
                    scenario_description="A question about measurements in the user's files",
                    context_requirements={"DATA_SOURCE": "the files, given by the caller"},
                )
            ],
            priority=20,
        )

    def _create_classifier_guide(self) -> TaskClassifierGuide:
        return TaskClassifierGuide(
            instructions="Activate when the answer must come from the user's data files.",
            examples=[
                *(ClassifierExample(q, True, "asks about data") for q in TIMED_QUESTIONS),
                *(ClassifierExample(q, True, "asks about data") for q in UNTIMED_QUESTIONS),
                *(ClassifierExample(q, True, "needs data to show") for q in MOVEMENTS + PICTURES),
                *(ClassifierExample(q, False, "needs no data") for q in UNRELATED),
            ],
        )
