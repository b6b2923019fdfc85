"""A proxy between agents and the model server that counts calls and tokens.

Every system is measured at the same place, whatever it reports itself. The proxy changes neither
requests nor responses, except that streams are asked to end with their usage.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class ModelRequest:
    """One request to the model server.

    Attributes:
        status: HTTP status; 0 if the client or the server closed the connection.
        prompt_tokens: Tokens of the prompt, whether the server had them cached or not.
        completion_tokens: Tokens that the model wrote.
        seconds: Time until the last byte.
    """

    status: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float


class Meter:
    """Requests that passed the proxy.

    Args:
        upstream: URL of the model server's OpenAI endpoints.
        wire: File to which each request and its response are appended, as JSON lines.
    """

    def __init__(self, upstream: str, wire: Path | None = None) -> None:
        self.upstream = urlsplit(upstream)
        self.url = ""
        self._wire = wire
        self._requests: list[ModelRequest] = []
        self._open = 0
        self._changed = threading.Condition()

    def take(self) -> list[ModelRequest]:
        """Return the requests since the last call, once the open ones have ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0, _TIMEOUT_SECONDS)
            taken, self._requests = self._requests, []
        return taken

    def begin(self) -> None:
        """Note that a request has begun; :meth:`record` ends it."""
        with self._changed:
            self._open += 1

    def record(self, body: bytes, status: int, response: bytes, seconds: float) -> None:
        """Record a request that has ended."""
        prompt_tokens, completion_tokens = tokens_of(response)
        request = ModelRequest(status, prompt_tokens, completion_tokens, seconds)
        with self._changed:
            self._open -= 1
            self._changed.notify_all()
            self._requests.append(request)
            if self._wire is not None:
                line = {
                    "status": status,
                    "seconds": round(seconds, 3),
                    "request": _parsed(body),
                    "response": _parsed(response),
                }
                with self._wire.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")


@contextmanager
def metered(upstream: str, wire: Path | None = None) -> Iterator[Meter]:
    """Run the proxy for the length of a block; ``meter.url`` is its address."""
    meter = Meter(upstream, wire)

    class Handler(_Handler):
        owner = meter

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    meter.url = f"http://127.0.0.1:{server.server_address[1]}{meter.upstream.path}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield meter
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def tokens_of(response: bytes) -> tuple[int, int]:
    """Return the tokens of prompt and completion that a response reports, streamed or not.

    >>> tokens_of(b'{"usage": {"prompt_tokens": 5, "completion_tokens": 2}}')
    (5, 2)
    >>> tokens_of(b'data: {"usage": {"prompt_tokens": 5, "completion_tokens": 2}}')
    (5, 2)
    """
    for line in [response, *reversed(response.splitlines())]:
        found = _parsed(line.removeprefix(b"data: "))
        usage = found.get("usage") if isinstance(found, dict) else None
        if usage:
            return int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
    return 0, 0


class _Handler(BaseHTTPRequestHandler):
    # HTTP/1.0 ends a response by closing the connection, so that streams need no chunks here.
    owner: Meter

    def do_GET(self) -> None:
        self._forward(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self._forward(_with_usage(body))

    def log_message(self, *_: Any) -> None:
        """Stay silent."""

    def _forward(self, body: bytes) -> None:
        self.owner.begin()
        began = time.monotonic()
        status, received = 0, b""
        try:
            for chunk in self._exchange(body):
                if isinstance(chunk, int):
                    status = chunk
                else:
                    received += chunk
                    self.wfile.write(chunk)
        except (OSError, http.client.HTTPException):
            # The client timed out, or the server ended: closing both sides tells the other one.
            status = 0
            self.close_connection = True
        self.owner.record(body, status, received, time.monotonic() - began)

    def _exchange(self, body: bytes) -> Iterator[int | bytes]:
        """Send a request upstream; yield the status, then the parts of the body."""
        upstream = self.owner.upstream
        connection = http.client.HTTPConnection(
            str(upstream.hostname), upstream.port, timeout=_TIMEOUT_SECONDS
        )
        with closing(connection):
            connection.request(self.command, self.path, body, {"content-type": "application/json"})
            self._wait_for(connection.sock)
            response = connection.getresponse()
            self.send_response(response.status)
            kind = response.headers.get("content-type", "application/json")
            self.send_header("content-type", kind)
            self.end_headers()
            yield response.status
            while chunk := response.read1(65536):
                yield chunk

    def _wait_for(self, upstream: socket.socket) -> None:
        """Wait for a response to begin.

        Raises:
            ConnectionError: The client closed its connection. The model is not to write on for it.
        """
        ready, _, _ = select.select([upstream, self.connection], [], [], _TIMEOUT_SECONDS)
        if upstream not in ready:
            raise ConnectionError("The client is gone, or the server does not respond.")


def _with_usage(body: bytes) -> bytes:
    request = _parsed(body)
    if not isinstance(request, dict) or not request.get("stream"):
        return body
    request["stream_options"] = {**(request.get("stream_options") or {}), "include_usage": True}
    return json.dumps(request).encode()


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
