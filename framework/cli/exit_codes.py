"""Exit codes of the command."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes shared by all capgraph commands.

    >>> int(ExitCode.of_status("partial"))
    3
    """

    ANSWERED = 0
    FAILED = 1
    USAGE = 2
    PARTIAL = 3
    WAITING = 4
    STOPPED = 5
    INTERRUPTED = 130
    DRAINED = 143

    @classmethod
    def of_status(cls, status: str) -> ExitCode:
        """Return the exit code for the status of a turn; an unknown status maps to ``FAILED``."""
        named = {"completed": cls.ANSWERED, "cancelled": cls.INTERRUPTED}
        return named[status] if status in named else cls.__members__.get(status.upper(), cls.FAILED)


EXIT_CODES_HELP = (
    "Exit codes: 0 answered, 1 failed, 2 usage or configuration, 3 partial answer,"
    " 4 waiting for a person or an event, 5 stopped by a limit, 130 interrupted (Ctrl-C),"
    " 143 drained (SIGTERM)."
)
