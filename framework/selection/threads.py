"""Keeping small matrix products off the thread pool of the linear algebra library.

Its threads wait for one another by spinning. On a busy machine, or in a container with
less CPU than it has cores, that turns products of a millisecond into a hundred.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from framework.base import require_extra


class _BlasThreads:
    """The process's BLAS libraries; their number of threads is one setting for all users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._controller: Any = None
        self._limiter: Any = None

    def enter(self) -> None:
        with self._lock:
            if self._inside == 0:
                if self._controller is None:
                    pool = require_extra("threadpoolctl", "offline")
                    self._controller = pool.ThreadpoolController()
                self._limiter = self._controller.limit(limits=1, user_api="blas")
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limiter.restore_original_limits()


# One for the process, because what it guards is: were each user to restore the setting
# that it found, two that overlap would leave the other's limit behind.
_blas = _BlasThreads()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let linear algebra run in the calling thread; may be nested and used from any thread.

    >>> with one_blas_thread():
    ...     pass
    """
    _blas.enter()
    try:
        yield
    finally:
        _blas.leave()
