"""The form of an evaluation set, and reading one."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from capgraph.configs.errors import ConfigurationError
from capgraph.configs.linear_regex import LinearTimeRegex
from capgraph.configs.yaml_files import format_validation_errors, read_yaml
from capgraph.registry import load_recipe

_NUMBER = re.compile(r"(?<![\w.])[-+−]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?")
NO_CAPABILITY: Literal["no_capability"] = "no_capability"
"""Outcome of a case whose turn ended without a step and without a failure."""
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1)]


class _StrictModel(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


def _validate_pattern(text: str) -> str:
    try:
        LinearTimeRegex(text)  # a set may come from elsewhere
    except ConfigurationError as exc:
        raise ValueError(
            f"{text!r} is no regular expression that can be searched in linear time. {exc}"
        ) from exc
    return text


class AnswerCheck(_StrictModel):
    """One thing that the answer must or must not say; exactly one of the first four.

    Attributes:
        contains: Text that it must hold, whatever the case of its letters.
        lacks: Text that it must not hold.
        matches: Regular expression that must be found in it, as Rust's ``regex`` reads it: without
            lookaround and references back.
        number: A number that must be in it, give or take ``tolerance``.
        tolerance: How far off the number may be.

    >>> AnswerCheck(number=35, tolerance=0.1).find_problem("It was 35.05 degrees.")
    >>> AnswerCheck(contains="July").find_problem("In June.")
    "does not contain 'July'"
    """

    contains: Name | None = None
    lacks: Name | None = None
    matches: Annotated[Name, AfterValidator(_validate_pattern)] | None = None
    number: float | None = Field(None, allow_inf_nan=False)
    tolerance: float = Field(0.0, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _validate_single_check(self) -> AnswerCheck:
        kinds = ("contains", "lacks", "matches", "number")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(kinds)}; found {given or 'none'}")
        if self.tolerance and self.number is None:
            raise ValueError("'tolerance' belongs to 'number'")
        return self

    def find_problem(self, answer: str) -> str | None:
        """Return what is wrong with an answer, or ``None``."""
        folded = answer.casefold()
        if self.contains is not None and self.contains.casefold() not in folded:
            return f"does not contain {self.contains!r}"
        if self.lacks is not None and self.lacks.casefold() in folded:
            return f"contains {self.lacks!r}"
        if self.matches is not None and not LinearTimeRegex(self.matches).search(answer):
            return f"does not match {self.matches!r}"
        if self.number is None or self._has_number(answer, self.number):
            return None
        give = f" (give or take {self.tolerance:g})" if self.tolerance else ""
        return f"has no number {self.number:g}{give}"

    def _has_number(self, answer: str, expected: float) -> bool:
        # What binary fractions round away is forgiven in any case.
        allowed = self.tolerance + 1e-9 * max(1.0, abs(expected))
        return any(abs(found - expected) <= allowed for found in find_numbers(answer))


def find_numbers(text: str) -> list[float]:
    """Return the numbers of a text.

    >>> find_numbers("1,234.5 at -3 °C on 2015-07-19")
    [1234.5, -3.0, 2015.0, 7.0, 19.0]
    """
    return [float(found.replace(",", "").replace("−", "-")) for found in _NUMBER.findall(text)]


def _parse_edge(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    parts = tuple(part.strip() for part in value.split("->"))
    if len(parts) != 2 or not all(parts):
        raise ValueError(f"{value!r} is no edge; write 'producer -> consumer'")
    return parts


Edge = Annotated[tuple[str, str], BeforeValidator(_parse_edge)]


class Case(_StrictModel):
    """A request, and what is expected of it. What is left out is not judged.

    Attributes:
        name: Unique name.
        request: What the person asks.
        earlier: Requests of the same thread before it; they run and are not judged.
        context: Context data of the thread: type to key to value.
        capabilities: Capabilities of the plan's steps; one that is used twice stands twice. An
            empty list expects that nothing fits.
        optional: Capabilities that may be used or not.
        edges: ``"producer -> consumer"``: whose output whose step takes.
        answer: Checks of the answer.
        outcome: How the turn must end; ``waiting`` for a person's answer, ``raised`` when the
            run ends with an exception, ``no_capability`` when the turn ends without a step and
            without a failure. With ``capabilities: []``, ``completed`` and ``failed`` are read as
            ``no_capability``.
        recording: File of a recorded turn, beside the set's file: the case is that turn, replayed,
            and its steps must give what they gave.
    """

    name: Name
    request: Name
    earlier: list[Name] = Field(default_factory=list)
    context: dict[str, dict[str, Any]] = Field(default_factory=dict)
    capabilities: list[Name] | None = None
    optional: list[Name] = Field(default_factory=list)
    edges: list[Edge] | None = None
    answer: list[AnswerCheck] = Field(default_factory=list)
    outcome: Literal[
        "completed", "partial", "failed", "stopped", "waiting", "raised", "no_capability"
    ] = "completed"
    recording: Name | None = None

    @model_validator(mode="after")
    def _normalize_outcome(self) -> Case:
        # Offline the same turn fails, and with a model it completes: the set serves both.
        if self.capabilities == [] and self.outcome in ("completed", "failed"):
            self.outcome = NO_CAPABILITY
        return self

    @model_validator(mode="after")
    def _validate_edges(self) -> Case:
        known = {*(self.capabilities or []), *self.optional}
        ends = [end for edge in self.edges or [] for end in edge]
        strange = sorted(set(ends) - known)
        if strange and self.capabilities is not None:
            raise ValueError(
                f"the edges name {', '.join(map(repr, strange))}, which 'capabilities' and"
                " 'optional' do not"
            )
        return self


class Thresholds(_StrictModel):
    """Least values with which a run counts as good.

    Attributes:
        passed: Share of cases without a problem.
        precision: Of the chosen capabilities, the share that was expected.
        recall: Of the expected capabilities, the share that was chosen.
        node_f1: Agreement of the plans' steps.
        edge_f1: Agreement of the plans' data flow.
        judged: Share of judged answers that the judge accepts.
        agreement: Share of labels with which the judge agrees.
    """

    passed: Share = 1.0
    precision: Share | None = None
    recall: Share | None = None
    node_f1: Share | None = None
    edge_f1: Share | None = None
    judged: Share | None = None
    agreement: Share | None = None


class JudgeLabel(_StrictModel):
    """A person's verdict on an answer, against which the judge is measured.

    Attributes:
        request: Request that was answered.
        answer: The answer.
        accepted: True if the person accepts it.
    """

    request: Name
    answer: str
    accepted: bool


class JudgeSettings(_StrictModel):
    """A chat model that judges every answer of a set.

    Attributes:
        model: ``"provider:name"``, the fields of ``ModelSettings``, or a chat model.
        rubric: Rule by which an answer is accepted.
        labels: Answers with a person's verdict. Cases with checks of the answer are labels as well.
    """

    model: Any
    rubric: Name
    labels: list[JudgeLabel] = Field(default_factory=list)

    @field_validator("model")
    @classmethod
    def _require_model(cls, value: Any) -> Any:
        if value is None or value in ("", {}):
            raise ValueError("a model is required; write 'provider:name'")
        return value


class Dataset(_StrictModel):
    """An evaluation set.

    Attributes:
        version: Version of this form; 1.
        name: Name of the set.
        config: Configuration file of the agent, in the folder of the set's file or below it.
        thresholds: Least values.
        judge: Chat model that judges the answers; none by default.
        cases: The requests.

    >>> Dataset(version=1, file_name="tiny", cases=[{"name": "a", "request": "Hi"}]).cases[0].outcome
    'completed'
    """

    version: Literal[1]
    name: Name
    config: Name | None = None
    thresholds: Thresholds = Field(default_factory=Thresholds)
    judge: JudgeSettings | None = None
    cases: list[Case] = Field(min_length=1)

    @model_validator(mode="after")
    def _validate_unique_names(self) -> Dataset:
        twice = [name for name, count in Counter(c.name for c in self.cases).items() if count > 1]
        if twice:
            raise ValueError(f"several cases are named {', '.join(map(repr, twice))}")
        return self


def load_dataset(path: str | os.PathLike[str]) -> Dataset:
    """Read an evaluation set from a YAML file; a recipe's file is the set of its examples.

    Raises:
        ConfigurationError: It cannot be read, or does not have the form; lists every problem with
            its path.
    """
    try:
        values = read_yaml(path, expand_variables=False)
        if "recipe" in values:
            recipe = load_recipe(path)
            values = {
                "version": 1,
                "name": recipe.name,
                "cases": [
                    {
                        "name": f"{recipe.name} {n}",
                        "request": e.request,
                        "capabilities": [recipe.name],
                    }
                    for n, e in enumerate(recipe.examples, 1)
                ],
            }
        found = Dataset.model_validate(values)
    except ValidationError as exc:
        raise ConfigurationError(
            f"The evaluation set {os.fspath(path)!r} cannot be used:\n{format_validation_errors(exc)}"
        ) from exc
    folder = Path(path).parent
    if found.config is not None:
        found.config = _resolve_in_folder(folder, found.config, "config")
    for case in found.cases:
        if case.recording is not None:
            case.recording = _resolve_in_folder(folder, case.recording, "recording")
    return found


def _resolve_in_folder(folder: Path, file_name: str, key: str) -> str:
    """Return the path of a file that a set names; a set from elsewhere must not choose any file."""
    file = folder / file_name
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ConfigurationError(
            f"The file {file_name!r} ({key}) is outside the folder of the evaluation set.",
            fix="Put it beside the set."
            + (" Or remove the key, and pass --config." if key == "config" else ""),
        )
    return str(file)
