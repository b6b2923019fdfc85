"""The same dependent tool steps, as a developer of each framework would write them.

The work: the user asks to call the tool ``advance`` a number of times, each time with what it gave
last; a scripted model decides, with no network and no thinking time; the answer is the last value.
Everything from the user's message to the answer is timed.

One asymmetry is real and not hidden: an agent loop asks its model before every tool call, with the
whole conversation; capgraph and LangGraph by hand ask it once for a plan. So beside the time stand
the number of model calls and the characters that went to the model and came back, in fours, which
is what a real model would cost on top.

Each module here has ``prepare(work, folder)``, an async context manager that gives a function to
run the whole request once. ``folder`` is where to keep checkpoints, or ``None`` for none.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOOL = "advance"
DESCRIPTION = "Return the number that follows a number."
VERBS = (
    "find", "list", "summarise", "compare", "archive", "check", "rank", "export", "count", "plot",
)  # fmt: skip
THINGS = (
    "overdue invoices", "open orders", "late deliveries", "energy readings", "sick notes",
    "travel expenses", "support tickets", "server alarms", "sales figures", "stock levels",
)  # fmt: skip
PLACES = (
    "paris", "lyon", "berlin", "madrid", "rome", "oslo", "vienna", "porto", "ghent", "zurich",
)  # fmt: skip


async def look(limit: int = 10) -> int:
    """Do what each of the further tools does."""
    return limit


MOMENTS: list[float] = []
"""When the tool was called, in seconds of the process; emptied by who takes the time to it."""


def follow(number: int) -> int:
    """Do what the tool does, and note when."""
    MOMENTS.append(time.process_time())
    return number + 1


@dataclass
class Tally:
    """What the model was asked and what it said.

    Attributes:
        calls: Model calls.
        prompt_chars: Characters of all prompts, tool and answer schemas included.
        answer_chars: Characters that the model wrote.
    """

    calls: int = 0
    prompt_chars: int = 0
    answer_chars: int = 0

    def note(self, prompt: list[str], answer: str) -> None:
        """Count one call."""
        self.calls += 1
        self.prompt_chars += sum(map(len, prompt))
        self.answer_chars += len(answer)


@dataclass
class Work:
    """What to do.

    Attributes:
        steps: Tool calls, each with the result of the one before; 0 for small talk.
        tally: Counts the model's calls; ``None`` while the time is taken, for counting takes time.
        others: How many further tools there are, which the work does not need.
    """

    steps: int
    tally: Tally | None = None
    others: int = 0
    request: str = field(init=False)

    def __post_init__(self) -> None:
        self.request = (
            f"Begin with 0 and call {TOOL} {self.steps} times, each time with its last result."
            if self.steps
            else "hello"
        )

    def other_tools(self) -> list[tuple[str, str]]:
        """Return names and descriptions of the further tools."""
        found = itertools.islice(itertools.product(THINGS, PLACES, VERBS), self.others)
        return [
            (
                f"{verb}_{thing.replace(' ', '_')}_{place}",
                f"{verb.capitalize()} the {thing} of the {place.capitalize()} office.",
            )
            for thing, place, verb in found
        ]

    def decide(self, last: int | None) -> int | None:
        """Return the next argument of the tool, or ``None`` when the work is done.

        Args:
            last: The tool's last result; ``None`` before the first.
        """
        value = last or 0
        return value if value < self.steps else None


Run = Callable[[], Awaitable[int]]


@dataclass(frozen=True)
class Peer:
    """One framework.

    Attributes:
        name: Name in the table.
        module: Its module in this package.
        package: Its distribution.
        keeps: What it keeps after every step when asked to, in words; empty when the package
            itself offers nothing of the kind.
        bare: Whether it is worth measuring without keeping anything.
    """

    name: str
    module: str
    package: str
    keeps: str = ""
    bare: bool = True

    def version(self) -> str | None:
        """Return the version of its distribution; ``None`` when it is not installed."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return "(checkout)" if self.package == "capgraph" else None

    def prepare(self, work: Work, folder: Path | None) -> AbstractAsyncContextManager[Run]:
        """Set the program up; what it gives runs the request once."""
        quiet()
        module: Any = importlib.import_module(f"{__name__}.{self.module}")
        found: AbstractAsyncContextManager[Run] = module.prepare(work, folder)
        return found


PEERS = (
    Peer("capgraph", "capgraph", "capgraph", "SQLite: steps, written asynchronously"),
    Peer(
        "capgraph, effect once",
        "capgraph_effects",
        "capgraph",
        "SQLite: steps, written before and after",
        bare=False,
    ),
    Peer("handwritten LangGraph", "by_hand", "langgraph", "SQLite: supersteps"),
    Peer("LangChain create_agent", "create_agent", "langchain", "SQLite: supersteps"),
    Peer("pydantic-ai", "pydantic_ai", "pydantic-ai-slim"),
    Peer("openai-agents", "openai_agents", "openai-agents", "SQLite: conversation"),
    Peer(
        "LlamaIndex workflows",
        "llama_workflows",
        "llama-index-workflows",
        "SQLite: snapshot per step",
    ),
    Peer(
        "Microsoft agent",
        "microsoft_agent",
        "agent-framework-core",
        "JSONL: conversation",
    ),
    Peer(
        "Microsoft workflow",
        "microsoft_workflow",
        "agent-framework-core",
        "JSON files: supersteps",
    ),
)


def quiet() -> None:
    """Switch off everything that would call home; each by its documented variable."""
    for name, value in {
        "LANGSMITH_TRACING": "false",
        "LANGCHAIN_TRACING_V2": "false",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "ENABLE_INSTRUMENTATION": "false",
        "AGENT_FRAMEWORK_USER_AGENT_DISABLED": "true",
    }.items():
        os.environ[name] = value


def counted(value: Any) -> str:
    """Write a value as JSON, the form in which it would go to a model."""
    import json

    return value if isinstance(value, str) else json.dumps(value, default=str)
