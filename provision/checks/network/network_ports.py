"""RDMA cards and ports at rest: their number, state, rate, error counters and routing.

Judged from facts alone. Storage and management cards (another board, or Ethernet next to InfiniBand) are not
judged. Ports that an administrator switched off are judged only if they are declared, or if no port is up.
Undeclared values are compared with the node's other ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks.check import CheckNode, Command, Measurement, Output
from provision.checks.judge import Finding, Verdict, finding_on, unmeasured
from provision.checks.network import link_losses, network_rules
from provision.checks.network.network_rules import ID as ID
from provision.checks.network.rdma_port import Port, compute_ports, entries, ports_of
from provision.checks.thresholds import Threshold
from provision.errors import ParseError
from provision.node.observe.hca import PACKETS

SUMMARY = (
    "RDMA cards and ports: count, link state, rate, PCIe width, error counters, flaps, GIDs, P_Keys, MTU"
)
FINDS = (
    "missing RDMA cards, ports down or slow, narrow slots, flaps and error counters, GIDs, P_Keys, subnet"
    " manager, MTU"
)
NEEDS: tuple[str, ...] = ()
FACTS: tuple[str, ...] = (
    *("hca.ports", "hca.counters", "hca.functions", "hca.mtus"),
    *("hca.earlier", "hca.link_downs", "firmware.rdma", "clock.uptime_s"),
)


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    return []


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:  # noqa: ARG001 - the contract
    """Return the number of cards and each port's state, rate and error counters; raise ParseError."""
    ports = ports_of(node)
    _declared_ports(node)
    _expected(node)
    chosen = _compute(node, ports)
    measurements = [
        Measurement("hcas", len({port.device for port in chosen}), "cards"),
        Measurement(
            "other_hcas", len({port.device for port in ports}) - len({p.device for p in chosen}), "cards"
        ),
    ]
    for port in chosen:
        measurements.append(Measurement("state", port.state, "", port.name))
        if port.rate is not None:
            measurements.append(Measurement("rate", port.rate, "Gb/s", port.name))
        downs = link_losses.downs(port)
        if downs is not None:
            measurements.append(Measurement("link_downed", downs, "times", port.name))
        measurements += [
            Measurement(name, count, "packets" if name in PACKETS else "errors", port.name)
            for name, count in sorted(port.errors.items())
            if name != "link_downed"
        ]
    return measurements


def judge(
    node: CheckNode,
    measurements: Sequence[Measurement],  # noqa: ARG001 - the contract
    thresholds: Mapping[str, Threshold],  # noqa: ARG001 - the contract
) -> list[Finding]:
    ports = ports_of(node)
    chosen = _compute(node, ports)
    findings = _judge_count(node, ports, chosen)
    if not chosen:
        return findings
    uptime = node.facts.get("clock.uptime_s")
    uptime = uptime if isinstance(uptime, int) and 0 <= uptime < 2**64 else None
    declared = {(str(row["device"]), str(row.get("port", 1))): row for row in _declared_ports(node)}
    for port in chosen:
        findings += _judge_port(node, port, chosen, declared.get((port.device, port.number), {}), uptime)
    findings += _judge_slots(node, chosen)
    findings += _unasked(node, chosen)
    up = [port for port in chosen if port.active]
    spare = [port for port in chosen if (port.device, port.number) not in declared]
    off = [port.name for port in spare if not port.active and port.switched_off]
    none_up = network_rules.judge_none_up(spare, bool(_expected(node))) if not up else None
    if none_up is not None:
        findings, off = [*findings, none_up], []
    if not any(finding.verdict in (Verdict.FAIL, Verdict.WARN, Verdict.ERROR) for finding in findings):
        text = f"{len(up)} port{'s' * (len(up) != 1)} up, without errors that matter"
        verdict = Verdict.PASS if up else Verdict.SKIP
        findings.append(Finding(ID, verdict, "node", text, "state", len(up), "ports"))
    findings += link_losses.undated(up, findings, uptime)
    if off:
        message = f"switched off by an administrator, not judged: {', '.join(off)}"
        findings.append(Finding(ID, Verdict.SKIP, "node", message, "state"))
    return findings


def _judge_port(
    node: CheckNode, port: Port, peers: Sequence[Port], declared: Mapping[str, Any], uptime: int | None
) -> list[Finding]:
    unread = network_rules.judge_unread(port)
    down = network_rules.judge_state(port, bool(declared))
    if down is not None:
        return [*unread, down]
    if not port.active and not unread:
        return []
    flaps = link_losses.judge_flaps(port, peers, uptime)
    counted = [
        *([flaps] if flaps else []),
        *network_rules.judge_errors(port, uptime),
        *network_rules.judge_retransmissions(port, peers),
    ]
    if not port.active:
        return [*unread, *counted]
    rate = declared.get("rate")
    one = network_rules.judge_link(port, peers, rate if isinstance(rate, int) else None)
    findings = [*unread, *([one] if one else []), *counted, *network_rules.judge_silence(port, peers)]
    if not port.link_layer:
        return findings  # the rules for routing depend on the link layer
    return [*findings, *network_rules.judge_routing(port, peers, node.variables, declared)]


def _compute(node: CheckNode, ports: Sequence[Port]) -> list[Port]:
    named = [str(row["device"]) for row in _declared_ports(node)]
    expected = _expected(node)
    return compute_ports(ports, named or (expected if isinstance(expected, list) else ()))


def _declared_ports(node: CheckNode) -> list[Mapping[str, Any]]:
    rows = node.variables.get("rdma_expected_ports") or []
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) and "device" in row for row in rows):
        raise ParseError("rdma_expected_ports is not a list of ports with a device", "correct the inventory")
    return rows


def _expected(node: CheckNode) -> int | list[str] | None:
    """Return the declared number or names of cards: gpuprov_expected_nics."""
    value = node.variables.get("gpuprov_expected_nics")
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return value
    raise ParseError(
        f"gpuprov_expected_nics is {value!r:.60}", "give the number of cards, or the list of their names"
    )


def _judge_count(node: CheckNode, ports: Sequence[Port], chosen: Sequence[Port]) -> list[Finding]:
    present = {port.device for port in ports}
    findings = _without_driver(node, present)
    devices = {port.device for port in chosen}
    expected = _expected(node)
    named = [str(row["device"]) for row in _declared_ports(node)]
    names = expected if isinstance(expected, list) else named
    source = "rdma_expected_ports" if names is named and named else "gpuprov_expected_nics"
    for name in sorted(set(names) - present):
        message = f"the RDMA card {name} is not there"
        findings.append(
            Finding(ID, Verdict.FAIL, name, message, "hcas", 0, "cards", "= 1", source, network_rules.CABLE)
        )
    lost = len(findings)  # with a known position
    if isinstance(expected, int) and len(devices) + lost != expected:
        message = f"{len(devices)} of {expected} RDMA cards"
        few = len(devices) < expected
        verdict, action = (
            (Verdict.FAIL, network_rules.CABLE) if few else (Verdict.WARN, network_rules.CONFIGURE)
        )
        measured, limit = Measurement("hcas", len(devices), "cards"), f"= {expected} cards"
        has = (f"there: {', '.join(sorted(devices)) or 'none'}",)
        findings.append(
            finding_on(ID, verdict, measured, message, limit, "gpuprov_expected_nics", action, has)
        )
    if findings:
        return findings
    if expected is not None or named:
        words = f"{len(devices)} RDMA card{'s' * (len(devices) != 1)}, as declared"
        return [Finding(ID, Verdict.PASS, "node", words, "hcas", len(devices), "cards", source=source)]
    if not devices:
        return [Finding(ID, Verdict.SKIP, "node", "no RDMA card, and none is declared", "hcas", 0, "cards")]
    words = (
        f"{len(devices)} RDMA card{'s' * (len(devices) != 1)}; the number is not compared, "
        "for none is declared (gpuprov_expected_nics)"
    )
    return [Finding(ID, Verdict.SKIP, "node", words, "hcas", len(devices), "cards")]


def _without_driver(node: CheckNode, there: set[str]) -> list[Finding]:
    """Fail cards on the PCI bus without an RDMA device although cards of the same kind have one."""
    rows = _cards(node, "hca.functions")
    working = {
        (row.get("device_id"), row.get("link_width_max")) for row in rows if row.get("device") in there
    }
    return [
        Finding(
            ID,
            Verdict.FAIL,
            f"hca@{row.get('address')}",
            f"the card at {row.get('address')} is on the PCI bus without RDMA: its driver gave it up",
            "hcas",
            action="investigate",
        )
        for row in rows
        if row.get("device") not in there and (row.get("device_id"), row.get("link_width_max")) in working
    ]


def _judge_slots(node: CheckNode, chosen: Sequence[Port]) -> list[Finding]:
    """Judge the PCIe lanes of each card by cards of the same board: a narrow slot may be by design."""
    rows = _cards(node, "firmware.rdma")
    devices = {port.device for port in chosen}
    slots = {str(row.get("device")): row for row in rows if row.get("device") in devices}
    findings = []
    for name, row in sorted(slots.items()):
        width, most = row.get("link_width"), row.get("link_width_max")
        same = [one.get("link_width") for one in slots.values() if one.get("board_id") == row.get("board_id")]
        best = max((value for value in same if isinstance(value, int)), default=0)
        if isinstance(width, int) and isinstance(most, int) and 0 < width < min(most, best):
            message = f"{name} is connected with {width} PCIe lanes, others like it with {best}"
            measured, limit = Measurement("pcie_width", width, "lanes", name), f"≥ {best} lanes"
            source, action = "the node's other cards of this board", network_rules.CABLE
            findings.append(finding_on(ID, Verdict.FAIL, measured, message, limit, source, action))
    return findings


def _cards(node: CheckNode, name: str) -> list[Mapping[str, Any]]:
    """Return a fact with an entry per card, or nothing if unreadable, which `_unasked` reports."""
    try:
        return entries(node, name)
    except ParseError:
        return []


def _unasked(node: CheckNode, chosen: Sequence[Port]) -> list[Finding]:
    """Report unreadable cards, lanes and declared MTU as errors."""
    findings = []
    for name in ("hca.functions", "firmware.rdma"):
        try:
            entries(node, name)
        except ParseError as error:
            findings.append(unmeasured(ID, error.what))
    return findings + _unasked_mtu(node, chosen)


def _unasked_mtu(node: CheckNode, chosen: Sequence[Port]) -> list[Finding]:
    why = node.problems.get("hca.mtus")
    if not why or not any(port.active for port in chosen):
        return []
    if _declared_ports(node) and "rdma_mtu" in node.variables:
        return [unmeasured(ID, f"the MTU could not be read: {why}", action=network_rules.CONFIGURE)]
    if why.endswith("is not installed"):
        return [Finding(ID, Verdict.SKIP, "node", f"the MTU is not compared: {why}", "mtu")]
    # The kernel lists the cards but user space cannot open one: no RDMA program works on this node.
    return [unmeasured(ID, f"the MTU could not be read: {why}", action="investigate")]
