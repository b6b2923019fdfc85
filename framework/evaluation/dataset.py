"""Evaluation sets: the YAML format and the function that loads it."""

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


_MAX_PATTERN_SIZE = 1_000


class _StrictModel(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


def _validate_pattern(text: str) -> str:
    try:
        LinearTimeRegex(text, max_size=_MAX_PATTERN_SIZE)  # a set may come from elsewhere
    except ConfigurationError as exc:
        raise ValueError(
            f"{text!r} is not a regular expression with linear search time: {exc}"
        ) from exc
    return text


class AnswerCheck(_StrictModel):
    """Rule that an agent's answer must satisfy. Set exactly one of the first four fields.

    Attributes:
        contains: Text that the answer must contain, ignoring case.
        lacks: Text that the answer must not contain, ignoring case.
        matches: Regular expression that must match part of the answer, in the syntax of Rust's
            ``regex``, without lookaround and backreferences.
        number: Number that the answer must contain, within ``tolerance``.
        tolerance: Maximum difference from ``number``.

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
        present = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(present) != 1:
            raise ValueError(
                f"exactly one of {', '.join(kinds)} must be set, but {present or 'none'} is set"
            )
        if self.tolerance and self.number is None:
            raise ValueError("'tolerance' requires 'number'")
        return self

    def find_problem(self, answer: str) -> str | None:
        """Return the reason why an answer fails this check, or ``None`` if the answer passes."""
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
        return f"does not contain the number {self.number:g}{give}"

    def _has_number(self, answer: str, expected: float) -> bool:
        # Always allow for floating-point rounding.
        allowed = self.tolerance + 1e-9 * max(1.0, abs(expected))
        return any(abs(number - expected) <= allowed for number in find_numbers(answer))


def find_numbers(text: str) -> list[float]:
    """Extract all numbers from a text.

    >>> find_numbers("1,234.5 at -3 °C on 2015-07-19")
    [1234.5, -3.0, 2015.0, 7.0, 19.0]
    """
    return [float(match.replace(",", "").replace("−", "-")) for match in _NUMBER.findall(text)]


def _parse_edge(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    parts = tuple(part.strip() for part in value.split("->"))
    if len(parts) != 2 or not all(parts):
        raise ValueError(f"{value!r} is not an edge; write 'producer -> consumer'")
    return parts


Edge = Annotated[tuple[str, str], BeforeValidator(_parse_edge)]


class Case(_StrictModel):
    """Request of an evaluation set with its expected results.

    Fields that are not set are not checked.

    Attributes:
        name: Unique name.
        request: Request of the user.
        earlier: Earlier requests of the same thread. They run, but their results are not checked.
        context: Context data of the thread, by context type and key.
        capabilities: Capabilities of the plan's steps, repeated if used repeatedly. An empty list
            expects that the agent uses none.
        optional: Capabilities that the plan may or may not use.
        edges: Data flow of the plan, as ``"producer -> consumer"``.
        answer: Checks of the answer.
        outcome: Expected end of the turn. ``waiting``: the turn waits for an answer. ``raised``:
            the run raised an exception. ``no_capability``: the turn ended without a step and
            without a failure. With ``capabilities: []``, ``completed`` and ``failed`` mean
            ``no_capability``.
        recording: File of a recorded turn, in the folder of the set. The case replays that turn,
            and its steps must return the recorded results.
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
        # Such a turn fails offline and completes with a model, so one set can serve both.
        if self.capabilities == [] and self.outcome in ("completed", "failed"):
            self.outcome = NO_CAPABILITY
        return self

    @model_validator(mode="after")
    def _validate_edges(self) -> Case:
        listed = {*(self.capabilities or []), *self.optional}
        ends = [end for edge in self.edges or [] for end in edge]
        unknown = sorted(set(ends) - listed)
        if unknown and self.capabilities is not None:
            raise ValueError(
                f"the edges contain {', '.join(map(repr, unknown))}, which neither"
                " 'capabilities' nor 'optional' lists"
            )
        return self


class Thresholds(_StrictModel):
    """Minimum metric values that an evaluation report must reach.

    Attributes:
        passed: Share of cases whose results are all as expected.
        precision: Share of the chosen capabilities that were expected.
        recall: Share of the expected capabilities that were chosen.
        node_f1: F1 score of the plans' steps.
        edge_f1: F1 score of the plans' data flow.
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
    """Human verdict on an answer, used to measure the accuracy of the judging model.

    Attributes:
        request: Request that was answered.
        answer: The answer.
        accepted: True if the human accepts the answer.
    """

    request: Name
    answer: str
    accepted: bool


class JudgeSettings(_StrictModel):
    """Settings for a chat model that judges every answer in an evaluation set.

    Attributes:
        model: ``"provider:name"``, the fields of ``ModelSettings``, or a chat model.
        rubric: Rule by which an answer is accepted.
        labels: Answers with a human verdict. Cases with answer checks also count as labels.
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
    """Evaluation set: requests to an agent with their expected results.

    Attributes:
        version: Version of the format, which is 1.
        name: Name of the set.
        config: Configuration file of the agent, in the folder of the set or below it.
        thresholds: Minimum values of the report's metrics.
        judge: Settings of the model that judges answers. By default, none does.
        cases: Cases of the set.

    >>> Dataset(version=1, name="tiny", cases=[{"name": "a", "request": "Hi"}]).cases[0].outcome
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
            raise ValueError(
                f"the case names must be unique, but several cases are named {', '.join(map(repr, twice))}"
            )
        return self


def load_dataset(path: str | os.PathLike[str]) -> Dataset:
    """Load an evaluation set from a YAML file.

    A recipe file is converted to a set of its example requests.

    Raises:
        ConfigurationError: The file cannot be read, or is invalid. The message lists all problems
            with their paths.
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
        dataset = Dataset.model_validate(values)
    except ValidationError as exc:
        raise ConfigurationError(
            f"The evaluation set {os.fspath(path)!r} is invalid:\n{format_validation_errors(exc)}"
        ) from exc
    folder = Path(path).parent
    if dataset.config is not None:
        dataset.config = _resolve_in_folder(folder, dataset.config, "config")
    for case in dataset.cases:
        if case.recording is not None:
            case.recording = _resolve_in_folder(folder, case.recording, "recording")
    return dataset


def _resolve_in_folder(folder: Path, file_name: str, key: str) -> str:
    """Resolve a file name relative to the folder of the evaluation set.

    Paths outside the folder are refused, because an untrusted evaluation set must not read
    arbitrary files.
    """
    file = folder / file_name
    try:
        file.is_file()  # fails for a name that the file system does not allow
        is_inside = file.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError) as exc:
        raise ConfigurationError(
            f"The file name {file_name!r:.200} ({key}) is not valid.",
            fix="Write the name of a file in the folder of the evaluation set.",
        ) from exc
    if not is_inside:
        raise ConfigurationError(
            f"The file {file_name!r} ({key}) is outside the folder of the evaluation set.",
            fix="Move it into that folder."
            + (" Or remove the key, and pass --config." if key == "config" else ""),
        )
    return str(file)
