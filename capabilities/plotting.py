"""The capability that draws a data set."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from capabilities.contexts import Dataset, Plot, Statistics
from capabilities.data.chart import Wanted, draw
from framework.base import (
    BaseCapability,
    ClassifierExample,
    OrchestratorExample,
    OrchestratorGuide,
    PlannedStep,
    TaskClassifierGuide,
    capability_node,
)

_SVG = re.compile(r"\bsvg\b", re.IGNORECASE)
_BARS = re.compile(r"\bbars?\b|\bbar chart\b", re.IGNORECASE)
_LINES = re.compile(r"\blines?\s*(?:chart|plot|graph)?\b", re.IGNORECASE)
DEFAULT_FOLDER = "capgraph-output"


class PlottingParameters(BaseModel):
    """Parameters of ``plotting``.

    Attributes:
        title: Title of the picture.
        kind: Lines over time, or bars of groups.
        file_format: File format.
    """

    model_config = ConfigDict(extra="forbid")

    title: str | None = Field(default=None, description="Title of the picture.")
    kind: Literal["line", "bar"] | None = Field(default=None, description="Lines or bars.")
    file_format: Literal["png", "svg"] | None = Field(default=None, description="File format.")


@capability_node
class Plotting(BaseCapability):
    """Draws measurements as a PNG or SVG file, the extremes marked.

    Settings: ``output_dir`` (default ``capgraph-output`` in the working directory), ``dpi``,
    ``width`` and ``height`` in inches. Every plot is a new file; none is overwritten.
    """

    name = "plotting"
    description = (
        "Draws a chart of measurements over time or by group as a PNG or SVG file, with labels,"
        " units and the extremes marked."
    )
    provides = ["PLOT"]
    requires = ["DATASET", ("STATISTICS", "optional")]
    effect = "idempotent"
    Parameters = PlottingParameters

    async def execute(self) -> Plot:
        """Draw the data set and write the file."""
        dataset: Dataset = self.inputs["DATASET"]
        statistics: Statistics | None = self.inputs.get("STATISTICS")
        stated: PlottingParameters = self.parameters
        kind = stated.kind
        if kind is None and _BARS.search(self.task):
            kind = "bar"
        elif kind is None and _LINES.search(self.task):
            kind = "line"
        wanted = Wanted(
            folder=Path(self.config.get("output_dir") or DEFAULT_FOLDER),
            title=stated.title or "",
            kind=kind,
            file_format=stated.file_format or ("svg" if _SVG.search(self.task) else "png"),
            width=float(self.config.get("width") or 10.0),
            height=float(self.config.get("height") or 5.2),
            dpi=int(self.config.get("dpi") or 144),
        )
        self.progress(f"Drawing {', '.join(m.label for m in dataset.measures[:4])}")
        return await asyncio.to_thread(draw, dataset, statistics, wanted, dict(self.config))

    def _create_orchestrator_guide(self) -> OrchestratorGuide:
        return OrchestratorGuide(
            instructions=(
                "Plan this after data_retrieval when a picture helps: movement over time,"
                " comparisons, breakdowns. Pass STATISTICS too, so that extremes are marked."
            ),
            examples=[
                OrchestratorExample(
                    step=PlannedStep(
                        context_key="highs_plot",
                        capability="plotting",
                        task_objective="Plot the daily highs with the hottest day marked",
                        success_criteria="A picture is written",
                        expected_output="PLOT",
                        parameters={},
                        inputs=[{"DATASET": "daily_highs"}, {"STATISTICS": "hottest_day"}],
                    ),
                    scenario_description="The request asks for a plot, or how values moved",
                    context_requirements={"DATASET": "the measurements to draw"},
                )
            ],
            priority=40,
        )

    def _create_classifier_guide(self) -> TaskClassifierGuide:
        positive = [
            ("Plot the daily highs of July", "asks for a plot"),
            ("Show a chart of the stock prices", "asks for a chart"),
            ("Draw the temperature over the year", "asks for a drawing"),
            ("Graph monthly rainfall as bars", "asks for a graph"),
            ("How did daily highs move over those months?", "movement is best seen"),
            ("How did the price develop between 2004 and 2008?", "movement is best seen"),
            ("Show the trend of manufacturing jobs", "a trend is best seen"),
            ("Visualise electricity generation by source", "asks for a picture"),
            ("Compare the temperatures of June 2014 and June 2015 in a picture", "asks for one"),
            ("Make an SVG of the hourly load", "asks for a file"),
            ("What was the hottest day in the summer, and how did highs move?", "movement"),
        ]
        negative = [
            ("What was the average price in 2006?", "one number needs no picture"),
            ("How many rainy days were there?", "one number needs no picture"),
            ("Remember my name", "a fact to keep"),
            ("Which state has the most airports?", "one name needs no picture"),
            ("Tell me a story", "nothing to draw"),
        ]
        return TaskClassifierGuide(
            instructions=(
                "Activate when the request asks for a picture, or how values moved over time."
            ),
            examples=[
                *(ClassifierExample(query, True, reason) for query, reason in positive),
                *(ClassifierExample(query, False, reason) for query, reason in negative),
            ],
        )
