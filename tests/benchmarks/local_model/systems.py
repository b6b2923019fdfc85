"""The agents that are compared.

Each has the same functions, the same model client options, and the same limits of time. An approval
that a system requests is granted. A system is imported only when it runs, so that a missing package
leaves out one row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from tests.benchmarks.local_model.cases import Domain

MODEL = "local"
TEMPERATURE = 0.0
MAX_TOKENS = 400
CALL_TIMEOUT_SECONDS = 600.0
MAX_ROUNDS = 8
"""Model calls for one request, for systems that ask the model after each tool call."""
INSTRUCTIONS = (
    "You are a helpful assistant. Use the tools where they help; otherwise answer by yourself."
)


@dataclass(frozen=True)
class Reply:
    """Result of one request.

    Attributes:
        answer: Last message.
        problem: Kind of a failure that the system reports itself; empty if it reports none. The
            request is then not done, whatever the answer is.
    """

    answer: str
    problem: str = ""


Messages = Sequence[tuple[str, str]]
"""A conversation: pairs of ``user`` or ``assistant`` and a text; the last one is the request."""

Ask = Callable[[Messages], Awaitable[Reply]]


@dataclass(frozen=True)
class System:
    """One agent framework, in one arrangement.

    Attributes:
        name: Name on the command line.
        title: Name in the table.
        package: Distribution, for the version.
        module: Module of this package, which has ``prepare``.
        variant: Name of the arrangement, passed to ``prepare``.
    """

    name: str
    title: str
    package: str
    module: str
    variant: str = ""

    def version(self) -> str | None:
        """Return the version, or None if the package is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None

    def prepare(self, domain: Domain, url: str) -> Ask:
        """Build the agent for a domain and a model endpoint."""
        module = import_module(f"{__package__}.{self.module}")
        ask: Ask = module.prepare(domain, url, self.variant)
        return ask


SYSTEMS = (
    System("capgraph", "capgraph", "capgraph", "with_capgraph"),
    System("create_agent", "LangChain `create_agent`", "langchain", "with_create_agent"),
    System("pydantic_ai", "pydantic-ai, tool calls", "pydantic-ai-slim", "with_pydantic_ai"),
    System(
        "pydantic_ai_prompted",
        "pydantic-ai, prompted output",
        "pydantic-ai-slim",
        "with_pydantic_ai",
        "prompted",
    ),
    System(
        "pydantic_ai_native",
        "pydantic-ai, native output",
        "pydantic-ai-slim",
        "with_pydantic_ai",
        "native",
    ),
)
