"""SSH fan-out to nodes that are reachable without Ansible, within the limits of this machine.

A program runs on each node, from threads of one process (pool.py).

Exhausted limits for open files and the kernel's neighbour table cause errors that seem to blame the node
("too many open files", "no route to host"), so they are checked before the first connection.
"""

from __future__ import annotations

import ipaddress
import resource
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from provision.node_names import fold
from provision.remote.protocol import NodeError
from provision.remote.ssh.connection import Route
from provision.remote.ssh.pool import SshThreads
from provision.text import many

MOST = 512  # default number of concurrent connections
THROUGH_PROGRAMS = 64  # limit with ProxyCommands, which mostly connect to one and the same host
SPARE = 64  # files for everything else: standard streams, run folder, libraries
FILES = 2  # per connection: its socket and the agent's
FILES_WITH_PROGRAM = 7  # with a ProxyCommand while it starts, including its error output
PROC = Path("/proc")
_GATEWAY, _UP = 0x2, 0x1  # flags of a route in <linux/route.h>


@dataclass(frozen=True)
class Room:
    """The possible number of connections, and a line for people about it (or "")."""

    connections: int
    note: str = ""


def room(
    wanted: int,
    *,
    programs: bool = False,
    limits: Callable[[int], tuple[int, int]] = resource.getrlimit,
    raise_to: Callable[[int, tuple[int, int]], None] = resource.setrlimit,
) -> Room:
    """Return room for `wanted` connections, after raising the soft limit of open files if needed.

    `programs`: each connection starts a ProxyCommand, which needs more files."""
    each = FILES_WITH_PROGRAM if programs else FILES
    soft, hard = limits(resource.RLIMIT_NOFILE)
    needed = wanted * each + SPARE
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return Room(wanted)
    reachable = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    if reachable > soft:
        try:
            raise_to(resource.RLIMIT_NOFILE, (reachable, hard))
            soft = reachable
        except (OSError, ValueError):
            pass  # a container may forbid even that
    fitting = max(1, (soft - SPARE) // each)
    if fitting >= wanted:
        return Room(wanted)
    return Room(
        fitting,
        f"at most {fitting} SSH connections at the same time instead of {wanted}: this user may open "
        f"{soft} files → "
        f"raise the limit (ulimit -n {needed}, or nofile in /etc/security/limits.conf)",
    )


def fitting(routes: Collection[Route], connections: int, say: Callable[[str], None]) -> int:
    """Return the possible number of connections over these routes; report limits of this machine."""
    programs = _start_programs(routes)
    requested = min(connections, len(routes), THROUGH_PROGRAMS if programs else connections)
    return _said_room(routes, requested, say)


def keepable(routes: Collection[Route], connections: int, say: Callable[[str], None]) -> int:
    """Return how many connections may stay open besides `connections` in use; report limits."""
    requested = len(routes) + connections
    available = room(requested, programs=_start_programs(routes))
    if available.note:
        say(f"{available.note}; the others are made anew each time")
    return max(0, available.connections - connections)


def follow_room(routes: Collection[Route], logins: int, say: Callable[[str], None]) -> None:
    """Make room for one open connection per route and for `logins`; report limits of this machine."""
    _said_room(routes, len(routes) + logins, say)


def _said_room(routes: Collection[Route], wanted: int, say: Callable[[str], None]) -> int:
    available = room(wanted, programs=_start_programs(routes))
    # Nodes behind a jump host are not neighbours of this machine; the peer of a ProxyCommand is unknown.
    near = {route.target.host for route in routes if not route.jumps and not route.target.proxy_command}
    for line in (available.note, neighbours(near)):
        if line:
            say(line)
    return available.connections


def _start_programs(routes: Collection[Route]) -> bool:
    return any(hop.proxy_command for route in routes for hop in (*route.jumps, route.target))


def neighbours(hosts: Collection[str], proc: Path = PROC) -> str:
    """Return a warning if more of these hosts are local than the kernel's neighbour table holds, else "".

    Only hosts given as IPv4 addresses are counted, since names would need lookups.
    """
    try:
        most = int((proc / "sys/net/ipv4/neigh/default/gc_thresh3").read_text())
        table = (proc / "net/route").read_text()
    except (OSError, ValueError):
        return ""  # not Linux, or a container that hides it
    if len(hosts) < most:
        return ""
    networks = list(_own_networks(table.splitlines()[1:]))  # without the line of column titles
    count = sum(any(address & mask == network for network, mask in networks) for address in _numbers(hosts))
    if count < most:
        return ""
    return (
        f"{count} nodes are on this machine's own networks, and its kernel remembers {most} neighbours: "
        f"some will look dead → sysctl -w net.ipv4.neigh.default.gc_thresh3={4 * count} "
        f"net.ipv4.neigh.default.gc_thresh2={2 * count}"
    )


def _numbers(hosts: Iterable[str]) -> Iterable[int]:
    for host in hosts:
        try:
            yield int(ipaddress.IPv4Address(host))
        except ValueError:
            continue


def _own_networks(lines: Iterable[str]) -> Iterable[tuple[int, int]]:
    """Yield (network, mask) of the routes without a gateway; the kernel prints numbers in memory order.

    `eth0 0000010A 00000000 0001 0 0 0 0000FFFF 0 0 0` is 10.1.0.0/16 on eth0.
    """
    for line in lines:
        columns = line.split()
        if len(columns) < 8:
            continue
        network, flags, mask = (int(columns[at], 16) for at in (1, 3, 7))
        if flags & _UP and not flags & _GATEWAY and mask:  # mask 0: a default route
            yield _host_order(network), _host_order(mask)


def _host_order(number: int) -> int:
    return socket.ntohl(number) if struct.pack("=H", 1) == struct.pack("<H", 1) else number


QUIET = 5.0  # seconds between two progress lines about unanswered nodes


class Asked(Protocol):
    """The program of each node, and the receiver of its output."""

    def program(self, node: str, limit: int | None = None) -> str: ...
    def take(self, node: str, output: bytes | bytearray | NodeError, seconds: float) -> None: ...


class Fanout:
    """Background run of programs on the nodes `names`; `gather` and `finish` deliver results.

    `persistent`: number of connections that stay open for `ask_again`."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        names: Collection[str],
        asked: Asked,
        timeout: float,
        connections: int,
        say: Callable[[str], None],
        *,
        persistent: int = 0,
    ) -> None:
        self._say = say
        self._begin(asked)
        programs = {name: asked.program(name) for name in names}
        self._pool = SshThreads(routes, programs, timeout, connections, persistent)

    def _begin(self, asked: Asked) -> None:
        self._said = time.monotonic()
        self._awaited: list[str] = []
        self._asked = asked

    def ask_again(self, names: Collection[str], asked: Asked) -> None:
        """Run further programs on these nodes, once all results have been delivered."""
        self._begin(asked)
        self._pool.ask_again({name: asked.program(name) for name in names})

    def __enter__(self) -> Fanout:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def gather(self, wait: float = 0.0) -> None:
        for done in self._pool.gather(wait):
            self._asked.take(done.name, done.result, done.seconds)

    def finish(self, meanwhile: Callable[[], None] | None = None) -> None:
        while self._pool.unfinished:
            self.gather(wait=1.0)  # so that the lines below run every second, too
            self._say_who_is_awaited()
            if meanwhile is not None:
                meanwhile()

    def _say_who_is_awaited(self) -> None:
        """Report unanswered nodes at intervals, if none is queued and they have changed since."""
        awaited = sorted(self._pool.awaited)
        if awaited and awaited != self._awaited and time.monotonic() - self._said > QUIET:
            self._awaited, self._said = awaited, time.monotonic()
            self._say(f"waiting for {many(len(awaited), 'node')}: {fold(awaited)}")
