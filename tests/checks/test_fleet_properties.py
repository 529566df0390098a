"""Invariance of a fleet's findings under host names and the order of nodes, results and inventory."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from provision.checks.check import GpuIdentity, Measurement
from provision.checks.health import CheckResult, FleetHealth, NodeHealth
from provision.checks.host import versions
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import offenders
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.pairs import write_bw
from provision.checks.pairs.pairing import Topology
from provision.runs.store import RunFolder
from provision.validate import campaign
from tests.support.fabric import RATE, Fabric, Faults
from tests.support.seed import SEED, times

pytestmark = pytest.mark.timeout(7200)

CASES = times(150, 20_000)
GPUS = 4
NAME = re.compile(r"\bh\d\dx\b")
PAIRS = write_bw.METRIC.check
RAILS = ("mlx5_0", "mlx5_1")
# (check, metric, unit, usual value) for each GPU
MEASURED = (("gpu_burn", "rate", "Gflop/s", 50_000.0), ("p2p_bandwidth", "h2d", "GB/s", 55.0))
ACTIONS = ("watch", "reset GPU", "investigate", "replace part", "fix configuration")


class Held(RunFolder):
    """In-memory run folder with everything that judging a fleet reads."""

    def __init__(self, meta: Mapping[str, Any], rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        super().__init__(Path("runs/20260504T100000.000Z-validate"))
        self._held, self._rows = dict(meta), rows

    def meta(self) -> dict[str, Any]:
        return self._held

    def read(self, name: str) -> Iterator[dict[str, Any]]:
        return map(dict, self._rows.get(name, ()))


@dataclass(frozen=True)
class Fleet:
    """Nodes with their facts and earlier runs, and the measurements between them."""

    nodes: Sequence[NodeHealth]
    seen: Mapping[str, NodeFacts]
    past: Mapping[str, Sequence[offenders.Past]]
    results: Sequence[Mapping[str, Any]]

    def judged(self) -> FleetHealth:
        names = [node.node for node in self.nodes]
        meta = {"asked": ["gpu_inventory", *([PAIRS] if self.results else [])]}
        took = {"nodes": names, "left_out": {}, "round_seconds": 30.0}
        earlier = [{"node": name, **past.record()} for name in names for past in self.past[name]]
        folder = Held({**meta, "pairs": {PAIRS: took}}, {"earlier_runs": earlier, "pairs": self.results})
        head = FleetHealth("run", "1", "inventory.yml", "", "", tuple(meta["asked"]), ())
        alone = [campaign.alone(node, self.seen[node.node], many=False) for node in self.nodes]
        return campaign.judged(folder, head, alone, self.seen)

    def otherwise(self, draw: random.Random, names: Mapping[str, str]) -> Fleet:
        """Return the same fleet in another order, with its hosts renamed."""
        nodes = [replace(node, node=names[node.node]) for node in self.nodes]
        seen = [(names[name], replace(one, node=names[name])) for name, one in self.seen.items()]
        results = [{**row, "nodes": [names[name] for name in row["nodes"]]} for row in self.results]
        for each in (nodes, seen, results):
            draw.shuffle(each)
        return Fleet(nodes, dict(seen), {names[name]: past for name, past in self.past.items()}, results)


# --- random fleets


def few(draw: random.Random, usual: Any, *others: Any) -> Any:
    """Return the usual value in three cases of four."""
    return usual if draw.random() < 0.75 else draw.choice(others)


def measured(draw: random.Random, slow: Sequence[float]) -> Iterator[CheckResult]:
    """Yield the checks of a node with GPUs slowed by these factors."""
    for check, metric, unit, usual in MEASURED:
        values = [usual * factor * draw.gauss(1, 0.004) for factor in slow]
        rows = tuple(Measurement(metric, value, unit, f"gpu{gpu}") for gpu, value in enumerate(values))
        findings = [Finding(check, Verdict.PASS, "node", "fine", metric)]
        if draw.random() < 0.2:
            verdict, gpu = draw.choice((Verdict.WARN, Verdict.FAIL)), draw.randrange(GPUS)
            action = draw.choice(ACTIONS)
            findings.append(
                Finding(check, verdict, f"gpu{gpu}", "bad", metric, 1.0, limit="= 2", action=action)
            )
        yield result(check, findings, rows)


def result(check: str, findings: Sequence[Finding], rows: Sequence[Measurement] = ()) -> CheckResult:
    verdict = max((finding.verdict for finding in findings), key=lambda one: one.badness)
    return CheckResult(check, verdict, tuple(findings), tuple(rows), 1.0)


def node(draw: random.Random, name: str, rack: str) -> tuple[NodeHealth, NodeFacts]:
    fabric = few(draw, "imex", "nvswitch")
    whole = few(draw, 1.0, 0.94, 0.9, 0.6)
    slow = [whole * few(draw, 1.0, 1.0, 0.93, 0.7) for _ in range(GPUS)]
    domain = [
        Measurement(metric, value, "", f"gpu{gpu}")
        for gpu in range(GPUS)
        for metric, value in (
            ("fabric_cluster", f"{few(draw, rack, 'ff')}bd4d4f-1f1a-4c8b-8c0e-0b5b1c5e7a11"),
            ("fabric_clique", few(draw, "1", "2")),
        )
    ]
    fine = Finding("gpu_inventory", Verdict.PASS, "node", "fine", "gpus")
    versions_fine = Finding(versions.ID, Verdict.PASS, "node", "of one version")
    checks = (
        result("gpu_inventory", [fine], domain),
        result(versions.ID, [versions_fine]),
        *measured(draw, slow),
    )
    facts = {
        **{"os.id": "debian", "os.version_id": few(draw, "13", "12"), "gpu.pci": []},
        "driver.loaded_version": few(draw, "580.126.09", "580.95.05", "570.1"),
        "kernel.release": few(draw, "6.12.1", "6.12.2", None),
        "firmware.bios_version": few(draw, "1.4b", "1.3", "1.2"),
        "firmware.gpu_vbios": [few(draw, "96.00.89", "96.00.74")] * GPUS,
        "memory.installed_gib": few(draw, 2048, 1984),
    }
    sku = few(draw, "h100-sxm", "h200-sxm")
    gpus = tuple(
        GpuIdentity(gpu, "H100", f"{name}{gpu}", f"GPU-{name}-{gpu}", f"0{gpu}") for gpu in range(GPUS)
    )
    known = {"sku": sku, "gpus": GPUS, "os": "debian 13", "boot": f"boot {draw.randrange(2)}"}
    verdict = max((check.verdict for check in checks), key=lambda one: one.badness)
    about = {
        "gpu": {"sku": sku, "count": GPUS, "fabric": fabric, "vendor": "nvidia", "architecture": "hopper"}
    }
    variables = {"gpuprov_rack": rack, **few(draw, {}, {"nvidia_driver_version": "580.95.05"})}
    return NodeHealth(name, verdict, checks, gpus, known), NodeFacts(name, facts, about, variables)


def earlier(draw: random.Random, one: NodeHealth) -> list[offenders.Past]:
    """Draw earlier runs, in some of which today's faults already occurred."""
    bad = {offenders.fault(one, finding) for check in one.checks for finding in check.wrong}
    runs = []
    for number in range(draw.randrange(4)):
        then = {name for name in bad if draw.random() < 0.6}
        runs.append(
            offenders.Past(f"run {number}", then, f"boot {draw.randrange(3)}", {"gpu_burn", "p2p_bandwidth"})
        )
    return runs


def between(draw: random.Random, names: Sequence[str], racks: Mapping[str, str]) -> list[dict[str, Any]]:
    """Draw measurements of pairs with at most two faults."""
    parts: list[tuple[str, ...]] = [("node", name) for name in names]
    parts += [("leaf", rack) for rack in set(racks.values())]
    parts += [("port", name, rail) for name in names for rail in RAILS]
    parts += [("link", *sorted((one, other))) for one in names for other in names if one < other]
    faults: Faults = {
        part: few(draw, 0.5, 0.7, None) for part in draw.sample(sorted(parts), draw.randrange(3))
    }
    fabric = Fabric(Topology(tuple(names), racks), faults, 0.01, draw.randrange(999), RAILS, RATE * 0.9)
    fabric.run()
    return [{"check": PAIRS, **asdict(one), "nodes": list(one.nodes)} for one in fabric.results]


def drawn(draw: random.Random) -> Fleet:
    names = [f"h{number:02}x" for number in range(draw.randint(3, 9))]
    racks = {name: f"0{draw.randrange(2)}" for name in names}
    made = [node(draw, name, racks[name]) for name in names]
    past = {one.node: earlier(draw, one) for one, _ in made}
    results = between(draw, names, racks) if draw.random() < 0.3 else []
    return Fleet([one for one, _ in made], {one.node: one for _, one in made}, past, results)


# --- findings, with the original names


Found = dict[str, tuple[Verdict, tuple[str, ...]]]


def found(report: FleetHealth, back: Mapping[str, str]) -> tuple[Found, list[str], list[str]]:
    """Return verdict and findings of each node, the fabric's findings, and values without a comparison."""

    def named(finding: Finding) -> str:
        hosts = sorted(back[name] for name in NAME.findall(finding.device))
        device = NAME.sub("host", finding.device)
        return " ".join(
            map(str, (finding.check, finding.verdict, device, hosts, finding.metric, finding.action))
        )

    nodes = {
        back[one.node]: (one.verdict, tuple(sorted(named(f) for check in one.checks for f in check.findings)))
        for one in report.nodes
    }
    lines = [line.partition(":")[0] for line in (*report.not_compared, *report.between)]
    return nodes, sorted(map(named, report.fabric)), sorted(lines)


def test_neither_order_nor_names_of_nodes_change_what_is_found() -> None:
    accused = escalated = fabric = 0
    for number in range(CASES):
        draw = random.Random(f"{SEED} {number}")  # noqa: S311 - drawn cases
        fleet = drawn(draw)
        names = [one.node for one in fleet.nodes]
        others = dict(
            zip(names, draw.sample([f"h{place:02}x" for place in range(99)], len(names)), strict=True)
        )
        report = fleet.judged()
        one = found(report, {name: name for name in names})
        two = found(fleet.otherwise(draw, others).judged(), {other: name for name, other in others.items()})
        assert one == two, f"case {number} of seed {SEED}"
        findings = [f for each in report.nodes for check in each.checks for f in check.findings]
        accused += any("median of" in f.message or f.metric == "rack_domain" for f in findings)
        escalated += any("came back" in f.message for f in findings)
        fabric += bool(report.fabric)
    assert min(accused, escalated, fabric) > CASES // 20, "the drawn fleets show nothing"
