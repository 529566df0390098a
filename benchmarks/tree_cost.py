"""Runs a command and reports the cost of its process tree: tree_cost.py ANSWER SECONDS COMMAND…

Processes that outlive the command (an ssh ControlMaster) are ended and counted: orphans of the tree become
children of this process. Writes {"code", "wall", "cpu" (seconds), "rss" (MB, of the largest process)} to the
file ANSWER; the command inherits the output streams. The code is 124 when the command timed out.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def end_orphans() -> None:
    """Send TERM to the remaining processes, KILL after five seconds, and reap all of them."""
    for sign, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        while time.monotonic() < deadline:
            for pid in set(children()) - signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sign)
                signalled.add(pid)
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.01)
            except ChildProcessError:
                return


def main(answer: str, seconds: str, *command: str) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def end_with_us() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    before = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=end_with_us)
    ended = os.pidfd_open(process.pid)  # wait(timeout) polls after 16, 32, 64 ms, which is too coarse
    in_time, _, _ = select.select([ended], [], [], float(seconds))
    wall = time.perf_counter() - before
    if not in_time:
        process.kill()
    code = process.wait()
    code = code if in_time else 124
    end_orphans()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = {"code": code, "wall": wall, "cpu": used.ru_utime + used.ru_stime, "rss": used.ru_maxrss / 1024}
    Path(answer).write_text(json.dumps(cost))


if __name__ == "__main__":
    main(*sys.argv[1:])
