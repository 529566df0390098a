"""Controllers of one fleet for lab tests: each with a network, a host name, a home folder and a clock of its
own, from which a person runs `gpuprov watch`.

The clock is a library for LD_PRELOAD that the test builds: a time namespace shifts only the clocks that
nobody sets, and a `sitecustomize` would miss what Python reads in C (datetime) and every other program (ssh).
It adds the seconds in a file, which may change at any moment, to the wall clock; other clocks go on.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpuprov_lab import network
from gpuprov_lab.record import LabRecord
from provision.desired import inventory
from provision.errors import ExitCode
from provision.up.watch.incidents import Store, place_of
from tests.lab.gpuprov_up import Operator, said
from tests.lab.watches import state_home

FIRST_INDEX = 240  # its address in the lab, behind those of the nodes
_CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t ahead(void) {
    static const volatile int64_t *seconds;
    if (!seconds) {
        const char *path = getenv("SHIFTED_CLOCK");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *page = file < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        if (page == MAP_FAILED) return 0;
        seconds = page;
    }
    return *seconds;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
    return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed) now->tv_sec += ahead();
    return failed;
}
time_t time(time_t *there) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (there) *there = now.tv_sec;
    return now.tv_sec;
}
"""


def shifted_clock(folder: Path) -> Path:
    """The library, built in this folder."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_CLOCK)
    words = ["gcc", "-Wall", "-Werror", "-O1", "-fPIC", "-shared", "-o", str(library), str(source)]
    subprocess.run(words, check=True, timeout=120)
    return library


@dataclass
class Controller:
    """A machine with this host name, on which a person runs gpuprov."""

    host: str
    home: Path
    operator: Operator
    namespace: str
    clock: Path
    ahead: int = 0  # seconds by which its wall clock is ahead
    process: subprocess.Popen[str] | None = None
    log: Path = field(default_factory=Path)

    def step_clock(self, seconds: int) -> None:
        """Set the wall clock forward or back, for programs that run, too."""
        self.ahead += seconds
        with (self.home / "ahead").open("r+b") as file:
            file.write(struct.pack("=q", self.ahead))

    def cut_off(self) -> None:
        """Take its network away."""
        subprocess.run(["ip", "-n", self.namespace, "link", "set", "host0", "down"], check=True)

    def connect(self) -> None:
        subprocess.run(["ip", "-n", self.namespace, "link", "set", "host0", "up"], check=True)

    def call(self, act: str, *arguments: str) -> str:
        """What `gpuprov watch ACT` prints; it must succeed."""
        words = self._words(act, *arguments)
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=300, check=False, env=self._environment
        )
        assert done.returncode == ExitCode.OK, said(done)
        return done.stdout + done.stderr

    def start(self) -> None:
        """Start the watch."""
        assert self.process is None
        self.log = self.home / f"watch-{time.monotonic():.2f}.log"
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                self._words("run"), stdout=out, stderr=subprocess.STDOUT, text=True, env=self._environment
            )

    def kill(self) -> None:
        """End the watch and whatever it runs by SIGKILL, as a loss of power does."""
        process, self.process = self.process, None
        if process is not None:
            for pid in network.namespace_pids(self.namespace):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(30)

    def stop(self) -> None:
        """End the watch in order."""
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            code = process.wait(90)
            assert code == ExitCode.OK, self.log.read_text()[-3000:]

    @functools.cached_property
    def store(self) -> Store:
        with state_home(self.home / ".local" / "state"):
            return Store(place_of(inventory.load(self.operator.inventory)))

    def _words(self, act: str, *arguments: str) -> list[str]:
        apart = ["nsenter", f"--net={network.NAMESPACES / self.namespace}", "unshare", "--uts", "sh", "-c"]
        # Only gpuprov and what it starts have the clock.
        inside = 'hostname "$0" && export LD_PRELOAD="$CLOCK" && exec "$@"'
        return [*apart, inside, self.host, *self.operator._words("watch", (act, *arguments), {})]

    @property
    def _environment(self) -> dict[str, str]:
        around = {name: value for name, value in self.operator._environment.items() if name[:4] != "XDG_"}
        own = {"HOME": str(self.home), "GPUPROV_RUNS": str(self.home / "runs")}
        return {**around, **own, "CLOCK": str(self.clock), "SHIFTED_CLOCK": str(self.home / "ahead")}


@contextlib.contextmanager
def controllers(
    record: LabRecord, operator: Operator, folder: Path, *hosts: str
) -> Iterator[list[Controller]]:
    """Controllers in the network of a lab, which are gone afterwards. What a killed test leaves of them has
    the lab's names, so `gpuprov lab down` removes it."""
    clock, made = shifted_clock(folder), list[Controller]()
    try:
        for number, host in enumerate(hosts):
            home, namespace = folder / host, f"{record.place.namespace_prefix}{host}"
            home.mkdir(mode=0o700)
            (home / "ahead").write_bytes(bytes(8))
            network.ensure_namespace(namespace, record.octet, FIRST_INDEX + number)
            made.append(Controller(host, home, operator, namespace, clock))
        yield made
    finally:
        for one in made:
            one.kill()
            network.remove_namespace(one.namespace)
