"""HTTP connections with time limits, so that slow clients cannot hold them open."""

from __future__ import annotations

import asyncio
from typing import Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_HEADER_SECONDS = 10.0
"""Maximum seconds from the opening of a connection, or from the first byte of a later request, to the
end of the request's headers.
"""
_STALL_SECONDS = 30.0
"""Maximum seconds without progress while a request's body or a response is transferred."""

_Phase = Literal["headers", "body", ""]


class BoundedConnection(H11Protocol):
    """HTTP/1.1 connection that is closed if the client is too slow.

    uvicorn itself limits only the time between two requests. If ``limit_concurrency`` is
    reached, a new connection closes the connection that has been idle longest.
    """

    _phase: _Phase = ""
    _read_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    @property
    def is_idle(self) -> bool:
        """True if no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first request of a new connection."""
        super().connection_made(transport)
        # Writing pauses while any byte is unsent, so a client that does not read is noticed.
        transport.set_write_buffer_limits(high=0)
        self._idle_since = self.loop.time()
        self._watch_reading()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._close_oldest_idle()

    def _close_oldest_idle(self) -> None:
        idle = [
            connection
            for connection in self.connections
            if isinstance(connection, BoundedConnection)
            and connection is not self
            and connection.is_idle
            and not connection.transport.is_closing()
        ]
        if idle:
            min(idle, key=lambda connection: connection._idle_since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the read and write timeouts of a closed connection."""
        super().connection_lost(exc)
        for timer in (self._read_timer, self._write_timer):
            if timer is not None:
                timer.cancel()

    # --- reading --------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Process received data and reset the read timeout."""
        super().data_received(data)
        self._watch_reading()

    def on_response_complete(self) -> None:
        """Start the timeout for the next request after a response is complete."""
        super().on_response_complete()
        self._idle_since = self.loop.time()
        self._watch_reading()

    def _watch_reading(self) -> None:
        phase = self._reading_phase()
        if phase == self._phase == "headers":
            return  # further bytes do not extend the time limit
        if self._read_timer is not None:
            self._read_timer.cancel()
        self._phase, self._read_timer = phase, None
        if phase and not self.transport.is_closing():
            seconds = _HEADER_SECONDS if phase == "headers" else _STALL_SECONDS
            self._read_timer = self.loop.call_later(seconds, self._end_reading)

    def _reading_phase(self) -> _Phase:
        if self.is_idle:
            return "headers" if self.timeout_keep_alive_task is None else ""
        return "body" if self.conn.their_state is h11.SEND_BODY else ""

    def _end_reading(self) -> None:
        if self._phase == "body" and self.flow.read_paused:
            # The application, not the client, is slow.
            self._watch_reading()
        else:
            self.transport.abort()

    # --- writing --------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Start the time limit for unsent bytes."""
        super().pause_writing()
        self._watch_writing(None)

    def resume_writing(self) -> None:
        """Cancel the time limit for unsent bytes."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def _watch_writing(self, last_size: int | None) -> None:
        size = self.transport.get_write_buffer_size()
        if last_size is not None and size >= last_size:
            self.transport.abort()
        else:
            self._write_timer = self.loop.call_later(_STALL_SECONDS, self._watch_writing, size)
