"""Light nodes: the way to those that are far away is late, and nothing else; who is at work is counted."""

from __future__ import annotations

import asyncio
import time

from benchmarks.light_keeper import delayed
from benchmarks.tree_watch import Process, Seen, below

LINES = [b"%d\n" % number for number in range(50)]
DELAY = 0.2


async def _speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As an SSH server, which says who it is and, in a packet of its own, what it can."""
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
    await asyncio.sleep(2 * DELAY)  # until the end of the conversation has arrived, too
    return said, took


def test_what_is_under_way_arrives_late_whole_and_in_its_order() -> None:
    said, seconds = asyncio.run(_heard())
    assert said == b"".join(LINES)
    assert seconds >= 2 * DELAY  # the connection's own round trip


def test_descendants_are_found_however_far_below() -> None:
    tree = {2: 1, 3: 2, 4: 3, 5: 1, 6: 5}
    every = {pid: Process(parent, "sh", 0.0) for pid, parent in tree.items()}
    assert below(every, 2) == {3, 4}
    assert below(every, 1) == {2, 3, 4, 5, 6}
    assert below(every, 9) == set()


def test_time_without_a_node_at_work_counts() -> None:
    seen = Seen(working=[0, 2, 4, 0])
    assert (seen.share, seen.at_once) == (0.5, 3.0)
    assert (Seen().share, Seen().at_once) == (0.0, 0.0)
