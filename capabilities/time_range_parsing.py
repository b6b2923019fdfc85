"""The capability that reads which times a question is about."""

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
    """Read the time range of a question.

    >>> time_range_of("the first half of 2009", {}).label
    'the first half of 2009'
    """
    text = text[:MAX_TEXT_CHARS]
    found = vars(parse_times(text, settings))
    told = {name: found[name] for name in found.keys() & TimeRange.model_fields.keys()}
    return TimeRange(**told, timezone=settings.get("timezone") or "UTC", read_from=text)


class TimeRangeParameters(BaseModel):
    """Parameters of ``time_range_parsing``.

    Attributes:
        time_expression: Words about time to read instead of the whole task.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    time_expression: str | None = Field(
        default=None, description="Words about time, such as 'the summer of 2015' or 'last week'."
    )


@capability_node
class TimeRangeParsing(GuidedCapability):
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
    provides: Sequence[ContextType] = ["TIME_RANGE"]
    requires: Sequence[ContextType] = []
    Parameters: ClassVar[type[BaseModel] | None] = TimeRangeParameters

    async def execute(self) -> TimeRange:
        """Read the times of the task."""
        text = self.parameters.time_expression or self.task
        result = await asyncio.to_thread(time_range_of, text, dict(self.config))
        self.progress(result.label, 1.0)
        return result

    @staticmethod
    def matches_task(task: str) -> bool | None:
        """A task that names a time, also one that cannot be; no other."""
        try:
            return not time_range_of(task, {}).is_unrestricted
        except ValidationError:
            return True  # the step then says what is wrong with it
