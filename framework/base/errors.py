"""The one exception tree, and what the router does about a failure.

    CapgraphError
    ├── ValidationError        data that a capability received is missing or wrong
    ├── CapabilityError        a capability could not do its work
    │   └── AskAgain           it could, with other parameters; the planner is asked for them
    ├── InfrastructureError    a node of the framework itself could not do its work
    ├── RegistryError          what was registered does not fit together
    ├── ConfigurationError     settings that cannot be used
    ├── PlanError              a plan that cannot be run or built
    ├── ModelError             a chat model that failed or answered nonsense
    ├── PersistenceError       a saver or store that cannot be used
    │   └── ThreadBusyError    another run has the thread
    ├── LimitError             a bound of the settings was reached
    ├── StoppedError           somebody stopped the run
    ├── PolicyError            a policy refuses a plan or a step
    ├── MissingExtraError      an optional dependency that is not installed
    └── FatalExecutionError    a FATAL failure: the run was stopped at once

Every message holds the value, the cause and the fix; every class has a stable
``code`` that names its page in the documentation.
"""

from __future__ import annotations

import importlib
from enum import Enum
from typing import TYPE_CHECKING

from capgraph.configs.errors import CapgraphError as CapgraphError
from capgraph.configs.errors import ConfigurationError as ConfigurationError
from capgraph.configs.errors import ValidationError as ValidationError

if TYPE_CHECKING:
    from types import ModuleType


class ErrorSeverity(Enum):
    """What the router does about a failure.

    >>> ErrorSeverity("retriable") is ErrorSeverity.RETRIABLE
    True
    """

    CRITICAL = "critical"
    """End the turn with a message that says what failed and what was done."""
    RETRIABLE = "retriable"
    """Run the same step again, after a delay."""
    REPLANNING = "replanning"
    """Make a new plan, keeping what is done."""
    RECLASSIFICATION = "reclassification"
    """Choose the capabilities again."""
    FATAL = "fatal"
    """Raise at once; nothing else runs."""


class CapabilityError(CapgraphError):
    """A capability could not do its work."""

    code = "CG-CAPABILITY"


class AskAgain(CapabilityError):
    """A capability was given parameters that it cannot use, and says which ones it could.

    Raised in a capability, it goes back to the planner, whose next plan is told the text.

    >>> str(AskAgain("There is no channel 'T7'.", fix="Ask for one of T1 to T6."))
    "There is no channel 'T7'. Fix: Ask for one of T1 to T6."
    """

    code = "CG-ASK-AGAIN"
    severity: ErrorSeverity = ErrorSeverity.REPLANNING


class InfrastructureError(CapgraphError):
    """A node of the framework itself could not do its work."""

    code = "CG-INFRASTRUCTURE"


class RegistryError(CapgraphError):
    """What was registered does not fit together."""

    code = "CG-REGISTRY"


class PlanError(CapgraphError):
    """A plan that cannot be run or built."""

    code = "CG-PLAN"


class ModelError(CapgraphError):
    """A chat model that failed or answered nonsense."""

    code = "CG-MODEL"


class MalformedAnswerError(ModelError):
    """An answer of a model that cannot be read; asking again may help.

    Attributes:
        text: What the model wrote.
    """

    severity: ErrorSeverity = ErrorSeverity.RETRIABLE
    text: str = ""


class PersistenceError(CapgraphError):
    """A saver or store that cannot be used.

    Attributes:
        stops_run: Whether it is the run's own records that cannot be kept; then the run stops,
            for nothing that it does could be reported.
        unreadable: Whether what was saved makes no sense here: trying again changes nothing.
        away: Whether it could not be reached: the same may be had when it is there again.
    """

    code = "CG-PERSISTENCE"
    stops_run: bool = False
    is_unreadable: bool = False
    is_unavailable: bool = False


class ThreadBusyError(PersistenceError):
    """Another run has the thread; nothing was changed."""

    code = "CG-BUSY"


class LimitError(CapgraphError):
    """A bound of the settings was reached."""

    code = "CG-LIMIT"


class StoppedError(CapgraphError):
    """Somebody stopped the run; nothing else of it begins."""

    code = "CG-STOPPED"


class PolicyError(CapgraphError):
    """A policy of the operator's refuses a plan or a step."""

    code = "CG-POLICY"


class MissingExtraError(CapgraphError, ImportError):
    """An optional dependency that is not installed."""

    code = "CG-EXTRA"


class FatalExecutionError(CapgraphError, RuntimeError):
    """A failure of severity FATAL: the run was stopped at once."""

    code = "CG-FATAL"
    severity: ErrorSeverity = ErrorSeverity.FATAL


def require_extra(module: str, extra: str) -> ModuleType:
    """Import a module that an extra installs.

    Args:
        module: Dotted name of the module to import.
        extra: The extra of the ``capgraph`` distribution that brings it.

    Raises:
        MissingExtraError: The module is not installed; names the install command.

    >>> require_extra("json", "offline").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise MissingExtraError(
            f"The module {module!r} is needed here and could not be imported ({exc}).",
            fix=f"pip install 'capgraph[{extra}]'",
        ) from exc
