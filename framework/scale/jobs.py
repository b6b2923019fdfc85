"""Jobs that an engine carries. They only contain IDs; the data is in the threads' database."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnJob:
    """Job that starts or resumes a thread's run.

    The request of the run and its caller are in the run log
    (:class:`capgraph.stores.run_log.LoggedRun`). A job that is duplicated, late, or for a run that
    has ended has no effect.

    Attributes:
        thread: Storage ID of the thread.
        run: ID of the run in the log.
    """

    thread: str
    run: str


@dataclass(frozen=True, slots=True)
class StepJob:
    """Job that runs one step of a turn on a worker of its queue.

    Attributes:
        id: ID of the step's attempt, under which its result is stored.
        queue: Queue whose workers may run it.
        ref: Digest under which its request is stored.
        token: Owner of the thread's lease when the job was submitted. If the lease has changed
            hands, the step starts no effect.
    """

    id: str
    queue: str
    ref: str
    token: str
