"""Keeps one lab node alive: mounts its disk, boots it, and boots it again when it reboots.

Runs detached as `python3 -I supervisor.py <node folder>`, in a private mount namespace, so that the node's
mounts vanish with it, however it dies. Standard library only. <node folder>/boot.json is its plan:

    {"mounts": [["lower", "upper", "work", "root"]],
     "cgroup": "/sys/fs/cgroup/NAME", "nspawn": ["systemd-nspawn", "--boot", ...]}

TERM powers the node off. It never sends KILL to systemd-nspawn first, which would orphan the node's systemd.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

# systemd-nspawn's exit status when the node reboots and no machined can restart it.
REBOOT = 133
POWER_OFF_SECONDS = 15
# A node that exits this quickly several times in a row is broken, not rebooting.
QUICK_SECONDS = 2
QUICK_BOOTS = 5


class Supervisor:
    def __init__(self, folder: Path) -> None:
        self.plan = json.loads((folder / "boot.json").read_text())
        self.node: subprocess.Popen[bytes] | None = None
        self.stopping = False

    def run(self) -> int:
        """Boot until the node is powered off; returns the last exit status of systemd-nspawn."""
        signal.signal(signal.SIGTERM, self._on_term)
        for lower, upper, work, root in self.plan["mounts"]:
            options = f"lowerdir={lower},upperdir={upper},workdir={work}"
            subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, root], check=True, timeout=30)
        status, quick = REBOOT, 0
        while status == REBOOT and not self.stopping and quick < QUICK_BOOTS:
            began = time.monotonic()
            self._say("booting")
            self.node = self._boot()
            if self.stopping:  # TERM came between the check above and the start
                self.node.terminate()
            status = self._wait()
            self._say(f"systemd-nspawn ended with status {status}")
            quick = quick + 1 if time.monotonic() - began < QUICK_SECONDS else 0
        return status

    def _boot(self) -> subprocess.Popen[bytes]:
        """Start systemd-nspawn in the node's own control group, after removing remains of the last boot."""
        group = Path(self.plan["cgroup"])
        group.mkdir(exist_ok=True)
        for below in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                below.rmdir()
        enter = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(group)]
        return subprocess.Popen([*enter, *self.plan["nspawn"]], stdin=subprocess.DEVNULL)

    def _wait(self) -> int:
        assert self.node is not None  # noqa: S101
        since = 0.0
        while True:
            try:
                return self.node.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                since = since or (time.monotonic() if self.stopping else 0.0)
                if since and time.monotonic() - since > POWER_OFF_SECONDS:
                    self._pull_the_plug(self.node.pid)

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True
        if self.node is not None and self.node.poll() is None:
            self.node.terminate()  # nspawn turns this into the node's own orderly shutdown

    def _pull_the_plug(self, nspawn: int) -> None:
        """Send KILL to the node's init; the kernel ends its whole pid namespace, then nspawn exits."""
        self._say(f"no orderly shutdown within {POWER_OFF_SECONDS} s, killing the node's init")
        for child in Path(f"/proc/{nspawn}/task/{nspawn}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)

    def _say(self, text: str) -> None:
        sys.stdout.write(f"[supervisor {time.strftime('%H:%M:%S')}] {text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(Supervisor(Path(sys.argv[1])).run())
