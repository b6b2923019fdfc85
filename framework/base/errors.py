"""Exception classes of the project and the severities that decide how a turn handles a failure.

    CapgraphError
    ├── ValidationError        missing or invalid data
    ├── CapabilityError        a capability failed
    │   └── AskAgain           a capability rejects its parameters; the planner supplies others
    ├── InfrastructureError    an infrastructure node failed
    ├── RegistryError          registrations contradict each other
    ├── ConfigurationError     invalid settings
    ├── PlanError              an invalid plan
    ├── ModelError             a chat model failed or returned an invalid reply
    ├── PersistenceError       a saver, store or database failed
    │   └── ThreadBusyError    another run holds the thread
    ├── LimitError             a configured limit was reached
    ├── StoppedError           the run was stopped on request
    ├── PolicyError            a policy denied a plan or a step
    ├── MissingExtraError      an optional dependency is not installed
    └── FatalExecutionError    a FATAL failure ended the run

Each message states the value, the cause, and the fix. Each class has a stable ``code`` that names
its page in the documentation.
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
    """Severity of a failure, which determines how the turn continues.

    >>> ErrorSeverity("retriable") is ErrorSeverity.RETRIABLE
    True
    """

    CRITICAL = "critical"
    """End the turn with a message that states what failed and which steps finished."""
    RETRIABLE = "retriable"
    """Run the same step again after a delay."""
    REPLANNING = "replanning"
    """Make a new plan and keep the finished steps."""
    RECLASSIFICATION = "reclassification"
    """Select the capabilities again."""
    FATAL = "fatal"
    """Raise at once and run nothing else."""


class CapabilityError(CapgraphError):
    """A capability failed."""

    code = "CG-CAPABILITY"


class AskAgain(CapabilityError):
    """Raised by a capability that rejects its parameters.

    The planner reads the message and creates a new plan with different parameters.

    >>> str(AskAgain("There is no channel 'T7'.", fix="Ask for one of T1 to T6."))
    "There is no channel 'T7'. Fix: Ask for one of T1 to T6."
    """

    code = "CG-ASK-AGAIN"
    severity: ErrorSeverity = ErrorSeverity.REPLANNING


class InfrastructureError(CapgraphError):
    """An infrastructure node failed."""

    code = "CG-INFRASTRUCTURE"


class RegistryError(CapgraphError):
    """Two registrations contradict each other."""

    code = "CG-REGISTRY"


class PlanError(CapgraphError):
    """Raised if a plan is invalid and cannot be built or executed."""

    code = "CG-PLAN"


class ModelError(CapgraphError):
    """Raised if a call to a chat model fails or returns an invalid reply."""

    code = "CG-MODEL"


class MalformedAnswerError(ModelError):
    """Raised if a reply from a chat model cannot be parsed. A retry may succeed.

    Attributes:
        text: Text of the malformed reply.
    """

    severity: ErrorSeverity = ErrorSeverity.RETRIABLE
    text: str = ""


class PersistenceError(CapgraphError):
    """Raised if a checkpointer, store, or database fails.

    Attributes:
        stops_run: True if the run must stop because it cannot store a record of its actions.
        is_unreadable: True if this version cannot read the stored data, so a retry does not
            help.
        is_unavailable: True if the database could not be reached. A retry may succeed later.
    """

    code = "CG-PERSISTENCE"
    stops_run: bool = False
    is_unreadable: bool = False
    is_unavailable: bool = False


class ThreadBusyError(PersistenceError):
    """Raised if the thread is locked because a different run holds its lease.

    Nothing is changed in this case.
    """

    code = "CG-BUSY"


class LimitError(CapgraphError):
    """A configured limit was reached."""

    code = "CG-LIMIT"


class StoppedError(CapgraphError):
    """The run was stopped on request."""

    code = "CG-STOPPED"


class PolicyError(CapgraphError):
    """Raised if a policy denies the execution of a plan or a step."""

    code = "CG-POLICY"


class MissingExtraError(CapgraphError, ImportError):
    """An optional dependency is not installed."""

    code = "CG-EXTRA"


class FatalExecutionError(CapgraphError, RuntimeError):
    """Raised if a failure with the severity FATAL ends the run."""

    code = "CG-FATAL"
    severity: ErrorSeverity = ErrorSeverity.FATAL


def require_extra(module: str, extra: str) -> ModuleType:
    """Import a module that belongs to an optional dependency.

    Args:
        module: Dotted name of the module.
        extra: Extra of the ``capgraph`` package that installs the module.

    Raises:
        MissingExtraError: The module cannot be imported.

    >>> require_extra("json", "offline").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise MissingExtraError(
            f"The module {module!r} is required but cannot be imported: {exc}.",
            fix=f"pip install 'capgraph[{extra}]'",
        ) from exc
