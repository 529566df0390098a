"""Timeout for the whole answer of an API server.
urllib3's timeout is per piece, so a server that sends single bytes could block a request forever."""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any


class _Timed(io.RawIOBase):
    """Raw stream of a socket that times out as a whole, counted from its creation."""

    def __init__(self, sock: socket.socket, raw: Any) -> None:
        self._sock, self._raw = sock, raw
        self._end = time.monotonic() + (sock.gettimeout() or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer takes too long")
        self._sock.settimeout(left)
        read: int | None = self._raw.readinto(buffer)
        return read

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_Timed(sock, self.fp.detach()))


def limit_answers(manager: Any) -> None:
    """Make connections of this urllib3 PoolManager apply their read timeout to the whole answer."""
    for scheme, pool in dict(manager.pool_classes_by_scheme).items():
        connection = type("Connection", (pool.ConnectionCls,), {"response_class": _TimedResponse})
        timed = type("Pool", (pool,), {"ConnectionCls": connection})
        manager.pool_classes_by_scheme = {**manager.pool_classes_by_scheme, scheme: timed}
