"""One GPU over time, compared with the median of its node's GPUs."""

from __future__ import annotations

from typing import Any

from boards import panels, promql
from boards.panels import RED, Column, Limits, Query, Words
from boards.promql import GPU, NODE, dcgm, dcgm_rate, median
from provision.checks.gpu.telemetry import ALARMS

# Devices in findings about this GPU: gpu3, and pairs with it (gpu0-gpu3).
DEVICE = f'{NODE},device=~"(.*-)?gpu$gpu(-.*)?"'
ANY = Limits(((1, RED),), "red from 1.")


def build() -> dict[str, Any]:
    return panels.board(
        "gpu",
        "gpuprov: GPU",
        "One GPU over time beside the median of its node's GPUs: what only it does is its own fault.",
        [
            *panels.racks(),
            panels.instances(several=False),
            panels.variable("gpu", "GPU", 'label_values(gpuprov_gpu_info{instance="$instance"}, gpu)'),
        ],
        {
            "What is known of it": [_identity(), _findings(), _throttled()],
            "Heat, power and speed": [
                *(_temperature(), _memory_temperature(), _power(), _clock(), _use(), _tensor()),
            ],
            "Memory": [_frame_buffer(), _rows(), _ecc()],
            "Links and errors": [_replays(), _nvlink_retries(), _nvlink_recoveries(), _xid()],
        },
        since="24h",
    )


def _beside(field: str, factor: str = "") -> list[Query]:
    """Return the queries of this GPU, and of its node's median."""
    return [
        Query(f"{dcgm(field, GPU)}{factor}", "GPU {{gpu}}"),
        Query(f"{median(dcgm(field, NODE))}{factor}", "node's median"),
    ]


def _identity() -> Any:
    words = Words(
        "This GPU",
        "one row; the serial number is the one on your list of parts.",
        "no row: it does not answer. Two rows: it was exchanged, or two GPUs changed their numbers, within "
        "the time shown.",
    )
    labels = "gpu, name, serial, pci_address, uuid"
    return panels.table(
        words,
        [Query(f"group by ({labels}) (gpuprov_gpu_info{{{GPU}}})")],
        [
            Column("gpu", "GPU", width=70),
            Column("name", "Model"),
            Column("serial", "Serial number"),
            Column("pci_address", "PCI address"),
            Column("uuid", "UUID"),
        ],
        order="GPU",
        empty="this GPU does not answer",
        width=12,
        height=5,
    )


def _findings() -> Any:
    words = Words(
        "Findings of this GPU, and of pairs with it",
        "no row.",
        "do what `Do` says. A finding of a pair (gpu0-gpu3) names two GPUs: the one with several such rows "
        "is the culprit.",
    )
    labels = "verdict, action, device, check, metric"
    return panels.table(
        words,
        [Query(f"sum by ({labels}) (gpuprov_finding{{{DEVICE}}})")],
        [
            Column("verdict", "Verdict", states=panels.WORDS, width=90),
            Column("action", "Do"),
            Column("device", "Device"),
            Column("check", "Check"),
            Column("metric", "Metric"),
        ],
        order="Verdict",
        falling=False,
        empty="no finding",
        width=12,
        height=5,
    )


def _throttled() -> Any:
    words = Words(
        "Slowed down, by reason",
        "`no` in all rows.",
        "thermal: compare its temperature with the node's median below; apart from it, the heat sink or "
        "fan, else the air. Power brake: the power supplies or the BMC. The reasons are the alarms of "
        "nvml.h; idle and the software power cap are normal, and not shown.",
    )
    queries = [Query(promql.throttled(GPU, bit), text.capitalize()) for bit, (_, text) in ALARMS.items()]
    return panels.timeline(words, queries, panels.YES_NO, height=6)


def _temperature() -> Any:
    words = Words(
        "Temperature",
        "near the node's median, below the limit.",
        "far above the median at the same power: its heat sink, paste or fan. With the median near the "
        "limit: the air. The limit is the board's own highest operating temperature.",
    )
    return panels.graph(
        words,
        [*_beside("DEV_GPU_TEMP"), Query(dcgm("DEV_GPU_MAX_OP_TEMP", GPU), "limit")],
        unit="celsius",
        floor=None,
    )


def _memory_temperature() -> Any:
    words = Words(
        "Memory temperature",
        "near the node's median.",
        "far above it with a normal GPU temperature: the contact between memory and cold plate.",
    )
    return panels.graph(words, _beside("DEV_MEMORY_TEMP"), unit="celsius", floor=None)


def _power() -> Any:
    words = Words(
        "Power",
        "near the node's median, at most the limit.",
        "far below the median in one job: it is slowed down or waits. A limit below the other GPUs' "
        "was set by somebody.",
    )
    limit = Query(dcgm("DEV_POWER_MGMT_LIMIT", GPU), "limit")
    return panels.graph(words, [*_beside("DEV_POWER_USAGE"), limit], unit="watt")


def _clock() -> Any:
    words = Words(
        "SM clock",
        "near the node's median.",
        "a tenth below it under load counts as slow in a burn-in (provision/burnin/watch.py); the reason "
        "is in the panel above.",
    )
    return panels.graph(words, _beside("DEV_SM_CLOCK", " * 1e6"), unit="hertz")


def _use() -> Any:
    words = Words(
        "Utilization",
        "near the node's median.",
        "0 while the others work: its process died. 1 with low power: it waits for others.",
    )
    return panels.graph(words, _beside("DEV_GPU_UTIL", " / 100"), unit="percentunit", ceiling=1)


def _tensor() -> Any:
    words = Words(
        "Tensor cores active",
        "near the node's median, and where it was when the same job ran well.",
        "near 0 at full utilization: kernels that wait or copy. No data: the exporter has no profiling "
        "fields, or another profiler holds the counters.",
    )
    return panels.graph(words, _beside("PROF_PIPE_TENSOR_ACTIVE"), unit="percentunit", ceiling=1)


def _frame_buffer() -> Any:
    words = Words(
        "Memory in use",
        "near the node's median in a job, near 0 without one.",
        "in use without a job: a process was left behind.",
    )
    return panels.graph(words, _beside("DEV_FB_USED", " * 1024 * 1024"), unit="bytes", width=8)


def _rows() -> Any:
    words = Words(
        "Rows remapped",
        "flat lines at 0, or at a small number.",
        "each uncorrectable error costs a row; after a failed remap the part must be replaced.",
    )
    kinds = (
        ("DEV_UNCORRECTABLE_REMAPPED_ROWS", "uncorrectable"),
        ("DEV_CORRECTABLE_REMAPPED_ROWS", "correctable"),
        ("DEV_ROW_REMAP_PENDING", "waits for a reset"),
        ("DEV_ROW_REMAP_FAILURE", "failed"),
    )
    return panels.graph(
        words, [Query(dcgm(field, GPU), text) for field, text in kinds], limits=ANY, width=8, rows=False
    )


def _ecc() -> Any:
    words = Words(
        "ECC errors since the driver was loaded",
        "no uncorrected error; corrected ones are rare.",
        "an uncorrected error ends the job that it hits, and asks for a reset of the GPU. Many corrected "
        "ones: it wears out, plan its replacement.",
    )
    kinds = (("DEV_ECC_DBE_VOL_TOTAL", "uncorrected"), ("DEV_ECC_SBE_VOL_TOTAL", "corrected"))
    return panels.graph(words, [Query(dcgm(field, GPU), text) for field, text in kinds], width=8, rows=False)


def _replays() -> Any:
    words = Words(
        "PCIe replays per second",
        "0; single ones far apart mean nothing.",
        "a rate that stays, on this GPU alone: its riser, its retimer or its slot; on all behind one "
        "switch: the switch.",
    )
    field = "DEV_PCIE_REPLAY_COUNTER"
    return panels.graph(
        words,
        [
            Query(dcgm_rate(field, GPU), "GPU {{gpu}}"),
            Query(median(dcgm_rate(field, NODE)), "node's median"),
        ],
        unit="cps",
    )


def _nvlink_retries() -> Any:
    words = Words(
        "NVLink packets sent again per second",
        "0, or far apart.",
        "on this GPU alone: its contact or the part itself; on all: the baseboard or a switch.",
    )
    return panels.graph(
        words,
        [
            Query(promql.nvlink_retries(GPU), "GPU {{gpu}}"),
            Query(median(promql.nvlink_retries(NODE)), "node's median"),
        ],
        unit="cps",
    )


def _nvlink_recoveries() -> Any:
    words = Words(
        "NVLinks that trained again, per second",
        "0.",
        "a link of this GPU went down and came back; NCCL stalls meanwhile.",
    )
    return panels.graph(words, [Query(promql.nvlink_recoveries(GPU), "GPU {{gpu}}")], unit="cps")


def _xid() -> Any:
    words = Words(
        "Last Xid",
        "none: no driver error since DCGM started.",
        "the driver's last error of this GPU and what to do about it, from provision/data/xid.yml. It "
        "stays until DCGM starts anew: the moment of the change is the moment of the error. Blue ones come "
        "from programs as a rule.",
    )
    return panels.timeline(words, [Query(dcgm("DEV_XID_ERRORS", GPU), "Xid")], panels.xids(), width=12)
