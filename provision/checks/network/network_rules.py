"""Rules of network_ports for one port: its state, link, errors, and requirements for routing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.checks.judge import Finding, Measurement, Verdict, finding_on, unmeasured
from provision.checks.network.rdma_port import Port, usual
from provision.checks.thresholds import limits
from provision.node.observe.hca import PACKETS

ID = "network_ports"

CABLE, CONFIGURE = "reseat or check cable", "fix configuration"


# A port's states in a driver (linux, drivers/infiniband/core/sysfs.c, state_show); NOP is no answer.
_STATES = ("DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")


def judge_unread(port: Port) -> list[Finding]:
    """Report a port without state or link layer, about which nothing is known, not even its cable."""
    if port.switched_off:
        return []
    lost = [] if port.link_layer else ["link layer"]
    if port.state not in _STATES:
        lost.append(f"state ({port.state})" if port.state else "state")
    if not lost:
        return []
    message = f"{port.name}: the kernel gives no {' and no '.join(lost)} of this port"
    return [unmeasured(ID, message, device=port.name, action="investigate")]


def judge_state(port: Port, declared: bool) -> Finding | None:
    """Return the finding on a port that is down; None if it is up, unknown, or off and not declared."""
    if port.active or (port.switched_off and not declared) or port.state not in _STATES:
        return None
    text = f"{port.state}, {port.phys_state or 'no physical state'}"
    if port.switched_off:
        message = f"{port.name} is declared in rdma_expected_ports and switched off ({text})"
        return _fail(port, "state", message, port.state, limit="= ACTIVE", source="rdma_expected_ports")
    if port.state == "INIT" and port.phys_state == "LinkUp" and not port.ethernet:
        words = "has a link and no address: no subnet manager has configured it"
        action = CONFIGURE
    elif port.state == "ARMED":
        words, action = "is not activated by the subnet manager", CONFIGURE
    else:
        words, action = "has no link: cable, transceiver, or the other end", CABLE
    return _fail(port, "state", f"{port.name} {words} ({text})", port.state, action=action, limit="= ACTIVE")


def judge_none_up(ports: Sequence[Port], expected: bool) -> Finding | None:
    """Warn if all ports of the kind between nodes are switched off.

    One port switched off next to active ports is a spare, or an administrator's decision. With all of them
    off the node cannot reach its peers, and a port without a transceiver is Disabled as well. Ethernet cards
    without an address that no inventory expects are ignored: lab machines have unused cards.
    """
    if not ports or not all(port.switched_off and not port.active for port in ports):
        return None
    layer = ports[0].link_layer
    if ports[0].ethernet and not expected and not any(port.roce_v2_ipv4 for port in ports):
        return None
    count = "its only port" if len(ports) == 1 else f"all {len(ports)} ports"
    message = (
        f"no {layer or 'RDMA'} port is up: {count} "
        f"{'is' if len(ports) == 1 else 'are'} switched off, or without a transceiver"
    )
    evidence = tuple(f"{port.name}: {port.state}, {port.phys_state}" for port in ports)
    measured = Measurement("state", 0, "ports")
    return finding_on(ID, Verdict.WARN, measured, message, "≥ 1 port", "", CONFIGURE, evidence)


def judge_link(port: Port, peers: Sequence[Port], declared: int | None) -> Finding | None:
    """Judge rate and width by the declared value, else by the other ports of its kind."""
    required, source = declared, "rdma_expected_ports"
    if required is None:
        required, source = (
            usual(peer.rate for peer in peers if peer.active),
            "the node's other ports of this kind",
        )
    if required is None or port.rate is None or port.rate >= required:
        return None
    message = (
        f"{port.name} runs at {port.rate} Gb/s{f' ({port.link})' if port.link else ''}, not {required} Gb/s"
    )
    return _fail(
        port, "rate", message, port.rate, "Gb/s", action=CABLE, limit=f"≥ {required} Gb/s", source=source
    )


# Bits of the counters (drivers/infiniband/core/sysfs.c, PORT_PMA_ATTR): a counter stops at its largest value,
# which means "at least". Counters of 4 bits are full on healthy ports, too (15 on a real H100).
_BITS = {
    "symbol_error": 16, "link_error_recovery": 8, "link_downed": 8, "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16, "port_rcv_constraint_errors": 8, "port_xmit_constraint_errors": 8,
    "local_link_integrity_errors": 4,
}  # fmt: skip


def full(port: Port, name: str) -> Finding | None:
    """Warn about a counter at its maximum, which understates any rate."""
    most = 2 ** _BITS[name] - 1
    if port.errors.get(name) != most:
        return None
    if _BITS[name] == 4 and most - port.earlier.get(name, most) <= 10:
        return None  # almost full already at the earlier sample
    message = f"{port.name} has counted {most} {name} or more: the counter is full; reset it (perfquery -R)"
    source = "linux, drivers/infiniband/core/sysfs.c: the counter's width"
    return Finding(ID, Verdict.WARN, port.name, message, name, most, "errors", f"< {most}", source, "watch")


@dataclass(frozen=True)
class Span:
    """A period of a counter: `count` events in `hours`."""

    count: int
    hours: float


DAY = 24.0


def spans(port: Port, name: str, now: int, uptime: int | None) -> list[Span]:
    """Return the period since the earlier sample, and since boot unless that sample is a day old.

    Over the days since boot an error of this morning is no rate, and one of last month is irrelevant today.
    """
    then, since_boot = port.earlier.get(name), Span(now, (uptime or 0) / 3600)
    if then is None or port.window is None:
        return [since_boot]
    # A counter that decreased was reset in between: its whole count is new.
    recent = Span(now - then if now >= then else now, port.window / 3600)
    return [recent] if recent.hours >= DAY else [recent, since_boot]


def judge_errors(port: Port, uptime: int | None) -> list[Finding]:
    """Judge error counters by their rate.

    A card counts errors while its link comes up, so the rate is taken over at least a day.
    """
    least = float(limits("port_limits")["least_hours"]["limit"])
    findings = []
    allowed: dict[str, tuple[float, str]] = {
        name: (float(row["limit"]), str(row["source"]))
        for name, row in limits("port_limits")["errors_per_hour"].items()
    }
    symbols = limits("port_limits")["symbol_errors_per_hour_and_gbs"]
    if port.rate:
        allowed["symbol_error"] = float(symbols["limit"]) * port.rate, str(symbols["source"])
    for name, (limit, source) in allowed.items():
        counted = spans(port, name, port.errors.get(name, 0), uptime)
        over = next((one for one in counted if one.count / max(least, one.hours) > limit), None)
        if over is None:
            findings += [filled] if name in _BITS and (filled := full(port, name)) else []
            continue
        hours = max(least, over.hours)
        message = f"{port.name} has counted {over.count} {name}, more than {limit:g} an hour in {hours:.0f} h"
        bound = f"≤ {limit:g} an hour"
        failure = _fail(port, name, message, over.count, "errors", action=CABLE, limit=bound, source=source)
        findings.append(failure)
    return findings


# A port that carried less than this fraction of another's packets is no reference for its retransmissions.
_COMPARABLE = 0.1


def judge_retransmissions(port: Port, peers: Sequence[Port]) -> list[Finding]:
    """Warn about more retransmissions than the best comparable peer, and report more congestion.

    Comparable peers carried at least a tenth of the port's packets since the earlier sample; without a sample
    nothing is judged, since no limit was published. Congestion is reported, not judged: it is the network's.
    Packets out of order are only recorded, since adaptive routing reorders packets.
    """
    findings = []
    for name, row, rate, best in _above_peers(port, peers, "retransmissions_per_hour"):
        message = (
            f"{port.name} counts {rate:.0f} {name} an hour, a port of its kind with its traffic {best:.0f}"
        )
        measured, limit = Measurement(name, round(rate), "an hour", port.name), f"≤ {row['limit']:g} an hour"
        findings.append(finding_on(ID, Verdict.WARN, measured, message, limit, row["source"], "watch"))
    for name, row, rate, best in _above_peers(port, peers, "congestion_per_hour"):
        message = (
            f"{port.name} counts {rate:.0f} {name} an hour, a port of its kind with its traffic {best:.0f}: "
            f"congestion on its way through the network ({row['source']})"
        )
        measured = Measurement(name, round(rate), "an hour", port.name)
        findings.append(finding_on(ID, Verdict.SKIP, measured, message))
    return findings


def _above_peers(
    port: Port, peers: Sequence[Port], table: str
) -> Iterator[tuple[str, Mapping[str, Any], float, float]]:
    """Yield (counter, row, rate an hour, best peer's rate) of counters above a row of port_limits.yml."""
    own = _packets(port)
    busy = [(peer, packets) for peer in peers if peer is not port and (packets := _packets(peer))]
    for name, row in limits("port_limits")[table].items():
        rate = _recent_rate(port, name)
        rates = [(_recent_rate(peer, name), packets) for peer, packets in busy]
        shares = [
            other / packets for other, packets in rates if other is not None and packets >= _COMPARABLE * own
        ]
        if rate is None or not own or not shares:
            continue
        best = min(shares) * own
        if rate > max(row["limit"], row["times"] * best):
            yield name, row, rate, best


def _packets(port: Port) -> float:
    """Return packets per hour since the earlier sample; 0 if unknown."""
    rates = [_recent_rate(port, name) for name in PACKETS]
    return sum(rate or 0.0 for rate in rates)


def _recent_rate(port: Port, name: str) -> float | None:
    """Return a counter's events per hour since the earlier sample, counted as at least an hour, or None."""
    if not port.window or name not in port.earlier or name not in port.errors:
        return None
    recent = spans(port, name, port.errors[name], None)[0]
    return recent.count / max(1.0, recent.hours)


def judge_silence(port: Port, peers: Sequence[Port]) -> list[Finding]:
    """Report values readable on most ports of a kind but not on this one, as they may hide errors.

    The kernel prints `N/A (no PMA)` for them (linux, drivers/infiniband/core/sysfs.c)."""
    others = [peer for peer in peers if peer.active and peer is not port]
    names = [name for peer in others for name in _readable(peer)]
    missing = sorted(name for name in {*names} - _readable(port) if 2 * names.count(name) > len(others) > 0)
    if not missing:
        return []
    message = f"{port.name} has no readable {', '.join(missing)}, and the ports beside it have"
    return [unmeasured(ID, message, device=port.name, action="investigate")]


def _readable(port: Port) -> set[str]:
    """Return the readable values of a port: its counters, its rate, and its subnet manager."""
    optional = {"rate": port.rate, "sm_lid": port.sm_lid}
    return {*port.errors, *(name for name, value in optional.items() if value is not None)}


def judge_routing(
    port: Port, peers: Sequence[Port], variables: Mapping[str, Any], declared: Mapping[str, Any]
) -> list[Finding]:
    """Judge the requirements for routing: subnet manager and P_Key, or a GID; and the MTU."""
    findings = []
    others = [peer for peer in peers if peer.active and peer is not port]
    if not port.ethernet:
        if port.sm_lid == 0:
            message = f"{port.name} knows no subnet manager: no route leads to it"
            findings.append(_fail(port, "sm_lid", message, 0, limit="> 0"))
        findings += _judge_pkeys(port, others, declared.get("pkey"))
    else:
        findings += _judge_gids(port, others, variables.get("rdma_roce_gid_index") if declared else None)
    required = variables.get("rdma_mtu") if declared else None
    source = "rdma_mtu"
    if not isinstance(required, int):
        mtus = [peer.mtu for peer in others if peer.mtu is not None]
        required, source = usual([*mtus, port.mtu]) if mtus else None, "the node's other ports of this kind"
    if required is not None and port.mtu is not None and port.mtu < required:
        message = f"{port.name} has an RDMA MTU of {port.mtu} bytes, not {required}"
        findings.append(
            _fail(port, "mtu", message, port.mtu, "bytes", limit=f"≥ {required} bytes", source=source)
        )
    return findings


def _judge_pkeys(port: Port, others: Sequence[Port], declared: Any) -> list[Finding]:
    has = ", ".join(port.pkeys) or "none"
    if isinstance(declared, str):
        if declared.lower() in port.pkeys:
            return []
        message, limit = f"{port.name} lacks the partition key {declared} (it has {has})", declared
        return [_fail(port, "pkeys", message, has, limit=limit, source="rdma_expected_ports")]
    target = usual([peer.pkeys for peer in (*others, port)])
    if not port.pkeys or (target is not None and port.pkeys != target):
        message = (
            f"{port.name} has the partition keys {has}; its peers have {', '.join(target or ()) or 'others'}"
        )
        return [_fail(port, "pkeys", message, has, source="the node's other ports of this kind")]
    return []


def _judge_gids(port: Port, others: Sequence[Port], index: Any) -> list[Finding]:
    has = ", ".join(map(str, port.roce_v2_ipv4)) or "none"
    source = "rdma_roce_gid_index"
    expected: tuple[int, ...] | None = (
        (index,) if isinstance(index, int) and not isinstance(index, bool) else None
    )
    if expected is None:
        source = "the node's other ports of this kind"
        expected = usual([peer.roce_v2_ipv4 for peer in (*others, port)])
    if expected and not set(expected) <= set(port.roce_v2_ipv4):
        where = ", ".join(map(str, expected))
        message = f"{port.name} has no IPv4 address for RoCE v2 at GID index {where} (its indexes: {has})"
        return [_fail(port, "gid", message, has, limit=f"index {where}", source=source)]
    return []


def _fail(
    port: Port,
    metric: str,
    message: str,
    value: Any,
    unit: str = "",
    *,
    action: str = CONFIGURE,
    limit: str = "",
    source: str = "",
) -> Finding:
    link = f"rate {port.rate} Gb/s ({port.link}), sm_lid {port.sm_lid}"
    words = f"{port.link_layer}, {port.state}, {port.phys_state}, {link}"
    measured, evidence = Measurement(metric, value, unit, port.name), (f"{port.name}: {words}",)
    return finding_on(ID, Verdict.FAIL, measured, message, limit, source, action, evidence)
