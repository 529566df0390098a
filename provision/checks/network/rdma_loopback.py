"""Loopback of each RDMA card, from the host's memory and from a GPU's, to find slow cards and slots.

No cable takes part, so a low rate is caused by the card, its slot or the route from the GPU. The test is
cheap and finds most faults of new clusters. It uses four queue pairs, since a single one may not fill a fast
link on a healthy card. GPU memory may be reached by a module next to the driver or by DMA-BUF.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.checks.check import BUS_ORDER, CheckNode, Command, Measurement, Output, completed, last_words
from provision.checks.judge import Finding, Verdict, below_peers, by_threshold, limit_text, unmeasured
from provision.checks.network import perftest
from provision.checks.network.rdma_port import entries, rate_of
from provision.checks.thresholds import Threshold
from provision.errors import ParseError

SUMMARY = (
    "each RDMA card writes to itself, from host and from GPU memory: slow cards and lost GPUDirect are named"
)
FINDS = (
    "network cards that are slow towards themselves, from host and from GPU memory; GPUDirect RDMA that "
    "does not work"
)
NEEDS: tuple[str, ...] = ("ib_write_bw",)
FACTS: tuple[str, ...] = ("rdma.ports", "firmware.rdma", "module.nvidia_peermem.loaded")

ID = "rdma_loopback"

_FIRST_PORT = (
    18515  # perftest's own; each pair of programs has its own, so that none waits for another's to close
)

# A GPU in a PCIe 4.0 slot fills 200 Gb/s and no more: operators' limit for the A100 is 180 of 200 Gb/s. In a
# PCIe 5.0 slot it fills a port of 400 Gb/s, and proportionally less with fewer than 16 lanes.
_GPU_REACH = {"ampere": 200.0, "ada": 200.0, "cdna2": 200.0}
_FULL_REACH = 400.0

# Runs of a healthy card differ by 0.04 % (SuperBench, repeatability of the HCA loopback): 5 % is not noise.
_PEER_TOLERANCE = 0.05


@dataclass(frozen=True)
class GpuMemory:
    """Access of perftest to the memory of one vendor's GPUs.

    `words`: options and environment for the memory of the GPU with this number. `unsupported`: output of a
    program built without `needs`; `refused`: output if a card cannot reach GPU memory, because of `why`.
    `left_out`: reason to skip this node's GPUs, or empty. `another`: fault of the GPU that the output shows
    instead."""

    words: Callable[[CheckNode, int], tuple[tuple[str, ...], Mapping[str, str]]]
    unsupported: re.Pattern[str]
    refused: re.Pattern[str]
    needs: str
    why: str
    left_out: Callable[[CheckNode], str] = lambda _: ""
    another: Callable[[CheckNode, int, str], str] = lambda *_: ""


def _cuda(node: CheckNode, gpu: int) -> tuple[tuple[str, ...], Mapping[str, str]]:
    peermem = node.facts.get("module.nvidia_peermem.loaded")
    return ("--use_cuda", str(gpu), *(() if peermem else ("--use_cuda_dmabuf",))), {}


REFUSED = r"Couldn't allocate MR|failed to create mr|Failed to create MR|DMA-BUF is not supported"
CUDA = GpuMemory(
    _cuda,
    re.compile(r"unrecognized option '--use_cuda|Unsupported memory type|Invalid Command or flag"),
    re.compile(REFUSED, re.IGNORECASE),
    "CUDA",
    "neither nvidia-peermem is loaded nor DMA-BUF available",
)


@dataclass(frozen=True)
class _Port:
    """A measurable RDMA port. `name`: mlx5_0, with its port number unless that is 1."""

    device: str
    port: str
    rate: float

    @property
    def name(self) -> str:
        return self.device if self.port == "1" else f"{self.device}/{self.port}"


def _ports(node: CheckNode) -> tuple[list[_Port], list[str]]:
    """Return the active ports, and the names of the others; raise ParseError."""
    up, down = [], []
    for entry in entries(node, "rdma.ports"):
        device, number = entry.get("device"), entry.get("port")
        if not isinstance(device, str) or not isinstance(number, str):
            raise ParseError("rdma.ports: an entry without device or port", "run the check again")
        rate = rate_of(entry)
        port = _Port(device, number, rate)
        if rate:
            up.append(port)
        else:
            down.append(port.name)
    return up, down


@dataclass(frozen=True)
class Loopback:
    """The check, with the memory of one vendor's GPUs."""

    memory: GpuMemory

    def commands(self, node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG002
        try:
            ports, _ = _ports(node)
        except ParseError:
            return []  # `parse` reports it
        runs: list[Command] = []
        for port in ports:
            runs += _pair(node, port, f"{port.name}.host", (), {}, _FIRST_PORT + len(runs))
            if not self.memory.left_out(node):
                words, env = self.memory.words(node, _nearest_gpu(node, port.device))
                runs += _pair(node, port, f"{port.name}.gpu", words, env, _FIRST_PORT + len(runs))
        return runs

    def parse(self, node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
        """Parse each port's `rate`, `host` and `gpu` bandwidth in Gb/s, and both as shares of it in %.

        The share for a GPU refers to its slot's rate if that is lower. `gpu` is "unsupported" if the tool was
        built without GPU memory, "refused" if the card cannot reach it. A port that is down yields `down`, a
        failed run `host_failed` or `gpu_failed` with the tool's message. Raises ParseError.
        """
        up, down = _ports(node)
        measurements = [Measurement("down", True, "", name) for name in down]
        for port in up:
            measurements.append(Measurement("rate", port.rate, "Gb/s", port.name))
            measurements += _measured(port, "host", completed(outputs, f"{port.name}.host"), port.rate)
            if not self.memory.left_out(node):
                measurements += self._of_gpu(node, port, completed(outputs, f"{port.name}.gpu"))
        return measurements

    def _of_gpu(self, node: CheckNode, port: _Port, output: Output) -> list[Measurement]:
        gpu = _nearest_gpu(node, port.device)
        text = f"{output.stdout}\n{output.stderr}"
        if self.memory.unsupported.search(text):
            result = [Measurement("gpu", "unsupported", "", port.name)]
        elif self.memory.refused.search(text):
            result = [Measurement("gpu", "refused", "", port.name)]
        elif why := self.memory.another(node, gpu, text):
            result = [Measurement("gpu_failed", why, "", port.name)]
        else:
            result = _measured(port, "gpu", output, min(port.rate, gpu_reach(node)))
        return [*result, Measurement("memory_of", f"gpu{gpu}", "", port.name)]

    def judge(
        self, node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
    ) -> list[Finding]:
        ports: dict[str, dict[str, Measurement]] = {}
        for m in measurements:
            ports.setdefault(m.device, {})[m.metric] = m
        down = [name for name, values in ports.items() if "down" in values]
        findings = [
            Finding(ID, Verdict.SKIP, name, "its port is not active", "rate") for name in sorted(down)
        ]
        up = {name: values for name, values in ports.items() if name not in down}
        if not up:
            reason = "no port is active" if down else "no RDMA device in this node"
            return [*findings, Finding(ID, Verdict.SKIP, "node", reason, "rate")]
        host = _failed("host", up) + _judge_memory("host", up, thresholds)
        if why := self.memory.left_out(node):
            return [*findings, *host, Finding(ID, Verdict.SKIP, "node", why, "gpu")]
        # A card that is slow anyway is not reported again for its route to the GPUs.
        slow = {finding.device for finding in host if finding.verdict in (Verdict.FAIL, Verdict.ERROR)}
        return findings + host + self._judge_gpu(up, slow, thresholds)

    def _judge_gpu(
        self,
        ports: Mapping[str, Mapping[str, Measurement]],
        slow: Iterable[str],
        thresholds: Mapping[str, Threshold],
    ) -> list[Finding]:
        results = {name: values["gpu"].value for name, values in ports.items() if "gpu" in values}
        if results and set(results.values()) == {"unsupported"}:
            reason = (
                f"ib_write_bw was built without {self.memory.needs}: the way from GPU memory is not measured"
            )
            return [Finding(ID, Verdict.SKIP, "node", reason, "gpu")]
        refused = sorted(name for name, value in results.items() if value == "refused")
        able = {
            name: ports[name]
            for name in ports
            if name not in refused and name not in slow and results.get(name) != "unsupported"
        }
        return [
            *self._contradicted(name for name, value in results.items() if value == "unsupported"),
            *self._refused(refused, ports),
            *_failed("gpu", able),
            *_judge_memory("gpu", able, thresholds),
        ]

    def _contradicted(self, names: Iterable[str]) -> list[Finding]:
        """Report a program that lacks GPU support on some cards only, which is a contradiction."""
        needs = self.memory.needs
        message = (
            f"{_WORDS['gpu']}: ib_write_bw reports that it was built without {needs}, but used {needs} on "
            "other cards"
        )
        return [unmeasured(ID, message, device=name) for name in names]

    def _refused(self, refused: Sequence[str], ports: Mapping[str, Any]) -> list[Finding]:
        """Fail cards that cannot reach GPU memory: modules are at fault if all fail, else the card."""
        message = f"GPUDirect RDMA does not work: GPU memory cannot be registered, {self.memory.why}"
        devices = ["node"] if len(refused) == len(ports) else refused
        evidence = tuple(f"{name}: Couldn't allocate MR" for name in refused)
        return [
            Finding(ID, Verdict.FAIL, name, message, "gpu", action="fix configuration", evidence=evidence)
            for name in devices
            if refused
        ]


LOOPBACK = Loopback(CUDA)

commands = LOOPBACK.commands
parse = LOOPBACK.parse
judge = LOOPBACK.judge


def _pair(
    node: CheckNode, port: _Port, name: str, more: tuple[str, ...], env: Mapping[str, str], number: int
) -> list[Command]:
    """Return the commands of client and server of one run."""
    argv = (*perftest.argv(node, port.device, port.port, number), *more)
    env = {**BUS_ORDER, **env}
    return [
        Command(name, (*argv, "localhost"), 60.0, env=env),
        Command(f"{name}.server", argv, 90.0, env=env, beside=name, port=number),
    ]


def _nearest_gpu(node: CheckNode, device: str) -> int:
    """Return the GPU with the PCI address closest to the card's: boards put both below one PCIe switch."""
    gpus = [_place(str(address)) for address in node.variables.get("gpuprov_pci_addresses") or ()]
    cards = node.facts.get("firmware.rdma")
    for card in cards if isinstance(cards, list) else ():
        if isinstance(card, Mapping) and card.get("device") == device and gpus:
            domain, bus = _place(str(card.get("address") or ""))
            return min(range(len(gpus)), key=lambda at: (gpus[at][0] != domain, abs(gpus[at][1] - bus)))
    return 0


def _place(address: str) -> tuple[int, int]:
    """Parse (domain, bus) of `0000:1b:00.0`; zeros if it is not an address."""
    match = re.match(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):", address)
    return (int(match[1], 16), int(match[2], 16)) if match else (0, 0)


def gpu_reach(node: CheckNode) -> float:
    """Return the Gb/s that a port gets from GPU memory at most: its slot may be slower than the port."""
    lanes = node.variables.get("gpuprov_pcie_width")
    reach = _GPU_REACH.get(str(node.gpuprov_node["gpu"].get("architecture")))
    if isinstance(lanes, int) and lanes < 16:
        return (reach or _FULL_REACH) * lanes / 16
    return reach or math.inf


def _measured(port: _Port, memory: str, output: Output, most: float) -> list[Measurement]:
    """Return a run's average, also as a share of `most` (the highest possible), or its failure."""
    if output.rc:
        return [Measurement(f"{memory}_failed", last_words(output), "", port.name)]
    average = _average(port, output)
    share = Measurement(f"{memory}_share", round(100 * average / most, 2), "%", port.name)
    return [Measurement(memory, average, "Gb/s", port.name), share]


def _average(port: _Port, output: Output) -> float:
    if output.truncated:
        raise ParseError(f"ib_write_bw on {port.name}: the output was cut at its size limit", "run it again")
    result = perftest.parse(output.stdout)
    if (
        result.device != port.device
        or result.queue_pairs != perftest.QUEUE_PAIRS
        or perftest.SIZE not in result.average
    ):
        raise ParseError(
            f"ib_write_bw measured {result.device} with {result.queue_pairs} queue pairs, not {port.device} "
            f"with {perftest.QUEUE_PAIRS} at {perftest.SIZE} bytes",
            "report the new format",
        )
    return result.average[perftest.SIZE]


def _failed(memory: str, ports: Mapping[str, Mapping[str, Measurement]]) -> list[Finding]:
    """Report runs that ended with an error, so that the card's rate is unknown."""
    failed = {
        name: values[f"{memory}_failed"] for name, values in ports.items() if f"{memory}_failed" in values
    }
    return [
        unmeasured(ID, f"{_WORDS[memory]} failed: {m.value}", device=name, action="investigate")
        for name, m in failed.items()
    ]


_WORDS = {"host": "loopback from host memory", "gpu": "loopback from GPU memory"}
_BLAME = {
    "host": "the card or its slot, for no cable takes part",
    "gpu": "the way between card and GPU, for host memory is reached",
}
_ACTION = {"host": "reseat or check cable", "gpu": "investigate"}


def _judge_memory(
    memory: str, ports: Mapping[str, Mapping[str, Measurement]], thresholds: Mapping[str, Threshold]
) -> list[Finding]:
    """Return one finding per slow card, or one for all if none is slow."""
    metric, what = f"{memory}_share", _WORDS[memory]
    shares = {name: values[metric] for name, values in ports.items() if metric in values}
    threshold = thresholds.get(f"{ID}.{metric}")
    behind = below_peers({name: float(m.value) for name, m in shares.items()}, _PEER_TOLERANCE)
    findings = []
    for name, share in shares.items():
        measured, rate = ports[name][memory], ports[name]["rate"]
        reading = f"{what} is {measured.value:g} of {rate.value:g} Gb/s"
        if threshold is not None and float(share.value) < threshold.limit:
            message = f"{reading} (limit {limit_text(threshold)}): {_BLAME[memory]}"
            limit, source, verdict = limit_text(threshold), threshold.cited, Verdict.FAIL
        elif name in behind:
            middle, shortfall = behind[name]
            message = f"{reading}, {shortfall:.0%} less of its link than its peers: {_BLAME[memory]}"
            limit, source = (
                f"≥ {(1 - _PEER_TOLERANCE) * middle:.1f} %",
                "median of the other cards of the node",
            )
            verdict = Verdict.WARN
        else:
            continue
        value, action = share.value, _ACTION[memory]
        evidence = (str(ports[name]["memory_of"].value),) if memory == "gpu" else ()
        findings.append(
            Finding(ID, verdict, name, message, metric, value, "%", limit, source, action, evidence)
        )
    return findings or ([_all_well(metric, what, shares, threshold)] if shares else [])


def _all_well(
    metric: str, what: str, shares: Mapping[str, Measurement], threshold: Threshold | None
) -> Finding:
    worst = min(shares.values(), key=lambda m: float(m.value))
    lowest = Measurement(metric, worst.value, "%", "node")
    text = f"{what} of {len(shares)} ports: the lowest share of its link, {worst.device}'s,"
    if threshold is None:
        return by_threshold(ID, text, lowest, None, action="none")
    return by_threshold(ID, text, lowest, threshold, action="investigate")
