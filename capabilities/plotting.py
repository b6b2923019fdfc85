"""Capability that draws a chart of an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from capgraph.base import capability_node
from capgraph.base.capability import ContextType
from capgraph.base.error_classification import ErrorClassification
from capgraph.base.spec import Effect
from capgraph.capabilities.contexts import Plot, QueryResult
from capgraph.capabilities.data.chart import PlottingParameters, draw_chart
from capgraph.capabilities.data.thread_pool import DataThreadPool, classify_data_error
from capgraph.capabilities.guided import GuidedCapability

_SVG_PHRASE = re.compile(r"\bsvg\b", re.IGNORECASE)
_BARS_PHRASE = re.compile(r"\bbars?\b|\bbar chart\b", re.IGNORECASE)
_LINES_PHRASE = re.compile(r"\blines?\s*(?:chart|plot|graph)?\b", re.IGNORECASE)
_CHART_PHRASE = re.compile(
    r"^\W*(?:please\s+|can you\s+|could you\s+)?(?:plot|graph|chart|draw|visuali[sz]e|sketch)\b"
    r"|\b(?:plot|graph|chart|diagram|picture) (?:of|for|showing|with)\b"
    r"|\band (?:plot|graph|chart|draw|visuali[sz]e)\b",
    re.IGNORECASE,
)


@capability_node
class Plotting(GuidedCapability):
    """Capability that draws a query result as a PNG or SVG chart with its extremes marked.

    Settings are ``output_dir`` (default ``capgraph-output`` in the working directory), ``dpi``,
    and ``width`` and ``height`` in inches. Each chart is written to a new file.
    """

    name = "plotting"
    libraries: ClassVar[Sequence[str]] = (
        "matplotlib.figure",
        "matplotlib.dates",
        "matplotlib.backends.backend_agg",
    )
    description = (
        "Draws a chart of measurements over time or by group as a PNG or SVG file, with labels,"
        " units and the extremes marked."
    )
    provides: Sequence[ContextType] = ["PLOT"]
    requires: Sequence[ContextType] = ["QUERY_RESULT"]
    effect: Effect = "idempotent"

    @staticmethod
    def classify_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification:
        """Classify an error from a data operation by severity."""
        return classify_data_error(exc, context)

    thread_pool: ClassVar[DataThreadPool] = DataThreadPool()
    parses_task = True
    Parameters: ClassVar[type[BaseModel] | None] = PlottingParameters

    async def execute(self) -> Plot:
        """Draw the chart of a query result and write the chart to a file."""
        result: QueryResult = self.inputs["QUERY_RESULT"]
        parameters: PlottingParameters = self.parameters.model_copy()
        if parameters.kind is None and _BARS_PHRASE.search(self.task):
            parameters.kind = "bar"
        elif parameters.kind is None and _LINES_PHRASE.search(self.task):
            parameters.kind = "line"
        if parameters.file_format is None and _SVG_PHRASE.search(self.task):
            parameters.file_format = "svg"
        self.progress("Drawing")
        return await self.thread_pool.run(self.config, draw_chart, result, parameters, self.config)

    @staticmethod
    def matches_task(task: str) -> bool | None:
        """Return True if the task asks for a chart, or ``None`` otherwise."""
        return True if _CHART_PHRASE.search(task) else None
