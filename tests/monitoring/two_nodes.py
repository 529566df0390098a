"""Metrics of nodes for dashboard tests: one healthy, one broken, and a controller's metrics of both.

gpuprov's own metrics are rendered by the product. DCGM's have the form of a real exporter 4 on an H100 node
with driver 580.105.08, recorded by a public project: labels gpu, UUID, pci_bus_id, device, modelName,
Hostname, DCGM_FI_DRIVER_VERSION; floats with six digits, integers without
(docs/conformance/cncf/evidence/accelerator-metrics.md of resker/aicr, a fork of NVIDIA/aicr). That recording
has four fields; the others are named as in dcgm-exporter's etc/default-counters.csv and DCGM's
dcgm_fields.h. Newer exporters write hostname (NVIDIA/dcgm-exporter 655), which no dashboard reads. The values
are invented, typical of GPUs in a burn-in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from provision.checks.exposition import Family, Sample, render

GPUS = range(8)
VERDICTS = ("pass", "skip", "warn", "error", "fail")
PCI = ("53", "64", "75", "86", "97", "A8", "B9", "CA")
SICK = 3  # the faulty GPU of the broken node


@dataclass(frozen=True)
class Found:
    """A finding as exported by the node's program."""

    check: str
    metric: str
    device: str
    verdict: str
    action: str
    serial: str = ""


@dataclass(frozen=True)
class Node:
    """The results of a node's health program."""

    name: str
    rack: str
    verdict: str
    measured: str
    checks: Mapping[str, tuple[str, float]]  # verdict, seconds
    findings: tuple[Found, ...] = ()
    pending: int = 0
    driver: str = "580.126.09"
    age: float = 20  # age of the result in seconds
    progress: float = 0.5  # of the node's burn-in
    gpus: tuple[int, ...] = field(default=tuple(GPUS))

    def serial(self, gpu: int) -> str:
        return f"16522301{'5' if self.name == 'broken' else '4'}{gpu:04}"

    def uuid(self, gpu: int) -> str:
        return f"GPU-{'b' if self.name == 'broken' else 'a'}{gpu:07}-61b5-c4a2-0b6e-6d1f8a1b2c3d"


HEALTHY = Node(
    "healthy",
    "r1",
    "pass",
    "pass",
    {
        "gpu_inventory": ("pass", 1.2),
        "versions": ("pass", 0.1),
        "host_health": ("pass", 0.4),
        "network_ports": ("pass", 0.2),
    },
)
BROKEN = Node(
    "broken",
    "r2",
    "fail",
    "error",
    {
        "gpu_inventory": ("fail", 14.5),
        "versions": ("warn", 0.3),
        "host_health": ("error", 9.0),
        "network_ports": ("fail", 0.6),
    },
    findings=(
        Found("gpu_inventory", "xid", "gpu3", "fail", "reset GPU", "1652230150003"),
        Found("gpu_inventory", "temperature", "gpu3", "warn", "investigate", "1652230150003"),
        Found("gpu_inventory", "nvlink_down", "gpu0-gpu3", "fail", "reseat or check cable"),
        Found("network_ports", "port_state", "mlx5_0", "fail", "reseat or check cable"),
        Found("host_health", "clock", "node", "error", "run again"),
        Found("versions", "vbios", "node", "warn", "fix configuration"),
    ),
    pending=2,
    driver="570.124.06",
    age=65,
    progress=0.25,
    gpus=tuple(gpu for gpu in GPUS if gpu != 6),
)
# Responds, but its program stopped an hour ago in good health, and its burn-in ended early.
SILENT = Node("silent", "r2", "pass", "pass", {"gpu_inventory": ("pass", 1.2)}, age=3600)


def one_hot(verdict: str, **labels: str) -> list[Sample]:
    return [Sample(int(each == verdict), {**labels, "verdict": each}) for each in VERDICTS]


def textfile(node: Node) -> str:
    """Return the node's gpuprov.prom, written now."""
    now = time.time()
    checks = node.checks.items()

    def gauge(name: str, *samples: Sample) -> Family:
        return Family(name, "gauge", f"{name} of a node.", samples)

    info = {
        "version": "0.9.0",
        "sku": "h100-sxm",
        "driver": node.driver,
        "os": "debian 13",
        "kernel": "6.12.57",
    }
    return render(
        [
            gauge("gpuprov_health_info", Sample(1, info)),
            gauge("gpuprov_health_verdict", *one_hot(node.verdict)),
            gauge("gpuprov_health_measured", *one_hot(node.measured)),
            gauge("gpuprov_health_run_timestamp_seconds", Sample(now - node.age)),
            gauge("gpuprov_health_run_duration_seconds", Sample(sum(took for _, (_, took) in checks))),
            gauge("gpuprov_health_interval_seconds", Sample(60)),
            gauge("gpuprov_check_verdict", *(s for c, (v, _) in checks for s in one_hot(v, check=c))),
            gauge("gpuprov_check_duration_seconds", *(Sample(t, {"check": c}) for c, (_, t) in checks)),
            gauge("gpuprov_finding", *(Sample(1, dict(vars(found))) for found in node.findings)),
            gauge("gpuprov_findings_pending", Sample(node.pending)),
            gauge("gpuprov_gpu_info", *(Sample(1, _identity(node, gpu)) for gpu in node.gpus)),
            gauge("gpuprov_burnin_running", Sample(int(node is not SILENT))),
            gauge("gpuprov_burnin_progress_ratio", Sample(node.progress)),
            gauge("gpuprov_burnin_end_timestamp_seconds", Sample(now + 86400 * (1 - node.progress))),
        ]
    )


def _identity(node: Node, gpu: int) -> dict[str, str]:
    return {
        "gpu": str(gpu),
        "name": "NVIDIA H100 80GB HBM3",
        "serial": node.serial(gpu),
        "uuid": node.uuid(gpu),
        "pci_address": f"00000000:{PCI[gpu]}:00.0",
    }


def controller(*nodes: Node) -> str:
    """Return the metrics that `gpuprov report` and `gpuprov drift` write on a controller."""
    now = time.time()
    days = {"healthy": 1, "broken": 40}
    drifted = {"healthy": 0, "broken": 3}

    def gauge(name: str, *samples: Sample) -> Family:
        return Family(name, "gauge", f"{name} of a controller.", samples)

    return render(
        [
            gauge(
                "gpuprov_validation_timestamp_seconds",
                *(Sample(now - 86400 * days[node.name], {"node": node.name}) for node in nodes),
            ),
            gauge("gpuprov_validation_verdict", *(s for n in nodes for s in one_hot(n.verdict, node=n.name))),
            gauge(
                "gpuprov_drift_timestamp_seconds",
                *(Sample(now - 3600 * days[node.name], {"node": node.name}) for node in nodes),
            ),
            gauge(
                "gpuprov_drift_expectations",
                *(
                    Sample(number, {"node": node.name, "state": state})
                    for node in nodes
                    for state, number in (
                        ("held", 190),
                        ("drifted", drifted[node.name]),
                        ("unreadable", drifted[node.name] // 2),
                    )
                ),
            ),
        ]
    )


# Values under burn-in load: on a healthy node, on the broken node, and on the broken GPU.
# A counter (in meaning: DCGM's names lack _total) grows by its value with each scrape.
GAUGES = {
    "SM_CLOCK": (1755, 1750, 1200),
    "MEM_CLOCK": (2619, 2619, 2619),
    "MEMORY_TEMP": (74, 80, 97),
    "GPU_TEMP": (61, 66, 88),
    "GPU_MAX_OP_TEMP": (87, 86, 86),
    "POWER_USAGE": (688.204, 640.75, 310.5),
    "POWER_MGMT_LIMIT": (700.0, 650.0, 650.0),
    "GPU_UTIL": (100, 99, 35),
    "FB_USED": (72000, 71000, 70000),
    "XID_ERRORS": (0, 0, 94),
    "ROW_REMAP_PENDING": (0, 0, 1),
    "ROW_REMAP_FAILURE": (0, 0, 1),
    "CLOCKS_EVENT_REASONS": (0x4, 0x80, 0x8 | 0x20 | 0x40),
}
COUNTERS = {
    "PCIE_REPLAY_COUNTER": (0, 0, 7),
    "NVLINK_REPLAY_ERROR_COUNT_TOTAL": (0, 1, 50),
    "NVLINK_RECOVERY_ERROR_COUNT_TOTAL": (0, 0, 1),
    "UNCORRECTABLE_REMAPPED_ROWS": (0, 0, 1),
    "CORRECTABLE_REMAPPED_ROWS": (0, 0, 2),
    "ECC_SBE_VOL_TOTAL": (0, 1, 9),
    "ECC_DBE_VOL_TOTAL": (0, 0, 2),
}


def dcgm(node: Node, scrapes: int) -> str:
    """Return the node's GPU metrics at its `scrapes`th scrape. GPU 6 of the broken node is lost."""
    lines: list[str] = []
    for name, values in GAUGES.items():
        lines += _field(node, f"DCGM_FI_DEV_{name}", "gauge", values, 1)
    for name, values in COUNTERS.items():
        lines += _field(node, f"DCGM_FI_DEV_{name}", "counter", values, scrapes)
    lines += _field(node, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", (0.61, 0.59, 0.02), 1)
    return "\n".join(lines) + "\n"


def _field(node: Node, name: str, kind: str, values: tuple[float, float, float], times: int) -> Iterator[str]:
    healthy, broken, sick = values
    yield f"# HELP {name} {name} as DCGM reads it."
    yield f"# TYPE {name} {kind}"
    for gpu in node.gpus:
        value = healthy if node.name != "broken" else sick if gpu == SICK else broken
        labels = (
            f'gpu="{gpu}",UUID="{node.uuid(gpu)}",pci_bus_id="00000000:{PCI[gpu]}:00.0",device="nvidia{gpu}",'
            f'modelName="NVIDIA H100 80GB HBM3",Hostname="{node.name}",DCGM_FI_DRIVER_VERSION="{node.driver}"'
        )
        shown = f"{value:.6f}" if isinstance(value, float) else str(value * times)
        yield f"{name}{{{labels}}} {shown}"
