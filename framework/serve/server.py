"""The server as a process: it listens, says where, and ends by handing over what runs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn

from capgraph.base.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.applications import Starlette

_DEFAULT_PORT = 8123
_SHUTDOWN_SECONDS = 5
_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048


class Server(uvicorn.Server):
    """Serves an application of ``create_app`` until it is told to end.

    On SIGTERM, or the first Ctrl-C, nothing else begins, and what runs comes to a point from which
    the next process goes on; a second one ends at once.

    Args:
        app: The application.
        listening_socket: An open socket.
        ready: Called when requests are answered.
    """

    def __init__(
        self, app: Starlette, listening_socket: socket.socket, ready: Callable[[], None]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                # Which proxy is believed, and what it may say, is decided by ``serve.proxy`` alone.
                proxy_headers=False,
                # httptools lets header values pass that no HTTP/1.1 message may hold.
                http="h11",
                timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                ws="none",
                lifespan="on",
            )
        )
        self._app, self._socket, self._ready = app, listening_socket, ready
        self._drain_task: asyncio.Task[None] | None = None

    async def listen(self) -> bool:
        """Answer requests until the end; tells whether the server ever could."""
        await self.serve([self._socket])
        return self.started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin, and say so."""
        await super().startup(sockets)
        if self.started:
            # What start-up made stays; each look through all of it would hold up every stream.
            gc.collect()
            gc.freeze()
            self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End in order on a signal, with the exit code of a server that was told to."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self._handle_signal)
        try:
            yield
        finally:
            for number in numbers:
                with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                    loop.remove_signal_handler(number)

    def _handle_signal(self) -> None:
        if self._drain_task is None:
            self._drain_task = asyncio.create_task(self._drain())
        else:
            self.force_exit = self.should_exit = True

    async def _drain(self) -> None:
        try:
            await self._app.state.runs.drain()
        finally:
            self.should_exit: bool = True


def open_listening_socket(host: str, port: int | None) -> socket.socket:
    """Open the socket of a server.

    Args:
        host: An address or a name.
        port: 0 for any that is free; ``None`` for the usual one, or any where that is taken.

    Raises:
        ConfigurationError: It cannot be opened.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        usual = _DEFAULT_PORT if port is None else port
        return socket.create_server((host, usual), family=family, backlog=_BACKLOG)
    except OSError as exc:
        if port is None and exc.errno == errno.EADDRINUSE:
            return open_listening_socket(host, 0)
        raise ConfigurationError(
            f"Nothing can listen on {host!r}, port {port}: {exc}.",
            fix="Choose another --host or --port; --port 0 takes any that is free.",
        ) from exc


def socket_url(listening_socket: socket.socket) -> str:
    """Return the address at which a browser reaches a socket."""
    host, port = listening_socket.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
