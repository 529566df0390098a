"""The RDMA ports of a node by its facts, and selection of the ports between nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.checks.check import CheckNode, fact
from provision.errors import ParseError

_TEXTS = (
    "link_layer",
    "state",
    "phys_state",
    "link",
    "pkeys",
    "roce_v2_ipv4",
    "board_id",
    "address",
    "netdev",
)
_AS_TOLD = ("rate", "link", "sm_lid", "board_id", "netdev", "netdev_up", "carrier_downs")
_NUMBERS = ("rate", "lid", "sm_lid", "gids", "carrier_downs")


@dataclass(frozen=True)
class Port:
    """One port: `name` mlx5_2, or mlx5_2/1 on a card with several; `link` 4X NDR; numbers in Gb/s.

    None is a value that the kernel does not report. `errors`: the counters by their names in sysfs.
    `software`: a driver (rxe, siw) does RDMA on the CPU without a card and does not reach its stated rate.
    `earlier`: the counters `window` seconds ago; `day_downs`: link losses in the kernel log of the last day.
    """

    name: str
    device: str
    number: str
    link_layer: str
    state: str
    phys_state: str
    rate: int | None
    link: str | None
    sm_lid: int | None
    pkeys: tuple[str, ...]
    roce_v2_ipv4: tuple[int, ...]
    board_id: str | None
    netdev: str | None
    netdev_up: bool | None
    carrier_downs: int | None
    errors: Mapping[str, int]
    mtu: int | None = None
    software: bool = False
    earlier: Mapping[str, int] = field(default_factory=dict)
    window: float | None = None
    day_downs: int | None = None

    @property
    def ethernet(self) -> bool:
        return self.link_layer == "Ethernet"

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def switched_off(self) -> bool:
        """Whether an administrator switched it off.

        An Ethernet port without a carrier is Disabled too, so the interface's own flag decides there.
        """
        if self.ethernet and self.netdev_up is not None:
            return not self.netdev_up
        return self.phys_state == "Disabled"

    @property
    def kind(self) -> tuple[str, str | None]:
        """Link layer and board, which are the same for ports with one purpose."""
        return self.link_layer, self.board_id


def ports_of(node: CheckNode) -> list[Port]:
    """Return all ports from the facts hca.ports, hca.counters and hca.mtus; raise ParseError."""
    ports = entries(node, "hca.ports")
    counters = {(str(row.get("device")), str(row.get("port"))): row for row in entries(node, "hca.counters")}
    mtus = node.facts.get("hca.mtus", {})
    if not isinstance(mtus, Mapping):
        raise ParseError("hca.mtus is not a map of ports", "run the check again")
    several = Counter(str(row.get("device")) for row in ports)
    window, before = _earlier(node)
    downs = node.facts.get("hca.link_downs")
    downs = downs if isinstance(downs, Mapping) else {}
    all_ports = []
    for row in ports:
        device, number = row.get("device"), row.get("port")
        if not isinstance(device, str) or not isinstance(number, str) or not device or not number:
            raise ParseError("hca.ports: an entry without device or port", "run the check again")
        for key in _TEXTS:
            _expect(row, key, str)
        for key in _NUMBERS:
            _expect(row, key, int)
        _expect(row, "netdev_up", bool)
        counted = counters.get((device, number))
        if counted is None:
            raise ParseError(f"hca.counters has no entry for {device}/{number}", "run the check again")
        all_ports.append(
            Port(
                name=f"{device}/{number}" if several[device] > 1 else device,
                device=device,
                number=number,
                link_layer=row.get("link_layer") or "",
                state=row.get("state") or "",
                phys_state=row.get("phys_state") or "",
                pkeys=_words(row.get("pkeys")),
                roce_v2_ipv4=tuple(int(word) for word in _words(row.get("roce_v2_ipv4")) if word.isdecimal()),
                errors=_counts(counted),
                mtu=_expect(mtus, f"{device}/{number}", int, "hca.mtus"),
                software="address" in row and row["address"] is None,
                earlier=before.get((device, number), {}),
                window=window if (device, number) in before else None,
                day_downs=_expect(downs, str(row.get("netdev")), int, "hca.link_downs"),
                **{key: row.get(key) for key in _AS_TOLD},
            )
        )
    return all_ports


def _earlier(node: CheckNode) -> tuple[float | None, dict[tuple[str, str], dict[str, int]]]:
    """Return the age in seconds of the counters of `hca.earlier`, and the counters by port.

    Optional: without a health program there is no such record. Raises ParseError on a malformed one.
    """
    rows, uptime = node.facts.get("hca.earlier"), node.facts.get("clock.uptime_s")
    if rows is None:
        return None, {}
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ParseError("hca.earlier is not a list of counters", "remove ports.json of the health program")
    then = {row.get("uptime") for row in rows if isinstance(row.get("uptime"), int)}
    if len(then) != 1 or not isinstance(uptime, int) or not 0 <= (age := uptime - then.pop()) <= uptime:
        return None, {}  # a sample of another time, or from the future, proves nothing
    return age, {(str(row.get("device")), str(row.get("port"))): _counts(row, "uptime") for row in rows}


def rate_of(entry: Mapping[str, Any]) -> float:
    """Return the Gb/s of an entry of rdma.ports, 0 if not up; raise ParseError on an impossible rate."""
    state, rate = entry.get("state"), entry.get("rate")
    if not isinstance(state, str):
        raise ParseError("rdma.ports: an entry without state", "run the check again")
    if state != "ACTIVE":
        return 0.0
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 2**20:
        raise ParseError(f"rdma.ports: the rate of a port that is up is {rate!r:.60}", "run the check again")
    return float(rate)


def _is_flat(row: Mapping[str, Any]) -> bool:
    return not any(isinstance(value, (list, Mapping)) for value in row.values())


def _words(text: Any) -> tuple[str, ...]:
    return tuple(word for word in str(text or "").split(",") if word)


def entries(node: CheckNode, name: str) -> list[Mapping[str, Any]]:
    """Return a fact that is a list of entries with equal keys.

    Raises ParseError if it is anything else or was unreadable. Missing values are None; an entry without a
    key that the others have has lost it.
    """
    value = fact(node, name)
    if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
        raise ParseError(f"{name} is not a list of entries", "run the check again")
    if any(set(row) != set(value[0]) or not _is_flat(row) for row in value):
        raise ParseError(f"{name}: its entries are not of one shape", "run the check again")
    return value


def _counts(row: Mapping[str, Any], *others: str) -> dict[str, int]:
    """Return the counters that the kernel has for a port; an unreadable number is not zero."""
    names = [name for name in row if name not in ("device", "port", *others) and row[name] is not None]
    return {name: _expect(row, name, int, "hca.counters") for name in names}


def _expect(row: Mapping[str, Any], key: str, kind: type, fact_name: str = "hca.ports") -> Any:
    """Return a value of type `kind` (numbers are never negative), or None; raise ParseError."""
    value = row.get(key)
    wrong = type(value) is not kind or (isinstance(value, int) and not 0 <= value < 2**64)
    if value is not None and wrong:
        raise ParseError(f"{fact_name}: {key} is {value!r:.60}", "run the check again")
    return value


def compute_ports(ports: Sequence[Port], named: Iterable[str] = ()) -> list[Port]:
    """Return the ports between nodes: `named` ones, else the largest kind, InfiniBand before Ethernet.

    A GPU node has other cards for storage and management, with another board or link layer. A port with an
    unreadable link layer counts as its board's kind: it must not drop out unnoticed.
    """
    wanted = set(named)
    if wanted:
        return [port for port in ports if port.device in wanted]
    candidates = [port for port in ports if port.link_layer == "InfiniBand"] or list(ports)
    sizes = Counter(port.kind for port in candidates)
    if not sizes:
        return []
    largest = max(sizes.values())
    # Of two equally large kinds, use that of the first device, whatever the order of the ports.
    first = min(
        (port for port in candidates if sizes[port.kind] == largest),
        key=lambda port: (port.device, port.number),
    )
    best = first.kind
    unread = ("", best[1])
    return [port for port in ports if port.kind in (best, unread)]


def usual(values: Iterable[Any]) -> Any:
    """Return the value that more than half of `values` have (of two at least), or None."""
    listed = list(values)
    if len(listed) < 2:
        return None
    value, count = Counter(listed).most_common(1)[0]
    return value if count * 2 > len(listed) else None
