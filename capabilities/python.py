"""Runs the agent's own analysis code in a sandbox, after a person has agreed to it.

The code finds its data as ``inputs`` and leaves its answer in ``result``; pictures go to
``figures/``. See ``docs/capabilities/python.md`` for the isolation and its limits.
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
"""Context types that code may be given."""
_SHOWN_RESULT, _SHOWN_OUTPUT, _SHOWN_TRACEBACK = 2_000, 1_000, 8


class Code(CapabilityContext):
    """Analysis code that has not been run.

    >>> print(Code(code="result = 6 * 7").get_summary())
    Python code of 1 line:
    <BLANKLINE>
        result = 6 * 7
    """

    CONTEXT_TYPE: ClassVar[str] = "CODE"

    code: str = Field(min_length=1)
    purpose: str = ""

    def get_summary(self) -> str:
        """Show the code whole: a person decides about it by this text."""
        lines = self.code.splitlines()
        shown = "\n".join(f"    {line}".rstrip() for line in lines)
        count = f"{len(lines)} line" + ("" if len(lines) == 1 else "s")
        return f"Python code of {count}:\n\n{shown}"


class CodeFigure(BaseModel):
    """A picture that the code drew, checked and written to the output folder."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    path: str
    width: int
    height: int


class CodeResult(CapabilityContext):
    """What came of the code.

    Attributes:
        result: The value the code left in ``result``.
        figures: Pictures it drew.
        rejected_figures: Files it left in ``figures/`` that were not taken, and why.
        stdout: What it printed, perhaps truncated.
        stderr: What it wrote to standard error, perhaps truncated.
        code: The code that ran.
        seconds: How long it ran.
        isolation: How it was walled off.

    >>> CodeResult(result={"mean": 4.5}, code="...", seconds=0.2, isolation="bubblewrap").get_summary()
    'The code gave {"mean": 4.5}.'
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
        """Give the result, what was printed and what the pictures are called."""
        parts = []
        if self.result is not None:
            parts.append(f"The code gave {_truncate(json.dumps(self.result, ensure_ascii=False))}.")
        if self.stdout.strip():
            parts.append(f"It printed: {_truncate(self.stdout.strip(), _SHOWN_OUTPUT)}")
        parts += [f"Figure: {figure.name}" for figure in self.figures]
        parts += [f"Not taken: {name} ({why})." for name, why in self.rejected_figures.items()]
        return "\n".join(parts) or "The code ran and gave no result."

    def get_files(self) -> list[str]:
        """Return the paths of the pictures."""
        return [figure.path for figure in self.figures]

    def get_tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the result where it is a list of records."""
        rows = self.result if isinstance(self.result, list) else []
        whole = rows and all(isinstance(row, dict) for row in rows)
        return {"result": cast("list[dict[str, Any]]", rows)} if whole else {}


class PythonSettings(SandboxSettings):
    """The settings section of this capability: those of the sandbox and where figures go.

    >>> PythonSettings().allow_weak_isolation
    False
    """

    output_folder: Path = Field(
        Path("capgraph-output"), description="Figures are written below this folder."
    )


class PythonParameters(BaseModel):
    """What a planned step may say. A step can tighten the limits of the settings, never widen them.

    >>> PythonParameters(code="result = 1", timeout_seconds=5).timeout_seconds
    5.0
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    code: str | None = Field(None, min_length=1, description="Python code that sets `result`.")
    timeout_seconds: float | None = Field(None, gt=0, le=3600)
    memory_mb: int | None = Field(None, ge=128)


class CodeFailedError(CapabilityError):
    """The code itself raised an exception, crashed or left a result that cannot be kept.

    Attributes:
        line: Line of the code, when known.
        traceback: Last lines of the traceback, of the code only.
    """

    line: int | None = None
    traceback: str = ""


def python_settings(config: Mapping[str, Any]) -> PythonSettings:
    """Read the settings section of the capability.

    Raises:
        ConfigurationError: Names each setting that cannot be used.

    >>> python_settings({"limits": {"wall_seconds": 5}}).limits.wall_seconds
    5.0
    """
    try:
        return PythonSettings(**config)
    except PydanticValidationError as error:
        problems = "; ".join(validation_messages(error))
        raise ConfigurationError(
            f"The settings of the capability 'python' cannot be used: {problems}.",
            fix="Correct the section capabilities.python of the configuration.",
        ) from error


async def isolation_report(config: Mapping[str, Any] | None = None) -> IsolationReport:
    """Try out what isolation this host gives; ask at start, to tell what is missing.

    Args:
        config: Settings section of the capability; defaults when not given.
    """
    return await sandbox_for(python_settings(config or {})).report()


@capability_node
class RunPython(GuidedCapability):
    """Runs analysis code given by the user or written by the model, when a person agrees."""

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
        """Run the code and hand back checked data and figures."""
        settings = python_settings(self.config)
        code = self._resolve_code()
        inputs = collect_inputs(self.inputs)
        sandbox = sandbox_for(settings)
        report = await sandbox.report()
        if report.level is None or not (report.is_strong or settings.allow_weak_isolation):
            raise CapabilityError(
                f"The code was not run, because this host does not isolate it. {report.summary()}",
                fix="Install bubblewrap or allow user namespaces on this host, or accept the risk "
                "with capabilities.python.allow_weak_isolation: true.",
            )
        if not report.is_strong:
            self.logger.warning("Weak isolation is allowed. %s", report.summary())
        self.progress(f"running {len(code.splitlines())} lines of code ({report.level})")
        try:
            outcome = await sandbox.run(code, inputs, self._step_limits(settings.limits))
        except InputTooLargeError as error:
            raise ValidationError(
                f"The code and its inputs are too large: {error} bytes.",
                fix="Select less data, or raise capabilities.python.limits.input_bytes.",
                severity=ErrorSeverity.REPLANNING,
            ) from error
        _raise_for_outcome(outcome)
        folder = settings.output_folder / "figures"
        figures = [await asyncio.to_thread(_write_figure, folder, item) for item in outcome.figures]
        told = outcome.model_dump(include=CodeResult.model_fields.keys() - {"figures"})
        return CodeResult(**told, figures=figures, code=code, isolation=str(outcome.level))

    def _resolve_code(self) -> str:
        """Take the code from the parameters, else from a CODE context."""
        if self.parameters.code:
            return str(self.parameters.code)
        given = self.inputs.get("CODE")
        if given is not None:
            return str(given.code)
        raise ValidationError(
            "The step 'python' was given no code.",
            fix="Put the code into the step's parameters.code, or plan a step 'write_python' "
            "before it (needs a chat model) and connect its CODE.",
            severity=ErrorSeverity.REPLANNING,
        )

    def _step_limits(self, max_limits: SandboxLimits) -> SandboxLimits:
        """Tighten the limits of the settings by what the step asks for."""
        tighter: dict[str, Any] = {}
        if self.parameters.timeout_seconds is not None:
            tighter["wall_seconds"] = min(self.parameters.timeout_seconds, max_limits.wall_seconds)
        if self.parameters.memory_mb is not None:
            tighter["memory_bytes"] = min(self.parameters.memory_mb * MIB, max_limits.memory_bytes)
        return max_limits.model_copy(update=tighter)

    @staticmethod
    def classify_error(exc: Exception, context: dict[str, Any]) -> ErrorClassification | None:
        """Add the place in the code to what the planner learns of a failure."""
        found = BaseCapability.classify_error(exc, context)
        if found is not None and isinstance(exc, CodeFailedError):
            found.metadata = {
                **(found.metadata or {}),
                "line": exc.line,
                "traceback": exc.traceback,
            }
        return found


def collect_inputs(contexts: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the step's contexts into the plain data that code finds as ``inputs``.

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
    """Raise what the outcome means for the run."""
    if outcome.sandbox_error is not None:
        raise CapabilityError(
            f"The code was not run, because the sandbox failed: {outcome.sandbox_error}",
            fix="See what isolation this host gives with capgraph.capabilities.python.isolation_report.",
        )
    if outcome.limit is not None:
        raise CapabilityError(
            f"The code was ended after {outcome.seconds:.1f} s: it reached its limit of "
            f"{outcome.limit}.",
            fix="Let the code do less, or raise the limit in capabilities.python.limits.",
        )
    if outcome.error is None:
        return
    error = outcome.error
    place = f" in line {error.line}" if error.line else ""
    tail = "\n".join(error.traceback.strip().splitlines()[-_SHOWN_TRACEBACK:])
    raise CodeFailedError(
        f"The code failed{place}: {error.type}: {error.message}",
        fix="Correct the code and run it again.",
        severity=ErrorSeverity.REPLANNING,
        line=error.line,
        traceback=tail,
    )


def _write_figure(folder: Path, figure: Figure) -> CodeFigure:
    """Write a figure under a name that holds its content's hash: nothing is overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(figure.data).hexdigest()[:12]
    path = folder / f"{figure.name.removesuffix('.png')}-{digest}.png"
    path.write_bytes(figure.data)
    return CodeFigure(name=figure.name, path=str(path), width=figure.width, height=figure.height)


def _truncate(text: str, max_chars: int = _SHOWN_RESULT) -> str:
    """Cut long text, saying so."""
    return text if len(text) <= max_chars else f"{text[:max_chars]} … ({len(text)} characters)"
