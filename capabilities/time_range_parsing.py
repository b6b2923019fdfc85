"""Capability that parses the time expressions in a question."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from capgraph.base import ValidationError, capability_node
from capgraph.base.capability import ContextType
from capgraph.capabilities.contexts import TimeRange
from capgraph.capabilities.guided import GuidedCapability
from capgraph.capabilities.periods.options import MAX_TEXT_CHARS, parse_times


def time_range_of(text: str, settings: Mapping[str, Any]) -> TimeRange:
    """Parse the time range that a question refers to.

    >>> time_range_of("the first half of 2009", {}).label
    'the first half of 2009'
    """
    text = text[:MAX_TEXT_CHARS]
    parsed = vars(parse_times(text, settings))
    fields = {name: parsed[name] for name in parsed.keys() & TimeRange.model_fields.keys()}
    return TimeRange(**fields, timezone=settings.get("timezone") or "UTC", read_from=text)


class TimeRangeParameters(BaseModel):
    """Parameters of a ``time_range_parsing`` step.

    Attributes:
        time_expression: Time expression to parse instead of the whole task.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    time_expression: str | None = Field(
        default=None, description="Words about time, such as 'the summer of 2015' or 'last week'."
    )


@capability_node
class TimeRangeParsing(GuidedCapability):
    """Capability that parses dates, seasons, and relative time expressions in the task.

    Settings are ``now`` (ISO 8601 reference time for relative expressions), ``timezone``,
    ``day_first`` (True if 03/04/2015 is in April), and ``hemisphere`` (``north`` or ``south``,
    for seasons). A task without a time expression yields a range that covers all data.
    """

    name = "time_range_parsing"
    description = (
        "Reads the time period of a request: dates, months, years, quarters, seasons, 'last week',"
        " 'between … and …', 'since …'; several periods for a comparison."
    )
    provides: Sequence[ContextType] = ["TIME_RANGE"]
    requires: Sequence[ContextType] = []
    parses_task = True
    Parameters: ClassVar[type[BaseModel] | None] = TimeRangeParameters

    async def execute(self) -> TimeRange:
        """Parse the time range that the parameters or the task describe."""
        text = self.parameters.time_expression or self.task
        result = await asyncio.to_thread(time_range_of, text, dict(self.config))
        self.progress(result.label, 1.0)
        return result

    @staticmethod
    def matches_task(task: str) -> bool | None:
        """Return True if the task contains a time expression, including dates that do not exist."""
        try:
            return not time_range_of(task, {}).is_unrestricted
        except ValidationError:
            return True  # the step reports the error
