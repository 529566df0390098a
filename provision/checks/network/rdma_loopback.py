"""Each network card writes to itself, out of the host's memory and out of a GPU's: no cable takes part, so a
low rate is the card, its slot or the way from the GPU. Cheap, and what finds most at a build-out.

Four queue pairs, for one alone may not fill a fast link on a healthy card. What GPU memory is reached by, a
module beside the driver or DMA-BUF, does not matter as long as one of them works.
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
    18515  # perftest's own; each pair of programs gets one, so that none waits for another's to close
)

# A GPU in a PCIe 4.0 slot fills 200 Gb/s and no more: operators' limit for the A100 is 180 of 200 Gb/s. In a
# PCIe 5.0 slot it fills a port of 400 Gb/s, and with fewer lanes than 16 as much less.
_GPU_REACH = {"ampere": 200.0, "ada": 200.0, "cdna2": 200.0}
_FULL_REACH = 400.0

# Runs of a healthy card differ by 0.04 % (SuperBench, repeatability of the HCA loopback): 5 % is no noise.
_PEER_TOLERANCE = 0.05


@dataclass(frozen=True)
class GpuMemory:
    """How perftest is given the memory of one vendor's GPUs. `words`: what it is told besides to take that of
    the GPU of this number, and its environment. `unsupported`: what it says where it was built without
    `needs`, `refused`: where a card may not reach GPU memory, for which `why` says what is missing.
    `left_out`: why this node's GPUs are not taken, empty where they are; `another`: what is wrong with the
    GPU that was taken, going by the output, in place of the one of this number."""

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
    """An RDMA port that can be measured. `name`: mlx5_0, with its port when that is not the first."""

    device: str
    port: str
    rate: float

    @property
    def name(self) -> str:
        return self.device if self.port == "1" else f"{self.device}/{self.port}"


def _ports(node: CheckNode) -> tuple[list[_Port], list[str]]:
    """The ports that are up, and the names of those that are not. Raises ParseError."""
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
            return []  # `parse` says so
        found: list[Command] = []
        for port in ports:
            found += _pair(node, port, f"{port.name}.host", (), {}, _FIRST_PORT + len(found))
            if not self.memory.left_out(node):
                words, env = self.memory.words(node, _nearest_gpu(node, port.device))
                found += _pair(node, port, f"{port.name}.gpu", words, env, _FIRST_PORT + len(found))
        return found

    def parse(self, node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
        """Each port → `rate` of its link, `host` and `gpu` bandwidth in Gb/s and both as a share of it in %
        (of what the GPU's slot carries, where that is less).

        `gpu` is "unsupported" when the tool was built without what takes GPU memory, "refused" when the card
        may not reach it. A port that is down is the measurement `down`, a run that failed `host_failed` or
        `gpu_failed` with the tool's words. Raises ParseError.
        """
        up, down = _ports(node)
        found = [Measurement("down", True, "", name) for name in down]
        for port in up:
            found.append(Measurement("rate", port.rate, "Gb/s", port.name))
            found += _measured(port, "host", completed(outputs, f"{port.name}.host"), port.rate)
            if not self.memory.left_out(node):
                found += self._of_gpu(node, port, completed(outputs, f"{port.name}.gpu"))
        return found

    def _of_gpu(self, node: CheckNode, port: _Port, output: Output) -> list[Measurement]:
        gpu = _nearest_gpu(node, port.device)
        text = f"{output.stdout}\n{output.stderr}"
        if self.memory.unsupported.search(text):
            found = [Measurement("gpu", "unsupported", "", port.name)]
        elif self.memory.refused.search(text):
            found = [Measurement("gpu", "refused", "", port.name)]
        elif why := self.memory.another(node, gpu, text):
            found = [Measurement("gpu_failed", why, "", port.name)]
        else:
            found = _measured(port, "gpu", output, min(port.rate, gpu_reach(node)))
        return [*found, Measurement("memory_of", f"gpu{gpu}", "", port.name)]

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
        # A card that is slow anyway is not accused once more for its way to the GPUs.
        slow = {finding.device for finding in host if finding.verdict in (Verdict.FAIL, Verdict.ERROR)}
        return findings + host + self._judge_gpu(up, slow, thresholds)

    def _judge_gpu(
        self,
        ports: Mapping[str, Mapping[str, Measurement]],
        slow: Iterable[str],
        thresholds: Mapping[str, Threshold],
    ) -> list[Finding]:
        said = {name: values["gpu"].value for name, values in ports.items() if "gpu" in values}
        if said and set(said.values()) == {"unsupported"}:
            reason = (
                f"ib_write_bw was built without {self.memory.needs}: the way from GPU memory is not measured"
            )
            return [Finding(ID, Verdict.SKIP, "node", reason, "gpu")]
        refused = sorted(name for name, value in said.items() if value == "refused")
        able = {
            name: ports[name]
            for name in ports
            if name not in refused and name not in slow and said.get(name) != "unsupported"
        }
        return [
            *self._contradicted(name for name, value in said.items() if value == "unsupported"),
            *self._refused(refused, ports),
            *_failed("gpu", able),
            *_judge_memory("gpu", able, thresholds),
        ]

    def _contradicted(self, names: Iterable[str]) -> list[Finding]:
        """It is one program for all cards: what it can do on one, it is not built without on another."""
        needs = self.memory.needs
        message = (
            f"{_WORDS['gpu']}: ib_write_bw reports that it was built without {needs}, but used {needs} on "
            "other cards"
        )
        return [unmeasured(ID, message, device=name) for name in names]

    def _refused(self, refused: Sequence[str], ports: Mapping[str, Any]) -> list[Finding]:
        """Cards that cannot reach GPU memory: all of them is a matter of modules, one alone of that card."""
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
    """Client and server of one run."""
    argv = (*perftest.argv(node, port.device, port.port, number), *more)
    env = {**BUS_ORDER, **env}
    return [
        Command(name, (*argv, "localhost"), 60.0, env=env),
        Command(f"{name}.server", argv, 90.0, env=env, beside=name, port=number),
    ]


def _nearest_gpu(node: CheckNode, device: str) -> int:
    """The GPU whose PCI address is closest to the card's: boards put both below one PCIe switch."""
    gpus = [_place(str(address)) for address in node.variables.get("gpuprov_pci_addresses") or ()]
    cards = node.facts.get("firmware.rdma")
    for card in cards if isinstance(cards, list) else ():
        if isinstance(card, Mapping) and card.get("device") == device and gpus:
            domain, bus = _place(str(card.get("address") or ""))
            return min(range(len(gpus)), key=lambda at: (gpus[at][0] != domain, abs(gpus[at][1] - bus)))
    return 0


def _place(address: str) -> tuple[int, int]:
    """(domain, bus) of `0000:1b:00.0`; zeros for what is no address."""
    match = re.match(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):", address)
    return (int(match[1], 16), int(match[2], 16)) if match else (0, 0)


def gpu_reach(node: CheckNode) -> float:
    """Gb/s that a port can be given from a GPU's memory at most: its slot may be slower than the port."""
    lanes = node.variables.get("gpuprov_pcie_width")
    reach = _GPU_REACH.get(str(node.gpuprov_node["gpu"].get("architecture")))
    if isinstance(lanes, int) and lanes < 16:
        return (reach or _FULL_REACH) * lanes / 16
    return reach or math.inf


def _measured(port: _Port, memory: str, output: Output, most: float) -> list[Measurement]:
    """Of one run, its average and as a share of the `most` there can be; or how it failed."""
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
    """Runs that ended with an error: nothing is known of that card's rate."""
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
    """One finding for each slow card; else one for all."""
    metric, what = f"{memory}_share", _WORDS[memory]
    shares = {name: values[metric] for name, values in ports.items() if metric in values}
    threshold = thresholds.get(f"{ID}.{metric}")
    behind = below_peers({name: float(m.value) for name, m in shares.items()}, _PEER_TOLERANCE)
    findings = []
    for name, share in shares.items():
        measured, rate = ports[name][memory], ports[name]["rate"]
        said = f"{what} is {measured.value:g} of {rate.value:g} Gb/s"
        if threshold is not None and float(share.value) < threshold.limit:
            message = f"{said} (limit {limit_text(threshold)}): {_BLAME[memory]}"
            limit, source, verdict = limit_text(threshold), threshold.cited, Verdict.FAIL
        elif name in behind:
            middle, shortfall = behind[name]
            message = f"{said}, {shortfall:.0%} less of its link than its peers: {_BLAME[memory]}"
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
    said = f"{what} of {len(shares)} ports: the lowest share of its link, {worst.device}'s,"
    if threshold is None:
        return by_threshold(ID, said, lowest, None, action="none")
    return by_threshold(ID, said, lowest, threshold, action="investigate")
