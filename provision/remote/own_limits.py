"""Limits of the controller itself: open files for connections, and entries in the kernel's neighbour table.

Both limits fail in words that blame the node ("too many open files", "no route to host"): they are looked at
before the first node is asked.
"""

from __future__ import annotations

import ipaddress
import resource
import socket
import struct
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from provision.remote.ssh.connection import Route

MOST = 512  # connections at once, where nobody says another number
THROUGH_PROGRAMS = 64  # where each connection starts a ProxyCommand, mostly to one and the same host
SPARE = 64  # files for all the rest: standard streams, run folder, libraries
FILES = 2  # of one connection: its socket and the agent's
FILES_WITH_PROGRAM = 7  # a ProxyCommand's, while it is started; what it complains of among them
PROC = Path("/proc")
_GATEWAY, _UP = 0x2, 0x1  # flags of a route, as <linux/route.h> has them


@dataclass(frozen=True)
class Room:
    """How many connections there is room for, and what a person should know about it (a line, or nothing)."""

    connections: int
    note: str = ""


def room(
    wanted: int,
    *,
    programs: bool = False,
    processes: int = 1,
    limits: Callable[[int], tuple[int, int]] = resource.getrlimit,
    raise_to: Callable[[int, tuple[int, int]], None] = resource.setrlimit,
) -> Room:
    """Room for `wanted` connections. The soft limit of open files is raised as far as it goes.

    `programs`: each connection starts a ProxyCommand. `processes`: they are divided among so many, and each
    may open as many files as the limit says.
    """
    each = FILES_WITH_PROGRAM if programs else FILES
    soft, hard = limits(resource.RLIMIT_NOFILE)
    needed = -(-wanted // processes) * each + SPARE
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return Room(wanted)
    reachable = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    if reachable > soft:
        try:
            raise_to(resource.RLIMIT_NOFILE, (reachable, hard))
            soft = reachable
        except (OSError, ValueError):
            pass  # a container may refuse even that
    fitting = max(1, (soft - SPARE) // each) * processes
    if fitting >= wanted:
        return Room(wanted)
    return Room(
        fitting,
        f"at most {fitting} SSH connections at the same time instead of {wanted}: this user may open "
        f"{soft} files → "
        f"raise the limit (ulimit -n {needed}, or nofile in /etc/security/limits.conf)",
    )


def fitting(
    routes: Collection[Route], connections: int, say: Callable[[str], None], processes: int = 1
) -> int:
    """How many connections there may be over these routes, of so many processes together; says what this
    machine does not allow."""
    programs = any(hop.proxy_command for route in routes for hop in (*route.jumps, route.target))
    wanted = min(connections, len(routes), THROUGH_PROGRAMS if programs else connections)
    found = room(wanted, programs=programs, processes=processes)
    near = {route.target.host for route in routes if not route.jumps and not route.target.proxy_command}
    for line in (found.note, neighbours(near)):
        if line:
            say(line)
    return found.connections


def neighbours(hosts: Collection[str], proc: Path = PROC) -> str:
    """A line when more of these hosts are on this machine's own networks than its kernel remembers, else "".

    Only hosts given as IPv4 addresses are counted: names would have to be looked up for it.
    """
    try:
        most = int((proc / "sys/net/ipv4/neigh/default/gc_thresh3").read_text())
        table = (proc / "net/route").read_text()
    except (OSError, ValueError):
        return ""  # not Linux, or a container that does not show it
    if len(hosts) < most:
        return ""
    networks = list(_own_networks(table.splitlines()[1:]))
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
    """(network, mask) of the routes that need no gateway. The kernel prints each number as it lies in memory.

    `eth0 0000010A 00000000 0001 0 0 0 0000FFFF 0 0 0` is 10.1.0.0/16 on eth0.
    """
    for line in lines:
        words = line.split()
        if len(words) < 8:
            continue
        network, flags, mask = (int(words[at], 16) for at in (1, 3, 7))
        if flags & _UP and not flags & _GATEWAY and mask:
            yield _host_order(network), _host_order(mask)


def _host_order(number: int) -> int:
    return socket.ntohl(number) if struct.pack("=H", 1) == struct.pack("<H", 1) else number
