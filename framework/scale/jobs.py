"""What passes an engine: two small orders. What they are about lies in the threads' own database."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnJob:
    """Look at a thread: a run of it is to be begun, or gone on with.

    What is asked, answered or signalled, and by whom, is the request of the run in the run log
    (:class:`capgraph.stores.run_log.LoggedRun`), in the database that holds the thread. An order
    that comes twice, late or for a run that has ended changes nothing.

    Attributes:
        thread: The thread, as its saver calls it.
        run: The run in the log.
    """

    thread: str
    run: str


@dataclass(frozen=True, slots=True)
class StepJob:
    """Run one step of a turn on a worker that serves its queue.

    Attributes:
        id: Names the step's attempt; what came of it is kept under it.
        queue: The queue whose workers may run it.
        ref: Digest under which what it needs is kept.
        token: Owner of the thread's lease when it was ordered. Whoever has lost the lease since
            begins no effect.
    """

    id: str
    queue: str
    ref: str
    token: str
