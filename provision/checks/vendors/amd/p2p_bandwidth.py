"""p2p_bandwidth of AMD's GPUs: copies between host and GPUs and among the GPUs, by TransferBench.

In one run the source's GPU writes (p2p_write, d2h), in the other the destination's reads (p2p_read, h2d): the
copy is always done by a GPU; a CPU copy would measure the CPU. Each run is made twice and the better rate of
a pair counts: in AMD's published run of eight healthy MI350X, one pair of 56 was once 19 % slower. With both
directions at once each pair is measured twice in one run, and the better sum counts. All copies at once
differ by a third on a healthy MI300X, so only their average is judged, as AMD does.

The GPUs have no switch between them. Pairs with the same number of xGMI links are equally fast, and are
compared. Data of a pair without a link passes other GPUs or the CPU, at a rate that depends on the route, so
it is recorded but not judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks.check import CheckNode, Command, Measurement, Output
from provision.checks.gpu.p2p_bandwidth import ID as ID
from provision.checks.gpu.p2p_bandwidth import WORDS, Slow, accuse, cell_of, judge_host, no_limit, passed
from provision.checks.judge import Finding, Verdict, below_peers, by_threshold, limit_text, number
from provision.checks.suspects import Cell, explain
from provision.checks.thresholds import Threshold
from provision.checks.vendors.amd import devices, transferbench
from provision.text import many

SUMMARY = "copy bandwidth host to GPU, GPU to host and between all GPUs; the slow pair or GPU is named"
NEEDS: tuple[str, ...] = transferbench.NEEDS
FACTS: tuple[str, ...] = ("amdgpu.devices", "amdgpu.rocm")

_SIZE = "64M"  # as in AMD's published figures
_RUNS = {"transferbench_write": False, "transferbench_read": True}
_AGAIN = "_again"
_HOST = {"h2d": True, "d2h": False}  # metric → the destination's GPU reads
_PEER = {"p2p_read": True, "p2p_write": False}
_BOTH, _ALL = "p2p_both_ways", "all_to_all"
# Pairs with one link differ by 2 or 3 % (AMD's run of eight MI300X); 15 % less means that a link lost lanes
# or retransmits.
_TOLERANCE = 0.15
_LINKS = "links"
_TITLES = {**WORDS, _BOTH: "two-way P2P", _ALL: "the average rate of all copies at once"}


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    if devices.partitioned(node):
        return []
    deadline = 120.0 + 5.0 * node.gpu_count**2  # the number of pairs grows with the square
    return [
        transferbench.topology(node),
        *(
            transferbench.command(node, name + again, _SIZE, deadline, reads=reads)
            for again in ("", _AGAIN)
            for name, reads in _RUNS.items()
        ),
        transferbench.command(node, _BOTH, _SIZE, deadline, reads=False, processors=False, both_ways=True),
        transferbench.command(node, _ALL, _SIZE, deadline, reads=False, preset="a2a"),
    ][: 5 if node.gpu_count < 2 else None]  # one GPU: the list of GPUs, and copies with the host


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Return rates in GB/s and links of pairs, or only `corrupt` or `partition`. Raises ParseError.

    `h2d`, `d2h` per GPU; `p2p_read`, `p2p_write` per directed pair (data flow); `p2p_both_ways` per pair; the
    node's `all_to_all`; a pair's xGMI `links` if known.
    """
    if modes := devices.partitioned(node):
        return [Measurement("partition", modes, "")]
    names = transferbench.devices(node, outputs)
    try:
        best = {reads: _best(outputs, name, names, reads=reads) for name, reads in _RUNS.items()}
        together = _together(outputs, names) if len(names) > 1 else []
    except transferbench.CorruptionError as error:
        return [Measurement("corrupt", str(error), "")]
    gpus = sorted(names.values(), key=lambda name: int(name[3:]))  # gpu10 after gpu9
    result = []
    for metric, reads in _HOST.items():
        for gpu in gpus:
            # Of the CPUs, the one next to the GPU is the fastest.
            there = (1, 0) if metric == "h2d" else (0, 1)  # positions of the GPU and the CPU in a pair
            rates = [
                rate
                for pair, rate in best[reads].items()
                if pair[there[0]] == gpu and pair[there[1]].startswith("cpu") and rate is not None
            ]
            result.append(Measurement(metric, max(rates, default="N/A"), "GB/s", gpu))
    pairs = [(one, other) for one in gpus for other in gpus if one != other]
    for metric, reads in _PEER.items():
        for pair in pairs:
            rate = best[reads][pair]
            result.append(Measurement(metric, "N/A" if rate is None else rate, "GB/s", "->".join(pair)))
    counts = devices.links(node) or {}
    # The copies all at once use direct links only, so without known links there is no average.
    result += [one for one in together if one.metric == _BOTH or any(counts.values())]
    return result + [
        Measurement(_LINKS, counts[pair], "links", "->".join(pair)) for pair in pairs if pair in counts
    ]


def _together(outputs: Mapping[str, Output], names: Mapping[str, str]) -> list[Measurement]:
    """Return copies that share links: pairs both ways, and all GPUs at once; empty for older recordings."""
    if _BOTH not in outputs:
        return []
    rates = transferbench.matrix(outputs, _BOTH, names, reads=False, both_ways=True)
    average = transferbench.all_to_all(outputs, _ALL, len(names))
    result = [Measurement(_ALL, "N/A" if average is None else average, "GB/s")]
    for one, other in sorted(rates):
        if one != other:
            twice = [rate for rate in (rates[one, other], rates[other, one]) if rate is not None]
            result.append(Measurement(_BOTH, max(twice, default="N/A"), "GB/s", f"{one}->{other}"))
    return result


def _best(
    outputs: Mapping[str, Output], name: str, names: Mapping[str, str], *, reads: bool
) -> dict[tuple[str, str], float | None]:
    """Return the better rate of each pair in two runs."""
    best: dict[tuple[str, str], float | None] = {}
    for again in ("", _AGAIN):
        matrix = transferbench.matrix(outputs, name + again, names, reads=reads)
        for pair, rate in matrix.items():
            previous = best.get(pair)
            best[pair] = rate if previous is None or (rate is not None and rate > previous) else previous
    return best


def judge(
    node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
) -> list[Finding]:
    first = measurements[0]
    if first.metric == "corrupt":
        return [transferbench.corruption(ID, str(first.value))]
    if first.metric == "partition":
        return devices.left_out(ID, first.value)
    findings: list[Finding] = []
    for metric in _HOST:
        measured = [m for m in measurements if m.metric == metric]
        findings += judge_host(metric, measured, thresholds.get(f"{ID}.{metric}"), "TransferBench")
    if node.gpu_count < 2:
        return [
            *findings,
            Finding(ID, Verdict.SKIP, "node", "one GPU: there is no pair to measure", "p2p_read"),
        ]
    findings += _judge_pairs(measurements, thresholds)
    average = next((one for one in measurements if one.metric == _ALL), None)
    limit = thresholds.get(f"{ID}.{_ALL}")
    # A slow pair also lowers the average, and is reported instead.
    if average and limit and not any(one.verdict is Verdict.FAIL for one in findings):
        if number(average.value) is None:
            words = "TransferBench found no two GPUs to copy between all at once, though xGMI links join them"
            return [*findings, Finding(ID, Verdict.ERROR, "node", words, _ALL, action="investigate")]
        findings.append(by_threshold(ID, _TITLES[_ALL], average, limit, action="investigate"))
    return findings


def _judge_pairs(measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]) -> list[Finding]:
    counts = {m.device: int(m.value) for m in measurements if m.metric == _LINKS}
    findings: list[Finding] = []
    slow: dict[Cell, Slow] = {}
    measured: set[Cell] = set()
    for metric in (*_PEER, _BOTH):
        values = {m.device: number(m.value) for m in measurements if m.metric == metric}
        rates = {device: value for device, value in values.items() if value is not None}
        absent = sorted(set(values) - set(rates))
        if absent:
            message = (
                f"no {_TITLES[metric]} was measured of {many(len(absent), 'pair')}: {', '.join(absent[:4])}"
            )
            findings.append(Finding(ID, Verdict.ERROR, "node", message, metric, action="investigate"))
        if not rates or (metric == _BOTH and not any(counts.values())):
            continue
        threshold = thresholds.get(f"{ID}.{metric}")
        joined = {device: rate for device, rate in rates.items() if counts.get(device)}
        if counts and not joined:
            device = min(rates, key=lambda name: rates[name])
            message = (
                f"no two GPUs are joined by an xGMI link: the lowest {_TITLES[metric]} bandwidth is "
                f"{rates[device]:g} GB/s ({device}), and is not judged"
            )
            findings.append(Finding(ID, Verdict.SKIP, "node", message, metric, rates[device], "GB/s"))
            continue
        measured |= {cell_of(device) for device in joined}
        worse = _slow_pairs(metric, joined, counts, threshold)
        for cell, reason in worse.items():
            if cell not in slow or (reason.value or 0) < (slow[cell].value or 0):
                slow[cell] = reason
        if not worse and not absent:
            findings.append(_all_well(metric, joined or rates, counts, threshold))
    if not counts:
        message = "which GPUs are joined by how many xGMI links is not certain: no pair was judged"
        findings.append(Finding(ID, Verdict.WARN, "node", message, _LINKS, action="investigate"))
    # A reset retrains the links.
    accused = [accuse(one.device, one.cells, slow, _TITLES, "reset GPU") for one in explain(slow, measured)]
    return accused + findings


def _slow_pairs(
    metric: str, rates: Mapping[str, float], counts: Mapping[str, int], threshold: Threshold | None
) -> dict[Cell, Slow]:
    """Return the pairs below their limit, or below the other pairs with as many links."""
    slow: dict[Cell, Slow] = {}
    groups: dict[int, dict[str, float]] = defaultdict(dict)
    for device, rate in rates.items():
        if threshold is not None and rate < threshold.limit:
            slow[cell_of(device)] = Slow(metric, rate, limit_text(threshold), threshold.cited, Verdict.FAIL)
        if device in counts:
            groups[counts[device]][device] = rate
    for count, group in groups.items():
        for device, (middle, _) in below_peers(group, _TOLERANCE).items():
            source = f"median of the node's other pairs with {many(count, 'link')}, {middle:g} GB/s"
            limit = f"≥ {(1 - _TOLERANCE) * middle:.0f} GB/s"
            slow.setdefault(cell_of(device), Slow(metric, rates[device], limit, source, Verdict.WARN))
    return slow


def _all_well(
    metric: str, rates: Mapping[str, float], counts: Mapping[str, int], threshold: Threshold | None
) -> Finding:
    device = min(rates, key=lambda name: rates[name])
    lowest = Measurement(metric, rates[device], "GB/s", device)
    what = f"{_TITLES[metric]} bandwidth" + (
        f" over {many(counts[device], 'xGMI link')}" if device in counts else ""
    )
    if threshold is None or rates[device] < threshold.limit:  # without known links the limit does not apply
        return no_limit(what, metric, lowest)
    return passed(what, metric, lowest, threshold, len(rates))
