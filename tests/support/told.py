"""A recipient of the watch's messages: a real HTTP server that stores requests, and a message."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from provision.up.watch.steps import Message

MESSAGE = Message(
    "20270115T080000Z-gpu-03.replaced",
    "replaced",
    time.time(),
    "gpu-03 failed and was drained; spare-1 took its place after 12 s",
    "gpu-03",
    "spare-1",
    "20270115T080000Z-gpu-03",
    "gpu3 has fallen off the bus (Xid 79)",
    "power-cycle",
    "gpu3",
    "1650923004321",
    "gpuprov return gpu-03",
)


class Server:
    """A real HTTP server; `answers` are its statuses, the last one repeated for ever."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []
        self.answers = [200]
        self.location = ""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.got.append((self.path, json.loads(body)))
                status = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
                self.send_response(status)
                if server.location:
                    self.send_header("Location", server.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def until(holds: Any, what: str) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)
