"""The capability that reads which times a question is about."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel, ConfigDict, Field

from capabilities.contexts import TimeRange
from capabilities.periods.reading import time_range_of
from framework.base import (
    BaseCapability,
    ClassifierExample,
    OrchestratorExample,
    OrchestratorGuide,
    PlannedStep,
    TaskClassifierGuide,
    capability_node,
)


class TimeRangeParameters(BaseModel):
    """Parameters of ``time_range_parsing``.

    Attributes:
        time_expression: Words about time to read instead of the whole task.
    """

    model_config = ConfigDict(extra="forbid")

    time_expression: str | None = Field(
        default=None, description="Words about time, such as 'the summer of 2015' or 'last week'."
    )


@capability_node
class TimeRangeParsing(BaseCapability):
    """Reads dates, months, quarters, seasons and relative times from the task.

    Settings: ``now`` (ISO time that relative words count from), ``timezone``, ``day_first``
    (whether 03/04/2015 is in April) and ``hemisphere`` (``north`` or ``south``, for seasons).
    A task without any time gives a range that means the whole data.
    """

    name = "time_range_parsing"
    description = (
        "Reads the time period of a request: dates, months, years, quarters, seasons, 'last week',"
        " 'between … and …', 'since …'; several periods for a comparison."
    )
    provides = ["TIME_RANGE"]
    requires = []
    Parameters = TimeRangeParameters

    async def execute(self) -> TimeRange:
        """Read the times of the task."""
        text = self.parameters.time_expression or self.task
        result = await asyncio.to_thread(time_range_of, text, dict(self.config))
        self.progress(result.label, 1.0)
        return result

    def _create_orchestrator_guide(self) -> OrchestratorGuide:
        return OrchestratorGuide(
            instructions=(
                "Plan this before data_retrieval when the request names a time. Keep all words"
                " about time in the task objective, also those of a comparison."
            ),
            examples=[
                OrchestratorExample(
                    step=PlannedStep(
                        context_key="summer_2015",
                        capability="time_range_parsing",
                        task_objective="Read the period: the summer of 2015",
                        success_criteria="Start and end of the period are known",
                        expected_output="TIME_RANGE",
                        parameters={"time_expression": "the summer of 2015"},
                        inputs=[],
                    ),
                    scenario_description="The request names a season, month, year or date",
                )
            ],
            priority=10,
        )

    def _create_classifier_guide(self) -> TaskClassifierGuide:
        positive = [
            ("What was the hottest day in the summer of 2015?", "names a season"),
            ("How did the price of IBM move between 2003 and 2006?", "names a range of years"),
            ("Average temperature in March", "names a month"),
            ("Rainfall last week", "names a relative time"),
            ("How many jobs were there in construction in 2009?", "names a year"),
            ("Compare June 2014 with June 2015", "names two periods"),
            ("Power consumption yesterday between 6 am and 9 am", "names a day and hours"),
            ("Electricity generation since 2010", "names an open range"),
            ("Total sales in the third quarter of 2021", "names a quarter"),
            ("Show the load of the past 30 days", "names a relative time"),
            ("Wind on 4 July 2012", "names a date"),
        ]
        negative = [
            ("Which airport lies furthest north?", "no time is named"),
            ("Remember that I prefer Celsius", "a preference, no time"),
            ("Write a poem about the sea", "no time is named"),
            ("What do you know about me?", "a question about memory"),
        ]
        return TaskClassifierGuide(
            instructions="Activate when the request is about data at certain times.",
            examples=[
                *(ClassifierExample(query, True, reason) for query, reason in positive),
                *(ClassifierExample(query, False, reason) for query, reason in negative),
            ],
        )
