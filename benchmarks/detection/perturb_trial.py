"""Judges perturbed outputs, each of which replaces one output of a healthy simulated node.

The nodes are made once per process of the benchmark, with fixed seeds and at a fixed moment.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.detection import machine, perturb
from benchmarks.detection.cases import FLAGGED
from benchmarks.detection.machine import Machine
from benchmarks.detection.perturb import Perturbed
from benchmarks.detection.perturb_model import ERROR, HARMLESS, NAMED, Answer
from benchmarks.detection.simulator import simulator
from benchmarks.detection.trial import DECLARED, NAME, OPTIONS, OWN_LIMITS
from provision.checks.judge import Finding
from provision.checks.judging import node_judge, registry
from provision.checks.judging.node_facts import NodeFacts, node_facts_of
from provision.desired import stack

# Drivers of the branches with output formats that the simulator knows.
NODES = (
    ("h100-sxm", "580.126.09"),
    ("h100-sxm", "550.163.01"),
    ("h100-sxm", "535.261.03"),
    ("a100-sxm-80", "470.82.01"),
    ("a100-sxm-80", "525.147.05"),
    ("b200", "580.126.09"),
)
BEGAN = 1_790_000_000.0
VARIABLES = {"validation_tools_dcgm_level": 3, "validation_tools_scratch_dir": "/scratch"}
PORT = "sys/class/infiniband/{device}/ports/1"
FILES = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid", "counters/*", "pkeys/*")
DCGM3 = Path(__file__).parents[2] / "tests/fixtures/dcgm_diag/v3-healthy.json"
_PORTS = frozenset({"hca.ports", "hca.counters"})

# Surface -> (its check, the check's outputs that have this surface, its share of all numbers).
SURFACES: Mapping[str, tuple[str, str, int]] = {
    "smi_xml": ("gpu_inventory", "nvidia_smi", 260),
    "nvlink_status": ("gpu_inventory", "nvlink", 70),
    "nvlink_errors": ("gpu_inventory", "nvlink_errors", 60),
    "kernel_log": ("gpu_inventory", "dmesg", 90),
    "kernel_delta": ("gpu_burn", "kernel_log_delta", 30),
    "gpu_answers": ("p2p_bandwidth", "gpu_answers", 30),
    "telemetry": ("gpu_burn", "telemetry", 110),
    "error_counters": ("gpu_burn", "error_counters", 40),
    "gpu_burn": ("gpu_burn", "gpu_burn", 80),
    "nccl": ("nccl_", r"\w+_perf", 80),
    "ddp": ("ddp_scaling", "torch", 20),
    "nvbandwidth_p2p": ("p2p_bandwidth", "nvbandwidth", 50),
    "nvbandwidth_memory": ("memory_bandwidth", "nvbandwidth", 30),
    "dcgm4": ("dcgm_diag", "dcgmi", 40),
    "dcgm3": ("dcgm_diag", "dcgmi", 20),
    "ib_write_bw": ("rdma_loopback", r"mlx5_[0-3]\.(host|gpu)", 30),
    "rdma_port": ("network_ports", "", 20),
    "fio": ("disk_speed", "fio", 10),
    "nvme": ("host_health", r"smart_nvme\d", 20),
}


@dataclass(frozen=True)
class Sample:
    """A healthy output: node, check, output of the check, and the part that the output describes."""

    node: int
    check: str
    output: str
    part: str


class Node:
    """A healthy node with the outputs of all its checks."""

    def __init__(self, sku: str, driver: str, seed: int) -> None:
        silicon = simulator()
        silicon.world.now = BEGAN
        self.machine = Machine(sku, NAME, seed, driver=driver)
        checks = tuple(registry.select("burnin"))
        facts, problems = self.machine.observe(registry.facts_for(checks))
        self.variables = {**DECLARED, **VARIABLES}
        self.facts, self.problems = facts, problems
        self.seen = self._seen(facts, problems)
        self.limits = self.seen.limits(OWN_LIMITS)
        self.answers = {}
        for name in checks:
            commands = node_judge.commands_for(name, self.seen.check_node, OPTIONS)
            self.answers[name] = json.loads(json.dumps(self.machine.measure(commands)))

    def _seen(self, facts: Mapping[str, Any], problems: Mapping[str, str]) -> NodeFacts:
        return node_facts_of(NAME, facts, problems, stack.describe_node(facts), self.variables)

    @functools.cached_property
    def gpus(self) -> tuple[str, ...]:
        return tuple(sorted(str(one) for one in self.seen.check_node.variables["gpuprov_pci_addresses"]))

    def samples(self, number: int, surface: str) -> Iterator[Sample]:
        check, outputs, _ = SURFACES[surface]
        for name, answer in self.answers.items():
            if name != check and not (check.endswith("_") and name.startswith(check)):
                continue
            if surface == "rdma_port":
                ports = sorted((self.machine.root / "sys/class/infiniband").iterdir())
                yield from (Sample(number, name, port.name, port.name) for port in ports[:4])
            for output in answer["outputs"]:
                if re.fullmatch(outputs, output["name"]):
                    yield Sample(number, name, output["name"], _part(output["name"]))

    def healthy(self, surface: str, sample: Sample) -> Answer:
        if surface == "rdma_port":
            return Answer(json.dumps(self._files(sample.part)), 0, self.gpus)
        output = self._output(sample)
        text = DCGM3.read_text("utf-8") if surface == "dcgm3" else output["stdout"]
        return Answer(text, output["rc"], self.gpus)

    def _output(self, sample: Sample) -> dict[str, Any]:
        outputs = self.answers[sample.check]["outputs"]
        return next(one for one in outputs if one["name"] == sample.output)

    def judge(self, surface: str, sample: Sample, answer: Answer) -> tuple[str, list[Finding]]:
        """Return the check's verdict and findings for this output in place of the healthy one."""
        node, outputs = self.seen, list(self.answers[sample.check]["outputs"])
        if surface == "rdma_port":
            node = self._with_files(sample.part, json.loads(answer.text))
        else:
            at = outputs.index(self._output(sample))
            outputs[at] = {**outputs[at], "stdout": answer.text, "rc": answer.rc}
        given = {**self.answers[sample.check], "outputs": outputs}
        boot_id = str(self.facts.get("boot.id") or "")
        raw = node_judge.raw_from_answer(NAME, sample.check, given, boot_id)
        result = node_judge.judge_check(node, raw, self.limits)
        health = node_judge.judge_node(node, {sample.check: result}, [sample.check])
        return health.verdict.value, [finding for check in health.checks for finding in check.findings]

    def _files(self, device: str) -> dict[str, str]:
        folder = self.machine.root / PORT.format(device=device)
        found = {}
        for pattern in FILES:
            for path in sorted(folder.glob(pattern)):
                found[str(path.relative_to(folder))] = path.read_text()
        return found

    def _with_files(self, device: str, files: Mapping[str, str | None]) -> NodeFacts:
        folder, healthy = self.machine.root / PORT.format(device=device), self._files(device)
        changed = {name: text for name, text in files.items() if text != healthy[name]}
        try:
            for name, text in changed.items():
                (folder / name).unlink() if text is None else (folder / name).write_text(text)
            facts, problems = self.machine.observe(_PORTS)
        finally:
            for name in changed:
                (folder / name).write_text(healthy[name])
        kept = {name: fact for name, fact in self.facts.items() if name not in _PORTS}
        return self._seen({**kept, **facts}, {**self.problems, **problems})


def _part(output: str) -> str:
    """Return the card or drive that an output describes, such as `mlx5_3.host` or `smart_nvme0`."""
    return output.removeprefix("smart_").partition(".")[0] if re.match("smart_|mlx5_", output) else "node"


@functools.cache
def nodes() -> tuple[Node, ...]:
    """Return the healthy nodes of this process."""
    return tuple(Node(sku, driver, 17 + number) for number, (sku, driver) in enumerate(NODES))


@functools.cache
def samples(surface: str) -> tuple[Sample, ...]:
    return tuple(one for number, node in enumerate(nodes()) for one in node.samples(number, surface))


def chosen(count: int) -> list[tuple[str, int]]:
    """Return (surface, number) of `count` outputs by the surfaces' shares; a larger count only adds some."""
    whole = sum(share for _, _, share in SURFACES.values())
    return [
        (surface, number)
        for surface, (_, _, share) in SURFACES.items()
        for number in range(max(1, round(count * share / whole)))
    ]


def outcomes(asked: Sequence[tuple[str, int]], jobs: int) -> list[dict[str, Any]]:
    """Judge these outputs in parallel processes."""
    return list(machine.pooled(run, asked, jobs, chunksize=16))


def run(asked: tuple[str, int]) -> dict[str, Any]:
    """Draw one output, judge it and return the outcome as plain data."""
    surface, number = asked
    known = samples(surface)
    sample = known[perturb.generator("sample", surface, number).randrange(len(known))]
    node = nodes()[sample.node]
    drawn = perturb.draw(surface, number, node.healthy(surface, sample))
    verdict, findings = node.judge(surface, sample, drawn.answer)
    return {**scored(drawn, sample.part, verdict, findings), "node": " ".join(NODES[sample.node])}


def scored(drawn: Perturbed, part: str, verdict: str, findings: list[Finding]) -> dict[str, Any]:
    """Compare the check's findings with the labels."""
    said = [finding for finding in findings if finding.verdict.value in FLAGGED]
    stands = {"part": part, "port": part}
    devices = {
        label: [
            frozenset(stands.get(device, device) for device in change.devices)
            for row, change in drawn.done
            if row.label == label
        ]
        for label in (NAMED, ERROR, HARMLESS)
    }
    guilty = frozenset[str]().union(*devices[NAMED], *devices[ERROR])
    spared = frozenset[str]().union(*devices[HARMLESS]) - guilty - {"node", part}
    unnamed = [names for names in devices[NAMED] if not any(_names(finding, names) for finding in said)]
    innocent = [f for f in said if f.verdict.value == "fail" and f.device not in guilty]
    faulty = bool(devices[NAMED] or devices[ERROR])
    return {
        "surface": drawn.surface,
        "number": drawn.number,
        "name": drawn.name,
        "faults": len(devices[NAMED]),
        "errors": len(devices[ERROR]),
        "untrusted": [row.name for row, _ in drawn.done if row.label == ERROR],
        "verdict": verdict,
        "named": bool(devices[NAMED]) and not unnamed,
        "innocent": bool(innocent),
        "wrong_pass": faulty and verdict not in FLAGGED,
        "alarm": any(f.device in spared for f in said) or (not faulty and verdict in FLAGGED),
        "crash": any("gpuprov failed on this output" in f.message for f in findings),
        "findings": [f"{f.verdict.value} {f.device} [{f.action}]: {f.message}"[:220] for f in said][:6],
    }


def _names(finding: Finding, devices: frozenset[str]) -> bool:
    """Whether a finding names one of the devices; an error of the whole node names no part."""
    if finding.verdict.value == "error" and finding.device == "node":
        return False
    return finding.device in devices
