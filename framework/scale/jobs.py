"""Jobs that an engine carries. They only contain IDs; the data is in the threads' database."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnJob:
    """Job that starts or resumes a run of a thread.

    The run's request and caller are stored in the run log
    (:class:`capgraph.stores.run_log.LoggedRun`). A job has no effect if it is late, a
    duplicate, or for a run that has ended.

    Attributes:
        thread: Storage ID of the thread.
        run: ID of the run in the run log.
    """

    thread: str
    run: str


@dataclass(frozen=True, slots=True)
class StepJob:
    """Job that runs a single step of a turn on a worker.

    Attributes:
        id: ID of the step attempt, under which the result is stored.
        queue: Name of the queue whose workers may run the step.
        ref: Digest under which the request is stored.
        token: Owner of the thread's lease when the job was submitted. If the lease has a new
            owner, the step starts no side effects.
    """

    id: str
    queue: str
    ref: str
    token: str
