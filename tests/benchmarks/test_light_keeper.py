"""Light nodes: the simulated long distance only adds delay."""

from __future__ import annotations

import asyncio
import time

from benchmarks.light_keeper import delayed

LINES = [b"%d\n" % number for number in range(50)]
DELAY = 0.2


async def _speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send data as an SSH server does: its banner first, then its algorithms in a separate packet."""
    for line in LINES:
        writer.write(line)
        await writer.drain()
        await asyncio.sleep(0.002)
    writer.close()


async def _heard() -> tuple[bytes, float]:
    there = await asyncio.start_server(_speak, "127.0.0.1", 0)
    way = await asyncio.start_server(delayed(DELAY, there.sockets[0].getsockname()[1]), "127.0.0.1", 0)
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", way.sockets[0].getsockname()[1])
    said = await asyncio.wait_for(reader.read(-1), 30)
    took = time.monotonic() - began
    writer.close()
    for server in (there, way):
        server.close()
    await asyncio.sleep(2 * DELAY)  # until the end of the stream has arrived, too
    return said, took


def test_what_is_under_way_arrives_late_whole_and_in_its_order() -> None:
    said, seconds = asyncio.run(_heard())
    assert said == b"".join(LINES)
    assert seconds >= 2 * DELAY  # the connection's own round trip
