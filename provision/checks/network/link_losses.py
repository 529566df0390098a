"""Rules of network_ports for links that went down and came back."""

from __future__ import annotations

from collections.abc import Sequence

from provision.checks.judge import Finding, Measurement, Verdict, finding_on
from provision.checks.network.network_rules import CABLE, DAY, ID, Span, full, spans
from provision.checks.network.rdma_port import Port
from provision.checks.thresholds import limits


def downs(port: Port) -> int | None:
    """Return how often the link went down: interface since boot, else port since the card's reset."""
    counted = port.errors.get("link_downed")
    return port.carrier_downs if port.ethernet and port.carrier_downs is not None else counted


def judge_flaps(port: Port, peers: Sequence[Port], uptime: int | None) -> Finding | None:
    """Judge links that go down repeatedly, although they are up at most observations."""
    count = downs(port)
    name = "carrier_downs" if port.ethernet and port.carrier_downs is not None else "link_downed"
    counted = [] if count is None else spans(port, name, count, uptime)
    if port.day_downs is not None:
        counted.append(Span(port.day_downs, DAY))
    rows = limits("port_limits")["link_downs_per_day"]
    for level in ("fail", "warn"):
        limit = float(rows[level]["limit"])
        for one in counted:
            days = max(1.0, one.hours / DAY)
            if one.count / days < limit:
                continue
            verdict, action = (Verdict.FAIL, CABLE) if level == "fail" else (Verdict.WARN, "watch")
            measured = Measurement("link_downed", one.count, "times", port.name)
            when = f"{days:.0f} day{'s' * (days >= 1.5)}"
            message = f"{port.name} has lost its link {one.count} times in {when}: it flaps"
            source = str(rows[level]["source"])
            return finding_on(ID, verdict, measured, message, f"< {limit:g} a day", source, action)
    if (filled := full(port, "link_downed")) and count == port.errors.get("link_downed"):
        return filled
    return _judge_undated_flaps(port, peers, uptime)


def _judge_undated_flaps(port: Port, peers: Sequence[Port], uptime: int | None) -> Finding | None:
    """Warn about a port that lost its link often since boot, possibly all within one day.

    The best peer is the reference, so that a second bad port excuses neither.
    """
    count, days = downs(port) or 0, max(1.0, (uptime or 0) / (3600 * DAY))
    if _dated(port):
        return None
    others = [downs(peer) or 0 for peer in peers if peer is not port and peer.active]
    words, row = "", limits("port_limits")["link_downs_undated"]
    if count < row["least"] or count / days < row["limit"]:
        row = limits("port_limits")["link_downs_beside_peers"]
        least = count >= row["least"] and count / days >= row["limit"]
        if not others or not least or count <= row["times"] * max(1, min(others)):
            return None
        words = f", a port of its kind {min(others)}"
    message = (
        f"{port.name} has lost its link {count} times in {days:.0f} days{words}: "
        "look at the switch's log for when, or reset the counters and look again"
    )
    measured = Measurement("link_downed", count, "times", port.name)
    return finding_on(
        ID, Verdict.WARN, measured, message, f"< {row['limit']:g} a day", row["source"], "watch"
    )


def _dated(port: Port) -> bool:
    return (port.window or 0) >= DAY * 3600


def undated(ports: Sequence[Port], told: Sequence[Finding], uptime: int | None) -> list[Finding]:
    """Skip unreported losses at unknown times that would fail if they all fell on one day."""
    most = float(limits("port_limits")["link_downs_per_day"]["fail"]["limit"])
    flagged = {finding.device for finding in told if finding.metric == "link_downed"}
    counts = {port.name: downs(port) or 0 for port in ports if not _dated(port) and port.name not in flagged}
    counts = {name: count for name, count in counts.items() if count >= most}
    if not counts:
        return []
    days = max(1.0, (uptime or 0) / (3600 * DAY))
    losses = ", ".join(f"{name} {count} times" for name, count in counts.items())
    message = (
        f"links lost since boot, {days:.0f} days ago: {losses}; it is unknown when, so this is not judged "
        "before node_health, or another run of validate, has the counters of a day ago"
    )
    return [Finding(ID, Verdict.SKIP, "node", message, "link_downed", max(counts.values()), "times")]
