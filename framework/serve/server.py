"""The server process: a listening socket, signal handling, and graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn

from capgraph.base.errors import ConfigurationError
from capgraph.serve.connections import BoundedConnection

if TYPE_CHECKING:
    from starlette.applications import Starlette

_DEFAULT_PORT = 8123
_SHUTDOWN_SECONDS = 5
_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048


class Server(uvicorn.Server):
    """Uvicorn server for an application made by ``create_app``.

    On SIGTERM or the first Ctrl-C, no new run starts, and active runs stop at a checkpoint from
    which the next process can resume them. A second signal ends the process immediately.

    Attributes:
        should_reload: True if the application must be created again, with new settings.

    Args:
        app: Application to serve.
        listening_socket: Open socket to accept connections on.
        ready: Callback for the time at which the server accepts requests.
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
                # Trust in proxies is configured by ``serve.proxy`` alone.
                proxy_headers=False,
                # httptools accepts header values that HTTP/1.1 forbids, and limits no times.
                http=BoundedConnection,
                limit_concurrency=app.state.max_connections + 1,
                timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                ws="none",
                lifespan="on",
            )
        )
        self._app, self._socket, self._ready = app, listening_socket, ready
        self._drain_task: asyncio.Task[None] | None = None
        self.should_reload: bool = False

    def reload(self) -> None:
        """Shut down gracefully, so that the caller can serve an application with new settings."""
        if self._drain_task is None:
            self.should_reload = True
            self._handle_signal()

    async def listen(self) -> bool:
        """Serve requests until shutdown. Return False if the server failed to start."""
        await self.serve([self._socket])
        return self.started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server, then call the ``ready`` callback."""
        await super().startup(sockets)
        if self.started:
            # Objects made at startup live forever. Without freezing them, each full garbage
            # collection would pause every stream.
            gc.collect()
            gc.freeze()
            self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install signal handlers that shut the server down gracefully with exit code 0."""
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
            self.should_reload = False
            self.force_exit = self.should_exit = True

    async def _drain(self) -> None:
        try:
            await self._app.state.runs.drain()
        finally:
            self.should_exit: bool = True


def is_loopback(host: str) -> bool:
    """Return True if a host name or IP address is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def open_listening_socket(host: str, port: int | None) -> socket.socket:
    """Open the socket on which the server listens for connections.

    Args:
        host: Address or host name.
        port: Port number; 0 picks a free port. ``None`` means port 8123, or a free port if that one
            is in use.

    Raises:
        ConfigurationError: The socket cannot be opened.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bind_port = _DEFAULT_PORT if port is None else port
        return socket.create_server((host, bind_port), family=family, backlog=_BACKLOG)
    except OSError as exc:
        if port is None and exc.errno == errno.EADDRINUSE:
            return open_listening_socket(host, 0)
        raise ConfigurationError(
            f"Cannot listen on host {host!r}, port {port}: {exc}.",
            fix="Choose another --host or --port; --port 0 picks a free port.",
        ) from exc


def socket_url(listening_socket: socket.socket) -> str:
    """Return the URL at which a browser can reach a listening socket."""
    host, port = listening_socket.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
