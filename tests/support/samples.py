"""Sample fleets for reports: healthy, the demo's, huge, hostile, unreachable, interrupted, empty."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks.check import Measurement
from provision.checks.gpu.telemetry_rows import Series
from provision.checks.health import CheckResult, FleetHealth, GpuIdentity, NodeHealth
from provision.checks.judge import Finding, Verdict, worst
from provision.checks.pairs import groups, write_bw
from provision.checks.pairs.pairing import Result, Topology
from provision.report.causes import worst_first
from provision.report.context import Context, Load, Pairs
from tests.support.fabric import Fabric

CHECKS = ("gpu_inventory", "gpu_burn", "p2p_bandwidth", "nccl_all_reduce")
SOURCE = "Azure/azurehpc-health-checks, conf/nd96isr_h100_v5.conf (May 2026)"

BAD_GPU_SERIAL = "1652823055005"
BURN = Finding(
    "gpu_burn",
    Verdict.FAIL,
    "gpu5",
    "gpu5 computed 12843 wrong results in 60 s",
    metric="errors",
    value=12843,
    limit="= 0",
    source="any wrong result is a defect: gpu_burn compares every result bit by bit",
    action="replace part",
    evidence=(
        "100.0%  proc'd: 13455 (51980 Gflop/s)   errors: 0  errors: 12843 (WARNING!)   temps: 62 C - 78 C",
        "GPU 5: FAULTY",
    ),
)
SLOW = Finding(
    "p2p_bandwidth",
    Verdict.FAIL,
    "gpu2-gpu6",
    "write bandwidth between gpu2 and gpu6 is 61.3 GB/s (limit ≥ 335 GB/s)",
    metric="p2p_write",
    value=61.3,
    unit="GB/s",
    limit="≥ 335 GB/s",
    source=SOURCE,
    action="investigate",
    evidence=(" 2    371.02    370.87       N/A    371.10    370.95    371.00     61.30    370.99",),
)
# For `racks(16, 4)`: a leaf switch at less than half its rate, and a link at two thirds.
LEAF_AND_LINK = {("leaf", "rack-03"): 0.4, ("link", "gpu-01", "gpu-02"): 0.66}
HOSTILE = (
    "<script>document.title='pwned'</script>",
    "\x1b[2J\x1b]0;pwned\x07red\x1b[31m",
    "=cmd|' /C calc'!A0",
    "a|b|c `tick` ``two`` **bold** [x](javascript:alert(1)) <!-- --> @admin #1 https://evil.example/x",
    "long " + "A" * 100_000,
    "\u202ertl override\u202c עברית العربية",
    "nul\x00 bell\x07 \ud800 \ufffe ]]> &amp; \" '",
    "line one\nline two\r\n\t- item\n# head\n```\nfence",
    '"><img src=x onerror="document.title=\'pwned\'">',
)


def gpus(node: int, count: int = 8) -> tuple[GpuIdentity, ...]:
    return tuple(
        GpuIdentity(
            index,
            "NVIDIA H100 80GB HBM3",
            f"16528230{55000 + (node - 3) * 100 + index}",
            f"GPU-{node:08x}-0000-4000-8000-{index:012x}",
            f"00000000:{0x18 + 0x10 * index:02X}:00.0",
        )
        for index in range(count)
    )


def passed(check: str, device: str, what: str, value: float, unit: str, limit: str) -> Finding:
    return Finding(
        check,
        Verdict.PASS,
        device,
        f"{what} is {value:g} {unit} (limit {limit})",
        what,
        value,
        unit,
        limit,
        SOURCE,
    )


def checks(
    seed: int, slow: tuple[int, int] | None = None, burn: int | None = None
) -> tuple[CheckResult, ...]:
    """Return four checks of an 8-GPU node with realistic noise, optionally with a slow pair or a bad GPU."""
    noise = random.Random(seed)  # noqa: S311 - the same noise every time
    pairs = [(a, b) for a in range(8) for b in range(8) if a != b]

    def speed(a: int, b: int) -> float:
        return 61.3 if slow and {a, b} == set(slow) else round(noise.gauss(371, 1.2), 2)

    matrix = [
        Measurement(metric, speed(a, b), "GB/s", f"gpu{a}->gpu{b}")
        for metric in ("p2p_read", "p2p_write")
        for a, b in pairs
    ]
    copies = [
        Measurement(m, round(noise.gauss(55.4, 0.2), 2), "GB/s", f"gpu{g}")
        for m in ("h2d", "d2h")
        for g in range(8)
    ]
    burned = [round(noise.gauss(51900, 300)) for _ in range(8)]
    rates = [Measurement("rate", rate, "Gflop/s", f"gpu{g}") for g, rate in enumerate(burned)]
    errors = [Measurement("errors", 12843 if g == burn else 0, "", f"gpu{g}") for g in range(8)]
    inventory = [Measurement(m, v, u, f"gpu{g}") for g in range(8) for m, v, u in INVENTORY]
    burn_findings = [
        passed("gpu_burn", f"gpu{g}", "rate", burned[g], "Gflop/s", "≥ 45000 Gflop/s") for g in range(8)
    ]
    slow_findings = [passed("p2p_bandwidth", f"gpu{g}", "h2d", 55.4, "GB/s", "≥ 48 GB/s") for g in range(8)]
    return (
        result(
            "gpu_inventory", [passed("gpu_inventory", "node", "count", 8, "GPUs", "= 8 GPUs")], inventory, 2.1
        ),
        result("gpu_burn", [*burn_findings, *([BURN] if burn is not None else [])], rates + errors, 64.0),
        result("p2p_bandwidth", [*slow_findings, *([SLOW] if slow else [])], matrix + copies, 21.7),
        result(
            "nccl_all_reduce",
            [passed("nccl_all_reduce", "node", "busbw_8gpu", 478.2, "GB/s", "≥ 460 GB/s")],
            [Measurement("busbw_8gpu", 478.2, "GB/s"), Measurement("wrong", 0, "")],
            12.4,
        ),
    )


INVENTORY = (
    ("memory_total", 81559, "MiB"),
    ("pcie_width", 16, "lanes"),
    ("ecc", True, ""),
    ("throttle", "none", ""),
)


def result(
    check: str, findings: list[Finding], measurements: Sequence[Measurement], seconds: float
) -> CheckResult:
    verdict = worst(finding.verdict for finding in findings)
    return CheckResult(
        check, verdict, tuple(findings), tuple(measurements), seconds, f"raw/node/{check}.json"
    )


def node(name: str, results: tuple[CheckResult, ...], number: int = 1) -> NodeHealth:
    facts = {"os": "debian 13", "kernel": "6.12.107+deb13-amd64", "driver": "580.126.09", "sku": "h100-sxm"}
    return NodeHealth(name, worst(r.verdict for r in results), results, gpus(number), facts)


def fleet(*nodes: NodeHealth, asked: tuple[str, ...] = CHECKS, interrupted: bool = False) -> FleetHealth:
    return FleetHealth(
        run_id="20260504T100000Z-validate",
        gpuprov_version="0.1.0",
        inventory="/srv/fleet/inventory.yml",
        started="2026-05-04T10:00:00+00:00",
        finished="2026-05-04T10:04:12+00:00",
        asked=asked,
        nodes=nodes,
        interrupted=interrupted,
    )


def healthy() -> FleetHealth:
    return fleet(*(node(f"gpu-{i:02d}", checks(i), i) for i in (1, 2, 3)))


def demo() -> FleetHealth:
    """Return two healthy nodes, and gpu-03 with a failed burn on gpu5 and a slow pair gpu2-gpu6."""
    good = [node(f"gpu-{i:02d}", checks(i), i) for i in (1, 2)]
    return fleet(*good, node("gpu-03", checks(3, slow=(2, 6), burn=5), 3))


LINK = Finding(
    "pair_bandwidth",
    Verdict.FAIL,
    "link gpu-01-gpu-03/rail mlx5_2",
    "link gpu-01-gpu-03/rail mlx5_2 is slow: 2 measurements of this pair bad, and both ends pass with others",
    metric="fabric",
    action="reseat or check cable",
    evidence=("gpu-01 and gpu-03 on rail mlx5_2 in round 1: 150 Gb/s, limit 360 Gb/s",),
)


def between() -> FleetHealth:
    """Return three healthy nodes with a slow link between two of them."""
    warning = dataclasses.replace(
        LINK,
        verdict=Verdict.WARN,
        device="node",
        message="it is at link gpu-01-gpu-03/rail mlx5_2, which is slow",
        evidence=(),
    )
    fine = Finding(
        "pair_bandwidth", Verdict.PASS, "node", "passes with 2 other nodes", "pairs", 394.0, "Gb/s"
    )
    nodes = []
    for name in ("gpu-01", "gpu-02", "gpu-03"):
        others = [other for other in ("gpu-01", "gpu-02", "gpu-03") if other != name]
        rows = [
            Measurement("bandwidth", 394.0, "Gb/s", f"mlx5_{rail}->{other} round {number}")
            for number, other in enumerate(others, 1)
            for rail in range(4)
        ]
        found = fine if name == "gpu-02" else warning
        nodes.append(node(name, (result("pair_bandwidth", [found], rows, 0.0),), int(name[-2:])))
    return dataclasses.replace(fleet(*nodes, asked=("pair_bandwidth",)), fabric=(LINK,))


def silent(name: str, why: str = "ssh: connect to 10.0.3.44 port 22: timed out after 10 s") -> NodeHealth:
    return NodeHealth(name, Verdict.ERROR, (), error=why, unreachable=True)


def unmeasured() -> FleetHealth:
    """Return all kinds of missing results: unreachable, hung, garbage, never ran, inapplicable, no limit."""
    hung = Finding(
        "gpu_burn", Verdict.ERROR, "node", "gpu_burn did not end within 180 s and was killed", action="reboot"
    )
    garbage = Finding(
        "p2p_bandwidth", Verdict.ERROR, "node", "nvbandwidth printed a table that ends in row 3",
        action="run again",
        evidence=("memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)", " 0 \x1b[31m55.4"),
    )  # fmt: skip
    absent = Finding("nccl_all_reduce", Verdict.SKIP, "node", "one GPU: there is nobody to reduce with")
    nolimit = Finding(
        "nccl_all_reduce", Verdict.WARN, "node",
        "busbw_8gpu is 480.1 GB/s, but no limit is known for this GPU",
        metric="busbw_8gpu", value=480.1, unit="GB/s", action="fix configuration",
    )  # fmt: skip
    good = checks(1)
    return fleet(
        silent("gpu-07"),
        silent("gpu-08"),
        node("gpu-01", (good[0], result("gpu_burn", [hung], [], 180.0), good[2], good[3])),
        node("gpu-02", (good[0], good[1], result("p2p_bandwidth", [garbage], [], 3.0), good[3])),
        dataclasses.replace(node("gpu-03", good[:3]), verdict=Verdict.ERROR),
        node("gpu-04", (*good[:3], result("nccl_all_reduce", [absent], [], 0.0))),
        node("gpu-05", (*good[:3], result("nccl_all_reduce", [nolimit], [], 9.0))),
    )


def interrupted() -> FleetHealth:
    gone = NodeHealth("gpu-02", Verdict.ERROR, (), gpus(2), error="the run was interrupted before its checks")
    return fleet(node("gpu-01", checks(1)), gone, interrupted=True)


def nothing() -> FleetHealth:
    return fleet()


def hostile() -> FleetHealth:
    """Return a fleet in which every node-controlled text is hostile; check names and verdicts are not."""
    return told(*HOSTILE)


def told(*texts: str) -> FleetHealth:
    """Return a fleet in which every field that a node controls holds one of these texts."""
    found = [
        Finding(
            "gpu_burn", Verdict.FAIL, f"gpu{i} {text[:200]}", text,
            metric=text[:50], value=text[:200], unit=text[:50],
            limit=text[:200], source=text[:200], action="replace part", evidence=(text, *text.splitlines()),
        )
        for i, text in enumerate(texts)
    ]  # fmt: skip
    rows = [
        Measurement(text[:50], text[:50], text[:50], f"{text[:50]}{a}->{text[:50]}{b}")
        for text in texts
        for a, b in ((0, 1), (1, 0))
    ]
    rows.append(Measurement("rate", float("nan"), "GB/s", "gpu0->gpu1"))
    nodes = []
    for number, text in enumerate(texts):
        identity = tuple(GpuIdentity(i, text, text[:99], text[:99], text[:99]) for i in range(2))
        facts = {text[:80]: text, "sku": text, "driver": text}
        results = (CheckResult("gpu_burn", Verdict.FAIL, tuple(found), tuple(rows), 1.0, text[:200]),)
        nodes.append(NodeHealth(f"n{number}-{text[:60]}", Verdict.FAIL, results, identity, facts))
        nodes.append(NodeHealth(f"u{number}-{text[:60]}", Verdict.ERROR, (), error=text, unreachable=True))
    return fleet(*nodes, asked=("gpu_burn",))


def series(seed: int, hot: int | None = None, gpu_count: int = 8) -> dict[str, Series]:
    """Return two minutes of load sampled every two seconds; GPU `hot` overheats and is throttled."""
    noise = random.Random(seed)  # noqa: S311 - the same noise every time
    found = {}
    for gpu in range(gpu_count):
        one = Series()
        for second in range(0, 120, 2):
            warm = 1 - math.exp(-second / 15)
            heat = 32 + (34 + 16 * (gpu == hot)) * warm + 3 * (gpu > 3) + noise.gauss(0, 0.5)
            held = gpu == hot and heat > 78
            one.seconds.append(second + 0.1 * gpu)
            one.temperatures.append(round(heat))
            one.powers.append(round(noise.gauss(530 if held else 690, 4) if second > 2 else 120, 2))
            one.clocks.append(15 * round(noise.gauss(1410 if held else 1830, 5) / 15))
        found[f"gpu{gpu}"] = one
    return found


def context(fleet: FleetHealth, most: int = 16, not_read: tuple[str, ...] = ()) -> Context:
    """Return the rest of a run folder: the load of the worst nodes, with gpu5 hot if its burn failed."""
    loads = {}
    for number, node in enumerate(worst_first(fleet)[:most]):
        burnt = any(f is BURN for check in node.checks for f in check.findings)
        load = Load("gpu_burn", f"raw/{node.node}/gpu_burn.json", series(number, 5 if burnt else None))
        loads[node.node] = (load,)
    return Context(loads=loads, not_read=not_read)


def large(count: int = 1000, red: int = 40) -> FleetHealth:
    """Return many nodes with few failures: most from one shared cause, some with separate causes."""
    fabric = Finding(
        "gpu_inventory", Verdict.FAIL, "node", "fabric manager is not running", metric="fabric_state",
        value="In Progress", limit="= Completed", source="NVIDIA Fabric Manager user guide",
        action="fix configuration",
    )  # fmt: skip
    nodes = []
    good, burnt = checks(1), checks(2, burn=5)  # the same measurements on all: only their number matters
    width = len(str(count))
    for number in range(1, count + 1):
        name = f"gpu-{number:0{width}d}"
        every = count // red if red else 0
        if every and number % (every * 4) == 0:
            nodes.append(node(name, burnt, number))
        elif every and number % every == 0:
            nodes.append(node(name, (result("gpu_inventory", [fabric], [], 2.0), *good[1:]), number))
        else:
            nodes.append(node(name, good, number))
    return fleet(*nodes)


def wide(count: int, findings: int) -> FleetHealth:
    """Return `count` nodes with `findings` each, and a failure on one node in 25, to measure cost."""
    nodes = []
    for number in range(count):
        results = []
        for check in CHECKS:
            rows = [
                passed(check, f"gpu{g % 8}", f"metric{g}", 371.0 + g, "GB/s", "≥ 335 GB/s")
                for g in range(findings // 4)
            ]
            if number % 25 == 0 and check == "gpu_burn":
                rows[0] = dataclasses.replace(BURN, device=f"gpu{number % 8}")
            results.append(result(check, rows, [], 10.0))
        nodes.append(node(f"gpu-{number:05d}", tuple(results), number))
    return fleet(*nodes)


def measured(
    fleet: Topology, faults: Mapping[tuple[str, ...], float | None], rails: int = 4, **more: Any
) -> tuple[Result, ...]:
    """Return ib_write_bw's results for all rounds between these nodes with 400 Gb/s rails.
    The faults are those of tests/support/fabric.py."""
    names = tuple(f"mlx5_{rail}" for rail in range(rails))
    fabric = Fabric(fleet, dict(faults), rails=names, expected=48.0 * 0.9, **more)
    fabric.run()
    return tuple(
        dataclasses.replace(
            one, unit="Gb/s", value=one.value and one.value * 8, expected=one.expected and one.expected * 8
        )
        for one in fabric.results
    )


def with_pairs(fleet: FleetHealth, pairs: Pairs) -> FleetHealth:
    """Return the same nodes with the findings from their pairs added."""
    checks, fabric, told = groups.judged_pairs(pairs.fleet, pairs.results, write_bw.METRIC)
    nodes = []
    for one in fleet.nodes:
        check = checks.get(one.node)
        found = () if check is None else (check,)
        verdict = worst([one.verdict, *(each.verdict for each in found)])
        nodes.append(dataclasses.replace(one, checks=(*one.checks, *found), verdict=verdict))
    asked = (*fleet.asked, pairs.check)
    return dataclasses.replace(fleet, nodes=tuple(nodes), asked=asked, fabric=fabric, between=told)


def racks(count: int, size: int) -> Topology:
    """Return `count` nodes gpu-01, … in racks rack-01, … of `size` nodes each."""
    names = tuple(f"gpu-{number:0{len(str(count))}d}" for number in range(1, count + 1))
    return Topology(names, {name: f"rack-{place // size + 1:02d}" for place, name in enumerate(names)})


def clustered(
    count: int = 16, size: int = 4, faults: Mapping[tuple[str, ...], float | None] = LEAF_AND_LINK
) -> tuple[FleetHealth, Context]:
    """Return a fleet with a slow GPU pair on one node, faults between nodes, and the load of the worst."""
    topology = racks(count, size)
    good, slow = checks(1), checks(3, slow=(2, 6), burn=5)
    names = enumerate(topology.nodes, 1)
    pairs = Pairs("pair_bandwidth", "Gb/s", topology, measured(topology, faults))
    nodes = [node(name, slow if number == 3 else good, number) for number, name in names]
    found = with_pairs(fleet(*nodes), pairs)
    return found, dataclasses.replace(context(found), pairs=(pairs,))
