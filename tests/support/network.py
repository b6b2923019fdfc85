"""Keeps tests away from the network, and so from real models."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from capgraph.base import CapgraphError


class NetworkRefusedError(CapgraphError):
    """A test tried to reach another machine."""

    code = "CG-TEST-NETWORK"


@contextmanager
def loopback_only() -> Iterator[None]:
    """Refuse connections and name look-ups that leave this machine.

    >>> with loopback_only():
    ...     socket.create_connection(("192.0.2.1", 80))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    NetworkRefusedError: ...
    """
    kept = {name: getattr(socket.socket, name) for name in ("connect", "connect_ex", "sendto")}
    look_up = socket.getaddrinfo

    def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: socket.socket, *args: Any) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6):
                _refuse(args[-1][0])
            return method(self, *args)

        return call

    def guarded_look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host is not None:
            _refuse(host)
        return look_up(host, *args, **kwargs)

    for name, method in kept.items():
        setattr(socket.socket, name, guarded(method))
    socket.getaddrinfo = guarded_look_up
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(socket.socket, name, method)
        socket.getaddrinfo = look_up


def _refuse(host: Any) -> None:
    name = host.decode() if isinstance(host, bytes) else str(host)
    if name in {"localhost", "", "0.0.0.0", "::", socket.gethostname()}:
        return
    try:
        local = ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        local = False
    if not local:
        raise NetworkRefusedError(
            f"A test tried to reach {name!r}.",
            fix="Use a scripted model or a server on 127.0.0.1.",
        )
