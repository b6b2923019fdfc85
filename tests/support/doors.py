"""What the acceptance tests of the pipeline share: watching middlewares and readers of results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from langgraph.types import Command
from pydantic import BaseModel

from capgraph import CapabilityContext
from capgraph.base import CapgraphError
from tests.support import PATIENCE

STAGES = (
    "observe",
    "validate",
    "authorize",
    "retry",
    "finalize",
    "acquire",
    "idempotency",
    "timeout",
    "call",
)
"""The stages around an attempt, from the outside in."""


class Gauge(CapabilityContext):
    """A reading that shows where it came from."""

    value: int
    origin: str = ""

    def get_summary(self) -> str:
        return f"The gauge shows {self.value}."


class Amount(BaseModel):
    """Parameters of a payment; the currency has a default."""

    amount: int = 1
    currency: str = "EUR"


@dataclass(frozen=True, slots=True)
class Seen:
    """One passage through a middleware."""

    stage: str
    label: str
    capability: str
    key: str | None
    number: int
    result: Any = field(compare=False, default=None)
    error: BaseException | None = field(compare=False, default=None)


@dataclass
class Watch:
    """A middleware that notes who passes, on the way in and on the way out."""

    stage: str
    going_in: list[Seen]
    going_out: list[Seen]
    label: str = ""
    give_attempt: bool = False

    async def wrap_step(self, attempt: Any, call_next: Callable[..., Any]) -> Any:
        def seen(**more: Any) -> Seen:
            # Infrastructure nodes and model calls pass too; what they are about is asked loosely.
            name, key = getattr(attempt, "capability", ""), getattr(attempt, "key", None)
            number = getattr(attempt, "number", 1)
            return Seen(self.stage, self.label, str(name), key, number, **more)

        self.going_in.append(seen())
        try:
            result = await (call_next(attempt) if self.give_attempt else call_next())
        except BaseException as exc:
            self.going_out.append(seen(error=exc))
            raise
        self.going_out.append(seen(result=result))
        return result

    wrap_model_call = wrap_step


@dataclass
class Watches:
    """Watching middlewares that write into one log."""

    going_in: list[Seen] = field(default_factory=list)
    going_out: list[Seen] = field(default_factory=list)

    def at(self, stage: str, label: str = "", *, give_attempt: bool = False) -> Watch:
        return Watch(stage, self.going_in, self.going_out, label, give_attempt)

    def everywhere(self, label: str = "") -> list[Watch]:
        return [self.at(stage, label) for stage in STAGES]

    def order(self, capability: str) -> list[str]:
        """Return the stages that attempts at a capability entered, in order."""
        return [s.stage for s in self.going_in if s.capability == capability]

    def left(self, stage: str, capability: str) -> list[Seen]:
        """Return how attempts at a capability left a stage."""
        return [s for s in self.going_out if (s.stage, s.capability) == (stage, capability)]


@dataclass
class Instead:
    """A middleware made of a function of the attempt and what is inside."""

    stage: str
    act: Callable[[Any, Callable[..., Any]], Any]

    async def wrap_step(self, attempt: Any, call_next: Callable[..., Any]) -> Any:
        return await self.act(attempt, call_next)

    wrap_model_call = wrap_step


def status(out: Mapping[str, Any]) -> str:
    """Return how a turn ended."""
    found: str = (out.get("execution_outcome") or {}).get("status", "none")
    return found


def last_words(out: Mapping[str, Any]) -> str:
    """Return the message that ended a turn and the operator's reason, in lower case."""
    return message_and_reason(out).lower()


def message_and_reason(out: Mapping[str, Any]) -> str:
    """Return the message that ended a turn and the operator's reason."""
    reason = (out.get("execution_outcome") or {}).get("reason")
    message = str(out["messages"][-1].content)
    return f"{message}\n{reason}" if reason else message


def question(out: Mapping[str, Any]) -> dict[str, Any]:
    """Return the one open question."""
    assert out.get("__interrupt__"), f"nothing was asked; it said: {last_words(out)}"
    found: dict[str, Any] = out["__interrupt__"][0].value
    return found


def shown(out: Mapping[str, Any]) -> str:
    """Return all that a person is shown, as text."""
    return json.dumps(question(out), ensure_ascii=False, default=str)


async def tried(run: Awaitable[Any]) -> tuple[Any, str]:
    """Return what a run gave and all that it said, or nothing and how it was refused."""
    try:
        out = await run
    except CapgraphError as exc:
        return None, str(exc)
    return out, str(out)


async def answer(agent: Any, given: Any, thread: str = "1") -> dict[str, Any]:
    """Answer the open question of a thread."""
    out: dict[str, Any] = await agent.graph.ainvoke(Command(resume=given), agent.config(thread))
    return out


async def soon(awaitable: Any) -> Any:
    """Await, and fail instead of hanging for ever; the bound is far beyond any busy machine."""
    return await asyncio.wait_for(awaitable, PATIENCE)


async def let_others_run(rounds: int = 300) -> None:
    """Give everything that can move the chance to."""
    for _ in range(rounds):
        await asyncio.sleep(0)
