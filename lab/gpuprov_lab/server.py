"""The single server process of a lab: the fixture repository, and the route to the package cache.

Runs detached as `python3 -I server.py --folder WWW --address IP …`, bound to the bridge address only.
Standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import http.server
import signal
import threading
from pathlib import Path


class Files(http.server.SimpleHTTPRequestHandler):
    """Static files, without listings of folders, with one log line per request."""

    protocol_version = "HTTP/1.1"

    def list_directory(self, path: object) -> None:  # noqa: ARG002
        self.send_error(404, "no listing")

    def guess_type(self, path: object) -> str:  # noqa: ARG002
        return "application/octet-stream"


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


async def forward(port_file: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward one connection to the package cache at its current port."""
    try:
        port = int(port_file.read_text())
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
    except (OSError, ValueError):
        writer.write(
            b"HTTP/1.1 503 the package cache is down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        writer.close()
        return
    await asyncio.gather(_copy(reader, up_writer), _copy(up_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


async def serve(options: argparse.Namespace) -> None:
    """Serve until TERM."""
    handler = functools.partial(Files, directory=str(options.folder))
    files = Server((options.address, options.http_port), handler)
    threading.Thread(target=files.serve_forever, daemon=True).start()
    connection = functools.partial(forward, options.cache_port_file)
    cache = await asyncio.start_server(connection, options.address, options.cache_port, backlog=128)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    cache.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--cache-port", type=int, required=True)
    parser.add_argument("--cache-port-file", type=Path, required=True)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
