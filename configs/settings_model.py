"""Base class of settings sections."""

from __future__ import annotations

from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class SettingsModel(BaseModel):
    """Base class of settings sections.

    It refuses unknown keys, NaN, and booleans in place of numbers.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_boolean(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and {annotation, *get_args(annotation)} & {int, float}:
            raise ValueError(f"expected a number, not {str(value).lower()}")
        return value
