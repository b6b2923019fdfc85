"""How much one run may use, and what the sandbox reports about it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

IsolationLevel = Literal["bubblewrap", "namespaces", "landlock", "limits"]
ISOLATION_LEVELS: tuple[IsolationLevel, ...] = ("bubblewrap", "namespaces", "landlock", "limits")
MIB = 1 << 20


class SandboxLimits(BaseModel):
    """What one run of code may use. Reaching a limit ends the run and names the limit.

    Example:
        >>> SandboxLimits(wall_seconds=5).memory_bytes // 2**20
        2048
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    wall_seconds: float = Field(60.0, gt=0, le=3600, description="Time on the clock.")
    cpu_seconds: int = Field(60, ge=1, le=3600, description="Processor time over all threads.")
    memory_bytes: int = Field(2048 * MIB, ge=128 * MIB, description="Address space.")
    threads: int = Field(64, ge=1, le=1024, description="Threads; processes are never allowed.")
    folder_bytes: int = Field(64 * MIB, ge=MIB, description="Everything in the own folder.")
    input_bytes: int = Field(16 * MIB, ge=1024, description="Code and inputs, as JSON.")
    output_bytes: int = Field(64 * 1024, ge=1024, description="Kept of stdout and of stderr each.")
    result_bytes: int = Field(MIB, ge=64, description="`result`, as JSON.")
    result_depth: int = Field(32, ge=1, le=100, description="Nesting of `result`.")
    figures: int = Field(10, ge=0, le=100, description="Number of figures kept.")
    figure_bytes: int = Field(10 * MIB, ge=1024, description="All figures together.")

    @property
    def max_outcome_bytes(self) -> int:
        """The most the run may send back: result, figures in base64, and the error text."""
        return 2 * self.result_bytes + 2 * self.figure_bytes + 256 * 1024

    @property
    def max_output_file_bytes(self) -> int:
        """Output past which the run is ended instead of read on and thrown away."""
        return 64 * self.output_bytes


class Figure(BaseModel):
    """A checked PNG image, still in memory."""

    name: str
    width: int
    height: int
    data: bytes


class CodeError(BaseModel):
    """An exception that the user's code raised."""

    type: str
    message: str
    line: int | None = None
    traceback: str = ""


class SandboxOutcome(BaseModel):
    """What came of one run: exactly one of a result, an error, a limit or a broken sandbox."""

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
        """True when the code ran to its end and its result could be taken."""
        return self.error is None and self.limit is None and self.sandbox_error is None
