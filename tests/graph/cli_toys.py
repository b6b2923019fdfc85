"""Small capabilities that the command's tests run; the environment says how they behave."""

import asyncio
import os
from typing import ClassVar

from pydantic import BaseModel, Field

from capgraph import BaseCapability, CapabilityContext, capability_node
from capgraph.base import ApprovalPolicy, CapabilityError, ErrorSeverity, FatalExecutionError


class Sky(CapabilityContext):
    CONTEXT_TYPE: ClassVar[str] = "SKY"
    colour: str

    def get_summary(self) -> str:
        return f"The sky is {self.colour}."


class Picture(CapabilityContext):
    CONTEXT_TYPE: ClassVar[str] = "PICTURE"
    CONTEXT_CATEGORY: ClassVar[str] = "ARTIFACT"
    path: str

    def get_summary(self) -> str:
        return f"The sky was painted \x1b[31mred: {self.path}"


def note(line: str) -> None:
    """Leave word outside of the process, which outlives it."""
    with open(os.environ["TOY_LOG"], "a", encoding="utf-8") as log:
        log.write(line + "\n")


def open_(gate: str) -> bool:
    """Whether a step may go on: the test makes the file when it has seen what it waits for."""
    return os.path.exists(gate)


@capability_node(examples=["what colour is the sky?", "look at the sky"])
async def look() -> Sky:
    """Look at the colour of the sky."""
    await asyncio.to_thread(note, "look")
    return Sky(colour="blue")


@capability_node
class Paint(BaseCapability):
    name = "paint"
    description = "Paint a picture of the sky."
    requires = ["SKY"]
    provides = ["PICTURE"]
    requires_approval = (
        ApprovalPolicy(approvers=2, not_requester=True)
        if os.environ.get("TOY_APPROVAL") == "two"
        else bool(os.environ.get("TOY_APPROVAL"))
    )

    class Parameters(BaseModel):
        width: int = Field(default=10, ge=1)

    async def execute(self) -> Picture:
        await asyncio.to_thread(note, "paint began")
        self.progress("Mixing \x1b[31mcolours", 0.5)
        while (gate := os.environ.get("TOY_GATE")) and not await asyncio.to_thread(open_, gate):
            await asyncio.sleep(0.02)
        fail = os.environ.get("TOY_FAIL", "")
        if fail == "fatal":
            raise FatalExecutionError("The house burns.")
        if fail == "critical" or (fail == "once" and self.attempt == 1):
            severity = ErrorSeverity.CRITICAL if fail == "critical" else ErrorSeverity.RETRIABLE
            raise CapabilityError("The brush broke.", fix="Buy a brush.", severity=severity)
        await asyncio.to_thread(note, f"paint ended {self.parameters.width}")
        return Picture(path=f"/pictures/sky-{self.parameters.width}.png")
