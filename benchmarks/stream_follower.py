"""Follows the health results of an inventory, and says when all have come: stream_follower.py INVENTORY.

A line for each time that all nodes have told a result that is newer than the one before, with how many
seconds after it was written the last of them was here. Ends with its standard input.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from provision.desired import inventory
from provision.validate.status.stream import HealthStream


def main() -> None:
    fleet = inventory.load(Path(sys.argv[1]))
    ended = threading.Event()

    def until_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=until_the_end, daemon=True).start()
    newest = 0.0
    with HealthStream(
        fleet, timeout=120, connections=64, say=lambda line: print(line, file=sys.stderr)
    ) as stream:
        while not ended.is_set():
            stream.changes(0.5)
            if not newest and len(stream.latest) < len(fleet.nodes):
                continue
            written = [one.written or 0.0 for one in stream.latest.values() if one.counts]
            if len(written) == len(fleet.nodes) and min(written) > newest:
                newest = min(written)
                print(f"{time.time() - newest:.2f}", flush=True)


if __name__ == "__main__":
    main()
