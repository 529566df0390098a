"""One node: its faults, the actions for them, and the measurements behind them."""

from __future__ import annotations

from typing import Any

from boards import panels, promql
from boards.panels import RED, YELLOW, Column, Limits, Query, Words, link_to
from boards.promql import NODE, dcgm, dcgm_rate
from boards.rack import THROTTLED
from provision.checks.gpu.telemetry import ALARMS

GPU_LINK = link_to("gpu", instance="${instance:percentencode}", gpu="${__value.raw}")
LEGEND = "GPU {{gpu}}"
AGE = Limits(
    (((promql.INTERVALS - 1) * 60, YELLOW), (promql.INTERVALS * 60, RED)),
    f"red from {promql.INTERVALS} minutes, {promql.INTERVALS} intervals of 60 s: from there on the result "
    "does not count; yellow one interval before.",
)
DISK = Limits(
    ((0.9, YELLOW), (0.95, RED)),
    "yellow from 90 %, red from 95 %: a convention; ext4 keeps the last 5 % for root.",
)


def build() -> dict[str, Any]:
    return panels.board(
        "node",
        "gpuprov: node",
        "One node: its verdict and what to do, each check over time, its GPUs side by side, and its host.",
        [*panels.racks(), panels.instances(several=False)],
        {
            "What is wrong, and what to do": [
                *(_verdict(), _measured(), _age(), _pending(), _gpus(), _uptime()),
                *(_findings(), _checks()),
            ],
            "GPUs": [
                *(_inventory(), _throttled()),
                *(_temperatures(), _power(), _clocks(), _use(), _memory(), _xids()),
            ],
            "Links and memory errors": [_replays(), _nvlink_retries(), _nvlink_recoveries(), _rows()],
            "Host": [_durations(), _cpu(), _ram(), _disk(), _network()],
        },
        since="6h",
    )


def _verdict() -> Any:
    words = Words(
        "Verdict",
        "`pass`, or `warn`.",
        "`fail`: drain the node, and do what the findings say. `error`: a check gave no answer. `no "
        "result` and `unreachable`: nobody knows; do not give it work.",
    )
    return panels.number(words, Query(promql.state(NODE)), states=panels.VERDICTS)


def _measured() -> Any:
    words = Words(
        "Verdict of the last run alone",
        "the same as the verdict beside it.",
        "worse: a finding that was not seen often enough yet to count. Better: a fault that is gone, and "
        "must stay away for some runs before the node counts as healthy again.",
    )
    code = promql.code("gpuprov_health_measured", NODE, "instance")
    return panels.number(words, Query(code), states=panels.VERDICTS)


def _age() -> Any:
    words = Words(
        "Age of the result",
        "at most a minute or two.",
        "the health program does not run or hangs: `systemctl status gpuprov-node-health.timer` and "
        "`journalctl -u gpuprov-node-health` on the node; or its clock is wrong.",
    )
    age = f"abs(time() - max by (instance) (gpuprov_health_run_timestamp_seconds{{{NODE}}}))"
    return panels.number(words, Query(age), unit="s", limits=AGE)


def _pending() -> Any:
    words = Words(
        "Findings not counted yet",
        "0.",
        "seen, but not often enough to count: the node may turn red within minutes.",
    )
    once = Limits(((1, YELLOW),), "yellow from 1.")
    expr = f"max by (instance) (gpuprov_findings_pending{{{NODE}}})"
    return panels.number(words, Query(expr), limits=once)


def _gpus() -> Any:
    words = Words(
        "GPUs that answer",
        "as many as the node has.",
        "fewer: one fell off the bus, or its driver is gone. The finding names its address.",
    )
    expr = promql.count(f"gpuprov_gpu_info{{{NODE}}}")
    return panels.number(words, Query(expr), states={0: ("none", RED)})


def _uptime() -> Any:
    words = Words(
        "Up for",
        "since the last maintenance.",
        "shorter than you know of: it crashed or was reset; read `journalctl -b -1` and the BMC's event log.",
    )
    expr = f"max by (instance) (time() - node_boot_time_seconds{{{NODE}}})"
    return panels.number(words, Query(expr), unit="s")


def _findings() -> Any:
    words = Words(
        "Findings: the part, and what to do",
        "no row.",
        "do what `Do` says for each row, as of the last result; the full sentence, the measured value and "
        "its limit are in `/run/gpuprov/health.json` on the node.",
    )
    labels = "verdict, action, device, serial, check, metric"
    return panels.table(
        words,
        [Query(f"sum by ({labels}) (gpuprov_finding{{{NODE}}})")],
        [
            Column("verdict", "Verdict", states=panels.WORDS, width=90),
            Column("action", "Do"),
            Column("device", "Device"),
            Column("serial", "Serial number"),
            Column("check", "Check"),
            Column("metric", "Metric"),
        ],
        order="Verdict",
        falling=False,
        empty="no finding",
        height=8,
    )


def _checks() -> Any:
    words = Words(
        "Verdict of each check over time",
        "one green line per check; `skip` where the node has nothing to check.",
        "where the first line turns red is where to look first; a check that turns `error` has lost its "
        "tool or waits for a driver that hangs.",
    )
    expr = promql.code("gpuprov_check_verdict", NODE, "check")
    return panels.timeline(words, [Query(expr, "{{check}}")], panels.VERDICTS, height=7)


def _inventory() -> Any:
    words = Words(
        "GPUs of this node",
        "all of one model. Click a GPU for its own dashboard.",
        "a row is missing: that GPU does not answer. A serial number that you do not expect: a part was "
        "exchanged.",
    )
    labels = "gpu, name, serial, pci_address, uuid"
    return panels.table(
        words,
        [Query(f"group by ({labels}) (gpuprov_gpu_info{{{NODE}}})")],
        [
            Column("gpu", "GPU", link=GPU_LINK, width=70),
            Column("name", "Model"),
            Column("serial", "Serial number"),
            Column("pci_address", "PCI address"),
            Column("uuid", "UUID"),
        ],
        order="GPU",
        falling=False,
        empty="no GPU answers",
        width=14,
    )


def _throttled() -> Any:
    words = Words(
        "GPUs that heat or power slow down, by reason",
        "0 for all reasons.",
        "thermal: fans, filters, heat sinks, the air of the rack. Power brake: power supplies or BMC. "
        "Hardware slowdown alone is the umbrella over the two.",
    )
    queries = [
        Query(f"sum({promql.throttled(NODE, bit)})", text.capitalize()) for bit, (_, text) in ALARMS.items()
    ]
    return panels.graph(words, queries, limits=THROTTLED, width=10, height=9)


def _temperatures() -> Any:
    words = Words(
        "GPU temperatures",
        "lines close together, well below the limit.",
        "one line apart: its heat sink or fan. All near the limit: the air. At the limit the GPU slows "
        "down. The limit is the board's own highest operating temperature.",
    )
    limit = f"min by (instance) ({dcgm('DEV_GPU_MAX_OP_TEMP', NODE)})"
    return panels.graph(
        words,
        [Query(dcgm("DEV_GPU_TEMP", NODE), LEGEND), Query(limit, "limit")],
        unit="celsius",
        floor=None,
    )


def _power() -> Any:
    words = Words(
        "GPU power",
        "lines close together under load, at or below the limit.",
        "one GPU draws much less than the others in one job: it waits, is slowed down, or is sick. The "
        "limit is the one that is set.",
    )
    limit = f"min by (instance) ({dcgm('DEV_POWER_MGMT_LIMIT', NODE)})"
    return panels.graph(
        words, [Query(dcgm("DEV_POWER_USAGE", NODE), LEGEND), Query(limit, "limit")], unit="watt"
    )


def _clocks() -> Any:
    words = Words(
        "SM clocks",
        "lines close together under load.",
        "one GPU below the others slows down the whole job: see which reason the panel above shows.",
    )
    expr = f"{dcgm('DEV_SM_CLOCK', NODE)} * 1e6"
    return panels.graph(words, [Query(expr, LEGEND)], unit="hertz")


def _use() -> Any:
    words = Words(
        "GPU utilization",
        "all GPUs of a job alike.",
        "1 at low power means that kernels wait, most often for NCCL: look at the other nodes of the job. "
        "0 on one GPU only: its process died.",
    )
    expr = f"{dcgm('DEV_GPU_UTIL', NODE)} / 100"
    return panels.graph(words, [Query(expr, LEGEND)], unit="percentunit", ceiling=1)


def _memory() -> Any:
    words = Words(
        "GPU memory in use",
        "near 0 without a job.",
        "memory in use and no job: a process that was left behind; `nvidia-smi` names it.",
    )
    expr = f"{dcgm('DEV_FB_USED', NODE)} * 1024 * 1024"
    return panels.graph(words, [Query(expr, LEGEND)], unit="bytes")


def _xids() -> Any:
    words = Words(
        "Last Xid of each GPU",
        "none: no driver error since DCGM started.",
        "the driver's last error of that GPU and what to do about it, from provision/data/xid.yml. It "
        "stays until DCGM starts anew: the moment of the change is the moment of the error. Blue ones come "
        "from programs as a rule.",
    )
    return panels.timeline(words, [Query(dcgm("DEV_XID_ERRORS", NODE), LEGEND)], panels.xids(), width=12)


def _replays() -> Any:
    words = Words(
        "PCIe replays per second",
        "0; single ones far apart mean nothing.",
        "a rate that stays: a riser, a cable, a retimer or the slot. It costs bandwidth to the host and "
        "the network cards before anything fails.",
    )
    return panels.graph(words, [Query(dcgm_rate("DEV_PCIE_REPLAY_COUNTER", NODE), LEGEND)], unit="cps")


def _nvlink_retries() -> Any:
    words = Words(
        "NVLink packets sent again per second",
        "0, or far apart.",
        "a rate that stays slows down every collective of this node: contact, baseboard, or (NVL72) a cable.",
    )
    return panels.graph(words, [Query(promql.nvlink_retries(NODE), LEGEND)], unit="cps")


def _nvlink_recoveries() -> Any:
    words = Words(
        "NVLinks that trained again, per second",
        "0.",
        "a link went down and came back: NCCL stalls meanwhile, and the next time it may stay down.",
    )
    return panels.graph(words, [Query(promql.nvlink_recoveries(NODE), LEGEND)], unit="cps")


def _rows() -> Any:
    words = Words(
        "Memory: rows remapped, and failures of it",
        "flat lines at 0, or at a small number.",
        "each uncorrectable error costs a row, and a reset of the GPU; a failed remap means that spare "
        "rows ran out: replace the part.",
    )
    kinds = (
        ("DEV_UNCORRECTABLE_REMAPPED_ROWS", "uncorrectable"),
        ("DEV_CORRECTABLE_REMAPPED_ROWS", "correctable"),
        ("DEV_ROW_REMAP_PENDING", "waits for a reset"),
        ("DEV_ROW_REMAP_FAILURE", "failed"),
    )
    return panels.graph(words, [Query(dcgm(field, NODE), f"{LEGEND} {text}") for field, text in kinds])


def _durations() -> Any:
    words = Words(
        "How long each check takes",
        "flat lines of a few seconds in sum.",
        "a check that takes longer each time waits for a driver or a disk that is about to hang.",
    )
    return panels.graph(
        words,
        [
            Query(f"max by (check) (gpuprov_check_duration_seconds{{{NODE}}})", "{{check}}"),
            Query(f"max by (instance) (gpuprov_health_run_duration_seconds{{{NODE}}})", "whole run"),
        ],
        unit="s",
    )


def _cpu() -> Any:
    words = Words(
        "CPU time in use",
        "what the job's data loaders need.",
        "1 for all: GPUs wait for data. `system` above `user`: a driver, a file system or an interrupt "
        "storm.",
    )
    busy = f'node_cpu_seconds_total{{{NODE},mode=~"user|system|iowait|irq|softirq|steal"}}'
    every = f"node_cpu_seconds_total{{{NODE}}}"
    expr = f"sum by (mode) (rate({busy}[$__rate_interval])) / scalar(sum(rate({every}[$__rate_interval])))"
    return panels.graph(words, [Query(expr, "{{mode}}")], unit="percentunit", stacked=True, width=12)


def _ram() -> Any:
    words = Words(
        "Memory in use",
        "well below 1.",
        "near 1: the kernel kills a process soon, most often the job.",
    )
    free = f"node_memory_MemAvailable_bytes{{{NODE}}} / node_memory_MemTotal_bytes{{{NODE}}}"
    return panels.graph(
        words, [Query(f"1 - {free}", "in use")], unit="percentunit", ceiling=1, width=8, rows=False
    )


def _disk() -> Any:
    words = Words(
        "File systems, share in use",
        "below the lines.",
        "a full root file system stops logging, the health program, and then logins.",
    )
    some = f'{NODE},fstype!~"tmpfs|ramfs|overlay|squashfs|nsfs|fuse.*"'
    free = f"node_filesystem_avail_bytes{{{some}}} / node_filesystem_size_bytes{{{some}}}"
    expr = f"max by (mountpoint) (1 - {free})"
    return panels.graph(
        words,
        [Query(expr, "{{mountpoint}}")],
        unit="percentunit",
        limits=DISK,
        ceiling=1,
        width=8,
        rows=False,
    )


def _network() -> Any:
    words = Words(
        "Network: errors and drops per second",
        "0.",
        "errors: a cable, a transceiver, a port. Drops: the host cannot take what arrives.",
    )
    some = f'{NODE},device!~"lo|veth.*|cali.*|docker.*|br-.*"'
    kinds = (
        ("receive_errs", "errors received"),
        ("transmit_errs", "errors sent"),
        ("receive_drop", "dropped"),
    )
    queries = [
        Query(
            f"sum by (device) (rate(node_network_{kind}_total{{{some}}}[$__rate_interval]))",
            f"{{{{device}}}} {text}",
        )
        for kind, text in kinds
    ]
    return panels.graph(words, queries, unit="cps", width=8, rows=False)
