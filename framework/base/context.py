"""Typed context data: what capabilities hand to each other."""

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
    """Base of every context type.

    A subclass names its type in ``CONTEXT_TYPE``; without one, the class name in upper
    snake case is used. Instances travel through the state as plain JSON and are validated on
    the way in and out, so every field must survive ``model_dump(mode="json")``; one of a type
    that pydantic does not know needs a serializer and a validator of its own. Unknown fields are
    refused with the nearest name.

    ``labels`` says what is to be known of all data of a type: ``labels = ["untrusted"]`` for what
    strangers wrote, ``["secret"]`` for what must not leave the house, or names of one's own.

    >>> class RoomTemperature(CapabilityContext):
    ...     celsius: float
    >>> RoomTemperature.CONTEXT_TYPE
    'ROOM_TEMPERATURE'
    >>> RoomTemperature(celsius=21.5).get_summary()
    'celsius: 21.5'
    """

    # A figure that is not a number stays one; as JSON it would become "no value".
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

    CONTEXT_TYPE: ClassVar[str] = ""
    CONTEXT_CATEGORY: ClassVar[str] = "COMPUTATIONAL_DATA"
    labels: ClassVar[Collection[str]]  # without a value, so that a field may bear the name

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if not cls.__dict__.get("CONTEXT_TYPE"):
            cls.CONTEXT_TYPE = _upper_snake(cls.__name__.removesuffix("Context") or cls.__name__)
        if not isinstance(cls.CONTEXT_TYPE, str) or not cls.CONTEXT_TYPE.strip():
            raise ValidationError(
                f"{cls.__name__}.CONTEXT_TYPE is {cls.CONTEXT_TYPE!r}.",
                fix='Give it a name, such as CONTEXT_TYPE = "WEATHER_DATA".',
            )
        given = cls.__dict__.get("labels", ())
        if isinstance(given, str) or not all(isinstance(label, str) for label in given):
            raise ValidationError(
                f"{cls.__name__}.labels is {given!r}.", fix='Write labels = ["untrusted"].'
            )

    @model_validator(mode="wrap")
    @classmethod
    def _suggest_fields(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Name the nearest field where pydantic only says that one is not permitted."""
        try:
            return handler(data)
        except PydanticValidationError as exc:
            raise _with_suggestions(exc, cls) from None

    def get_summary(self) -> str:
        """Say in plain sentences what this data is; the answer when no model is configured.

        The default names the fields and cuts long values, saying how much is left out.
        """
        return short_summary(self)

    def get_files(self) -> list[str]:
        """Return the paths of files that a step made and people may have.

        The default gives ``path`` and ``paths`` of a type with ``CONTEXT_CATEGORY = "ARTIFACT"``.
        """
        if self.CONTEXT_CATEGORY != "ARTIFACT":
            return []
        named = [getattr(self, "path", None), *(getattr(self, "paths", None) or [])]
        return [str(path) for path in named if path]

    def get_tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return what people may read as tables: rows of plain data, by the name of each.

        The default gives every field that is a list of records.

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


def _with_suggestions(
    exc: PydanticValidationError, cls: type[BaseModel]
) -> PydanticValidationError:
    """Return an error whose unknown fields come with the nearest name."""
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


def _upper_snake(name: str) -> str:
    parts: list[str] = []
    for index, char in enumerate(name):
        previous_lower = index > 0 and (name[index - 1].islower() or name[index - 1].isdigit())
        next_lower = index + 1 < len(name) and name[index + 1].islower()
        if char.isupper() and index > 0 and (previous_lower or next_lower):
            parts.append("_")
        parts.append(char.upper())
    return "".join(parts)
