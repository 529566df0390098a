"""Node lists for schedulers and launchers: nodes to use, failed nodes, nodes to exclude (pure).

nodes.pass     healthy, or with warnings: a warning needs attention, not a repair (validate exits 0, too)
nodes.fail     a part of the node is bad
nodes.exclude  every node that is not in nodes.pass: failed, not measured, skipped, or cut off by an interrupt

One name per line, sorted, nothing else (`pdsh -w ^nodes.pass`, `mpirun --hostfile nodes.pass`). Each list has
a `.folded` twin, one line that Slurm, pdsh and ClusterShell expand: `gpu-[01-03,07],login`.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.judge import Verdict
from provision.node_names import fold, natural
from provision.report.causes import missing
from provision.text import many

# Names that every reader of such a list takes as one machine: no option (`-x`), range (`n[1-9]`), login
# (`a@b`) or shell syntax, and not the name of all machines (`scontrol update nodename=ALL`).
_NAME = re.compile(r"(?!all\Z)[a-z0-9_][a-z0-9_.-]{0,252}", re.IGNORECASE | re.ASCII)
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)


def passed(fleet: FleetHealth) -> Iterator[str]:
    """Yield the text of nodes.pass."""
    return _lines(node.node for node in fleet.nodes if _may_work(fleet, node))


def failed(fleet: FleetHealth) -> Iterator[str]:
    """Yield the text of nodes.fail."""
    return _lines(node.node for node in fleet.nodes if node.verdict is Verdict.FAIL)


def excluded(fleet: FleetHealth) -> Iterator[str]:
    """Yield the text of nodes.exclude."""
    return _lines(node.node for node in fleet.nodes if not _may_work(fleet, node))


def _one_line(listed: Callable[[FleetHealth], Iterator[str]]) -> Callable[[FleetHealth], Iterator[str]]:
    """Return the function that renders a list's `.folded` twin."""
    return lambda fleet: _line(listed(fleet))


passed_folded, failed_folded, excluded_folded = map(_one_line, (passed, failed, excluded))


def _may_work(fleet: FleetHealth, node: NodeHealth) -> bool:
    """Return whether the node was measured completely and did not fail."""
    proven = node.verdict in (Verdict.PASS, Verdict.WARN)
    return proven and not (node.error or node.unreachable or missing(fleet, node))


def listable(name: str) -> bool:
    """Return whether a scheduler accepts this name for one machine: a host name or an address."""
    if _NAME.fullmatch(name):
        return True
    try:
        return ipaddress.ip_address(name).version == 6 and "%" not in name
    except ValueError:
        return False


def left_out(fleet: FleetHealth) -> str:
    """Return a sentence about nodes that no list can name, or "" if there are none."""
    names = [node.node for node in fleet.nodes if not listable(node.node)]
    if not names:
        return ""
    return f"in no node list, for no scheduler takes such a name: {many(len(names), 'node')} ({fold(names)})"


def _lines(names: Iterable[str]) -> Iterator[str]:
    return (f"{name}\n" for name in sorted(filter(listable, set(names)), key=natural))


def _line(lines: Iterable[str]) -> Iterator[str]:
    text = folded([line.rstrip("\n") for line in lines])
    yield f"{text}\n" if text else ""


def folded(names: Sequence[str]) -> str:
    """Fold all names into a host list without spaces; only final numbers fold, as Slurm requires.

    >>> folded(["gpu-08", "gpu-09", "gpu-10", "gpu-12", "login.example"])
    'gpu-[08-10,12],login.example'
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        numbered = _NUMBERED.fullmatch(name)
        before, digits = (numbered[1], numbered[2]) if numbered and ":" not in name else (name, "")
        groups.setdefault(before if digits else name, []).append(digits)
    pieces = []
    for before, numbers in groups.items():
        pieces += [before] if "" in numbers else []
        ranges = list(_ranges(sorted({n for n in numbers if n}, key=lambda n: (len(n), int(n)))))
        if len(ranges) == 1 and "-" not in ranges[0]:
            pieces.append(f"{before}{ranges[0]}")
        elif ranges:
            pieces.append(f"{before}[{','.join(ranges)}]")
    return ",".join(pieces)


def _ranges(numbers: Sequence[str]) -> Iterator[str]:
    """Fold `08 09 10 12` to `08-10`, `12`; a number of another width is a new name and starts a range."""
    start = end = ""
    for number in numbers:
        if end and len(number) == len(end) and int(number) == int(end) + 1:
            end = number
            continue
        if start:
            yield start if start == end else f"{start}-{end}"
        start = end = number
    if start:
        yield start if start == end else f"{start}-{end}"
