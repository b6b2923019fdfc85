"""Base class of context types, the typed data that capabilities exchange."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, model_validator
from pydantic import ValidationError as PydanticValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from capgraph.base.errors import ValidationError
from capgraph.configs.suggestions import closest_match
from capgraph.helpers.plain_data import short_summary

_UNKNOWN_FIELD = "extra_forbidden"


class CapabilityContext(BaseModel):
    """Base class of context types.

    ``CONTEXT_TYPE`` is the name of the type. By default, it is the class name in upper snake case.
    Instances are stored in the graph state as plain JSON and validated when they are written and read.
    ``model_dump(mode="json")`` must therefore preserve every field. A field type that pydantic does not
    support requires a serializer and a validator. Unknown fields raise an error, which suggests the
    nearest name.

    ``labels`` are the labels (provenance tags) of all data of the type: ``["untrusted"]`` for text from
    unknown sources, ``["secret"]`` for data that must not leave the organization, or custom names.

    >>> class RoomTemperature(CapabilityContext):
    ...     celsius: float
    >>> RoomTemperature.CONTEXT_TYPE
    'ROOM_TEMPERATURE'
    >>> RoomTemperature(celsius=21.5).get_summary()
    'celsius: 21.5'
    """

    # Keep NaN and infinity as numbers. JSON would turn them into null.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

    CONTEXT_TYPE: ClassVar[str] = ""
    CONTEXT_CATEGORY: ClassVar[str] = "COMPUTATIONAL_DATA"
    labels: ClassVar[Collection[str]]  # no default, so that a field may have this name

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if not cls.__dict__.get("CONTEXT_TYPE"):
            cls.CONTEXT_TYPE = _to_upper_snake(cls.__name__.removesuffix("Context") or cls.__name__)
        if not isinstance(cls.CONTEXT_TYPE, str) or not cls.CONTEXT_TYPE.strip():
            raise ValidationError(
                f"{cls.__name__}.CONTEXT_TYPE is {cls.CONTEXT_TYPE!r}, not a non-empty string.",
                fix='Set a name, such as CONTEXT_TYPE = "WEATHER_DATA".',
            )
        labels = cls.__dict__.get("labels", ())
        if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
            raise ValidationError(
                f"{cls.__name__}.labels is {labels!r}, not a list of strings.",
                fix='Write labels = ["untrusted"].',
            )

    @model_validator(mode="wrap")
    @classmethod
    def _suggest_fields(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate the data, and suggest the closest field name for each unknown field."""
        try:
            return handler(data)
        except PydanticValidationError as exc:
            raise _add_suggestions(exc, cls) from None

    def get_summary(self) -> str:
        """Summarize the data as text for the user.

        Agents without a chat model use this summary as their answer. By default, all fields are
        formatted on one line, and long values are truncated.
        """
        return short_summary(self)

    def get_files(self) -> list[str]:
        """Return the paths of files that the step created for the user.

        By default, these are the values of ``path`` and ``paths`` if ``CONTEXT_CATEGORY`` is
        ``"ARTIFACT"``.
        """
        if self.CONTEXT_CATEGORY != "ARTIFACT":
            return []
        named = [getattr(self, "path", None), *(getattr(self, "paths", None) or [])]
        return [str(path) for path in named if path]

    def get_tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the data to display as tables: lists of rows, by table name.

        By default, return every field that is a list of records.

        >>> class Prices(CapabilityContext):
        ...     currency: str
        ...     rows: list[dict[str, float]]
        >>> Prices(currency="EUR", rows=[{"low": 1.5, "high": 2.0}]).get_tables()
        {'rows': [{'low': 1.5, 'high': 2.0}]}
        """
        return {
            name: value
            for name, value in self.model_dump(mode="json").items()
            if isinstance(value, list) and value and all(isinstance(row, dict) for row in value)
        }


class ResultFile(CapabilityContext):
    """File that contains a step's outputs because they exceeded ``limits.max_result_bytes``.

    A capability that declares ``large_result = "file"`` has this output in place of its own.

    Attributes:
        path: Path of the file: text, or JSON with the outputs by context type.
        size_bytes: Size of the file.
        types: Context types of the outputs in the file.

    >>> ResultFile(path="results/export.txt", size_bytes=20_000_000, types=["PAGE"]).get_summary()
    'The result (20,000,000 bytes) is in the file results/export.txt.'
    """

    CONTEXT_TYPE: ClassVar[str] = "RESULT_FILE"
    CONTEXT_CATEGORY: ClassVar[str] = "ARTIFACT"

    path: str
    size_bytes: int
    types: list[str]

    def get_summary(self) -> str:
        """Return the size and the path of the file as a sentence."""
        return f"The result ({self.size_bytes:,} bytes) is in the file {self.path}."


def _add_suggestions(exc: PydanticValidationError, cls: type[BaseModel]) -> PydanticValidationError:
    """Add the closest matching field name to each unknown-field error in a validation error."""
    errors = exc.errors(include_url=False)
    if all(error["type"] != _UNKNOWN_FIELD for error in errors):
        return exc
    known = [*cls.model_fields, *(i.alias for i in cls.model_fields.values() if i.alias)]
    found: list[InitErrorDetails] = []
    for error in errors:
        text = error["msg"]
        if error["type"] == _UNKNOWN_FIELD and len(error["loc"]) == 1:
            near = closest_match(str(error["loc"][0]), known)
            fix = f"Use {near!r}" if near else f"Use one of: {', '.join(known) or 'none'}"
            text = f"unknown field. {fix}"
        kind: Any = PydanticCustomError(error["type"], text)
        found.append(InitErrorDetails(type=kind, loc=error["loc"], input=error["input"]))
    return PydanticValidationError.from_exception_data(exc.title, found)


def _to_upper_snake(name: str) -> str:
    parts: list[str] = []
    for index, char in enumerate(name):
        previous_lower = index > 0 and (name[index - 1].islower() or name[index - 1].isdigit())
        next_lower = index + 1 < len(name) and name[index + 1].islower()
        if char.isupper() and index > 0 and (previous_lower or next_lower):
            parts.append("_")
        parts.append(char.upper())
    return "".join(parts)
