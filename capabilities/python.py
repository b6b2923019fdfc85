"""Capability that runs the agent's analysis code in a sandbox after a person has approved it.

The code reads its data from ``inputs``, assigns its answer to ``result``, and saves figures below
``figures/``. ``docs/capabilities/python.md`` describes the isolation and its limits.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic import ValidationError as PydanticValidationError

from capgraph.base import (
    BaseCapability,
    CapabilityContext,
    CapabilityError,
    ConfigurationError,
    ErrorClassification,
    ErrorSeverity,
    ValidationError,
    capability_node,
)
from capgraph.base.capability import ContextType
from capgraph.base.spec import Effect
from capgraph.capabilities._sandbox.isolation import IsolationReport, SandboxSettings, sandbox_for
from capgraph.capabilities._sandbox.limits import MIB, Figure, SandboxLimits, SandboxOutcome
from capgraph.capabilities._sandbox.process import InputTooLargeError
from capgraph.capabilities.guided import GuidedCapability
from capgraph.helpers.plain_data import validation_messages

DATA_TYPES = ("QUERY_RESULT", "TIME_RANGE")
"""Context types whose data the code can read."""
_SHOWN_RESULT, _SHOWN_OUTPUT, _SHOWN_TRACEBACK = 2_000, 1_000, 8


class Code(CapabilityContext):
    """Python code for an analysis that has not run yet.

    >>> print(Code(code="result = 6 * 7").get_summary())
    Python code of 1 line:
    <BLANKLINE>
        result = 6 * 7
    """

    CONTEXT_TYPE: ClassVar[str] = "CODE"

    code: str = Field(min_length=1)
    purpose: str = ""

    def get_summary(self) -> str:
        """Return the complete code, because a person approves the code based on this summary."""
        lines = self.code.splitlines()
        shown = "\n".join(f"    {line}".rstrip() for line in lines)
        count = f"{len(lines)} line" + ("" if len(lines) == 1 else "s")
        return f"Python code of {count}:\n\n{shown}"


class CodeFigure(BaseModel):
    """Validated image file that the code drew."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    path: str
    width: int
    height: int


class CodeResult(CapabilityContext):
    """Outcome of a run of analysis code.

    Attributes:
        result: Value of the code's ``result`` variable.
        figures: Figures that the code drew.
        rejected_figures: Files in ``figures/`` that were rejected, with the reason.
        stdout: Standard output, possibly truncated.
        stderr: Standard error, possibly truncated.
        code: The code that ran.
        seconds: Duration of the run in seconds.
        isolation: Isolation level of the run.

    >>> CodeResult(result={"mean": 4.5}, code="...", seconds=0.2, isolation="limits").get_summary()
    'The code returned {"mean": 4.5}.'
    """

    CONTEXT_TYPE: ClassVar[str] = "CODE_RESULT"

    result: JsonValue = None
    figures: list[CodeFigure] = Field(default_factory=list)
    rejected_figures: dict[str, str] = Field(default_factory=dict)
    stdout: str = ""
    stderr: str = ""
    code: str
    seconds: float
    isolation: str

    def get_summary(self) -> str:
        """Return the result, the standard output, and the figure names as a text summary."""
        parts = []
        if self.result is not None:
            parts.append(
                f"The code returned {_truncate(json.dumps(self.result, ensure_ascii=False))}."
            )
        if self.stdout.strip():
            parts.append(f"It printed: {_truncate(self.stdout.strip(), _SHOWN_OUTPUT)}")
        parts += [f"Figure: {figure.name}" for figure in self.figures]
        parts += [f"Rejected: {name} ({reason})." for name, reason in self.rejected_figures.items()]
        return "\n".join(parts) or "The code ran and returned no result."

    def get_files(self) -> list[str]:
        """Return the paths of the figures."""
        return [figure.path for figure in self.figures]

    def get_tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the result as a table if it is a list of dictionaries, or no tables otherwise."""
        rows = self.result if isinstance(self.result, list) else []
        is_table = rows and all(isinstance(row, dict) for row in rows)
        return {"result": cast("list[dict[str, Any]]", rows)} if is_table else {}


class PythonSettings(SandboxSettings):
    """Settings of the ``python`` capability, including the sandbox and the output folder.

    >>> PythonSettings().allow_weak_isolation
    False
    """

    output_folder: Path = Field(
        Path("capgraph-output"), description="Figures are written below this folder."
    )


class PythonParameters(BaseModel):
    """Parameters of a ``python`` step.

    They can lower the limits in the settings but never raise them.

    >>> PythonParameters(code="result = 1", timeout_seconds=5).timeout_seconds
    5.0
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    code: str | None = Field(None, min_length=1, description="Python code that sets `result`.")
    timeout_seconds: float | None = Field(None, gt=0, le=3600)
    memory_mb: int | None = Field(None, ge=128)


class CodeFailedError(CapabilityError):
    """Raised if analysis code raises an exception, crashes, or returns an invalid result.

    Attributes:
        line: Line number in the code, if known.
        traceback: Last traceback lines that refer to the code.
    """

    line: int | None = None
    traceback: str = ""


def python_settings(config: Mapping[str, Any]) -> PythonSettings:
    """Validate the settings of the ``python`` capability and return them as a typed model.

    Raises:
        ConfigurationError: Settings are invalid. The message lists each invalid setting.

    >>> python_settings({"limits": {"wall_seconds": 5}}).limits.wall_seconds
    5.0
    """
    try:
        return PythonSettings(**config)
    except PydanticValidationError as error:
        problems = "; ".join(validation_messages(error))
        raise ConfigurationError(
            f"The settings of the capability 'python' are invalid: {problems}.",
            fix="Correct the section capabilities.python of the configuration.",
        ) from error


async def isolation_report(config: Mapping[str, Any] | None = None) -> IsolationReport:
    """Report which isolation the host provides for sandboxed code.

    Call this function at startup to find missing protections.

    Args:
        config: Settings of the ``python`` capability. If omitted, defaults apply.
    """
    return await sandbox_for(python_settings(config or {})).report()


@capability_node
class RunPython(GuidedCapability):
    """Capability that runs Python analysis code in a sandbox after a person has approved it."""

    name = "python"
    description = (
        "Run Python analysis code over the data of this conversation in a sandbox and return its "
        "result and figures"
    )
    provides: Sequence[ContextType] = ["CODE_RESULT"]
    requires: Sequence[ContextType | tuple[ContextType, str]] = (
        ("CODE", "optional"),
        *((data_type, "optional") for data_type in DATA_TYPES),
    )
    effect: Effect = "none"
    requires_approval: bool = True
    max_parallel: int = 2
    Parameters: ClassVar[type[BaseModel] | None] = PythonParameters

    async def execute(self) -> CodeResult:
        """Run the analysis code in a sandbox and return its validated result and figures.

        Raises:
            CapabilityError: The host lacks isolation, or the run reached a limit.
            ValidationError: The step has no code, or code and inputs are too large.
            CodeFailedError: The code failed.
        """
        settings = python_settings(self.config)
        code = self._resolve_code()
        inputs = collect_inputs(self.inputs)
        sandbox = sandbox_for(settings)
        report = await sandbox.report()
        if report.level is None or not (report.is_strong or settings.allow_weak_isolation):
            raise CapabilityError(
                "The code was not run because this host cannot isolate it sufficiently. "
                f"{report.summary()}",
                fix="Install bubblewrap, allow user namespaces on this host, or accept the risk "
                "with capabilities.python.allow_weak_isolation: true.",
            )
        if not report.is_strong:
            self.logger.warning("The settings allow weak isolation. %s", report.summary())
        self.progress(f"running {len(code.splitlines())} lines of code ({report.level})")
        try:
            outcome = await sandbox.run(code, inputs, self._resolve_step_limits(settings.limits))
        except InputTooLargeError as error:
            raise ValidationError(
                f"The code and its inputs are too large: {error}.",
                fix="Select less data, or raise capabilities.python.limits.input_bytes.",
                severity=ErrorSeverity.REPLANNING,
            ) from error
        _raise_for_outcome(outcome)
        folder = settings.output_folder / "figures"
        figures = [await asyncio.to_thread(_write_figure, folder, item) for item in outcome.figures]
        fields = outcome.model_dump(include=CodeResult.model_fields.keys() - {"figures"})
        return CodeResult(**fields, figures=figures, code=code, isolation=str(outcome.level))

    def _resolve_code(self) -> str:
        """Return the code to run, from the step's parameters or else from its ``CODE`` input."""
        if self.parameters.code:
            return str(self.parameters.code)
        code_context = self.inputs.get("CODE")
        if code_context is not None:
            return str(code_context.code)
        raise ValidationError(
            "The step 'python' has no code to run.",
            fix=(
                "Put the code into the step's parameters.code, or add a step 'write_python' (needs"
                " a chat model) before it and connect its CODE."
            ),
            severity=ErrorSeverity.REPLANNING,
        )

    def _resolve_step_limits(self, max_limits: SandboxLimits) -> SandboxLimits:
        """Return the sandbox limits of a step.

        Parameters of the step can lower the limits in the settings but cannot raise them.
        """
        tighter: dict[str, Any] = {}
        if self.parameters.timeout_seconds is not None:
            tighter["wall_seconds"] = min(self.parameters.timeout_seconds, max_limits.wall_seconds)
        if self.parameters.memory_mb is not None:
            tighter["memory_bytes"] = min(self.parameters.memory_mb * MIB, max_limits.memory_bytes)
        return max_limits.model_copy(update=tighter)

    @staticmethod
    def classify_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification | None:
        """Classify an error, and add the failing line and traceback of analysis code.

        The added details are for the planner.
        """
        classification = BaseCapability.classify_error(exc, context)
        if classification is not None and isinstance(exc, CodeFailedError):
            classification.metadata = {
                **(classification.metadata or {}),
                "line": exc.line,
                "traceback": exc.traceback,
            }
        return classification


def collect_inputs(contexts: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a step's inputs to plain data for the ``inputs`` variable of the analysis code.

    >>> collect_inputs({"CODE": Code(code="1"), "TIME_RANGE": None})
    {}
    """
    collected: dict[str, Any] = {}
    for context_type, value in contexts.items():
        if value is None or context_type == "CODE":
            continue
        several = isinstance(value, list)
        plain = [item.model_dump(mode="json") for item in (value if several else [value])]
        collected[context_type] = plain if several else plain[0]
    return collected


def _raise_for_outcome(outcome: SandboxOutcome) -> None:
    """Raise the appropriate error if a sandbox run failed."""
    if outcome.sandbox_error is not None:
        raise CapabilityError(
            f"The code was not run, because the sandbox failed: {outcome.sandbox_error}",
            fix="Check the host's isolation with capgraph.capabilities.python.isolation_report.",
        )
    if outcome.limit is not None:
        raise CapabilityError(
            f"The code was stopped after {outcome.seconds:.1f} s because it reached its limit of "
            f"{outcome.limit}.",
            fix="Reduce the code's work, or raise the limit in capabilities.python.limits.",
        )
    if outcome.error is None:
        return
    error = outcome.error
    location = f" in line {error.line}" if error.line else ""
    tail = "\n".join(error.traceback.strip().splitlines()[-_SHOWN_TRACEBACK:])
    raise CodeFailedError(
        f"The code failed{location}: {error.type}: {error.message}",
        fix="Correct the code and run it again.",
        severity=ErrorSeverity.REPLANNING,
        line=error.line,
        traceback=tail,
    )


def _write_figure(folder: Path, figure: Figure) -> CodeFigure:
    """Write a figure to a PNG file and return its description.

    The file name contains a hash of the content, so that different figures never overwrite each
    other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(figure.data).hexdigest()[:12]
    path = folder / f"{figure.name.removesuffix('.png')}-{digest}.png"
    path.write_bytes(figure.data)
    return CodeFigure(name=figure.name, path=str(path), width=figure.width, height=figure.height)


def _truncate(text: str, max_chars: int = _SHOWN_RESULT) -> str:
    """Shorten a text to a maximum length, with a note about the original length."""
    return text if len(text) <= max_chars else f"{text[:max_chars]} … ({len(text)} characters)"
