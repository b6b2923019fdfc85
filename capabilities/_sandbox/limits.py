"""Limits of a run and its outcome."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

IsolationLevel = Literal["bubblewrap", "namespaces", "landlock", "limits"]
ISOLATION_LEVELS: tuple[IsolationLevel, ...] = ("bubblewrap", "namespaces", "landlock", "limits")
MIB = 1 << 20


class SandboxLimits(BaseModel):
    """Limits of one run. A run that reaches a limit is stopped, and the outcome names the limit.

    Example:
        >>> SandboxLimits(wall_seconds=5).memory_bytes // 2**20
        2048
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    wall_seconds: float = Field(60.0, gt=0, le=3600, description="Wall time.")
    cpu_seconds: int = Field(60, ge=1, le=3600, description="CPU time of all threads.")
    memory_bytes: int = Field(2048 * MIB, ge=128 * MIB, description="Address space.")
    threads: int = Field(64, ge=1, le=1024, description="Threads; processes are never allowed.")
    folder_bytes: int = Field(64 * MIB, ge=MIB, description="All files in the working folder.")
    input_bytes: int = Field(16 * MIB, ge=1024, description="Code and inputs, as JSON.")
    output_bytes: int = Field(
        64 * 1024, ge=1024, description="Captured bytes of stdout and of stderr."
    )
    result_bytes: int = Field(MIB, ge=64, description="`result`, as JSON.")
    result_depth: int = Field(32, ge=1, le=100, description="Maximum nesting of `result`.")
    figures: int = Field(10, ge=0, le=100, description="Number of figures.")
    figure_bytes: int = Field(10 * MIB, ge=1024, description="Total size of the figures.")

    @property
    def max_outcome_bytes(self) -> int:
        """Maximum size in bytes of all messages: the result, figures in base64, and error text."""
        return 2 * self.result_bytes + 2 * self.figure_bytes + 256 * 1024

    @property
    def max_output_file_bytes(self) -> int:
        """Size in bytes at which an output file stops the run."""
        return 64 * self.output_bytes


class Figure(BaseModel):
    """Validated PNG image in memory."""

    name: str
    width: int
    height: int
    data: bytes


class CodeError(BaseModel):
    """Exception that the user's code raised."""

    type: str
    message: str
    line: int | None = None
    traceback: str = ""


class SandboxOutcome(BaseModel):
    """Outcome of one run. It has a result, an error, an exceeded limit, or a sandbox error."""

    result: Any = None
    figures: list[Figure] = []
    rejected_figures: dict[str, str] = {}
    stdout: str = ""
    stderr: str = ""
    error: CodeError | None = None
    limit: str | None = None
    sandbox_error: str | None = None
    seconds: float = 0.0
    level: IsolationLevel | None = None
    layers: dict[str, Any] = {}

    @property
    def succeeded(self) -> bool:
        """True if the code finished and its result passed validation."""
        return self.error is None and self.limit is None and self.sandbox_error is None
