"""Burn-ins in progress: how far each is, and which node or GPU stands out under load."""

from __future__ import annotations

from typing import Any

from boards import panels, promql
from boards.panels import RED, YELLOW, Column, Limits, Query, Words
from boards.promql import NODES, count, dcgm, dcgm_rate, median
from boards.rack import GPU_LINK, NODE_LINK, ROW_LINK, THROTTLED

# The burn-in's own rule: a tenth of the clock below its peers (provision/burnin/watch.py, _SLOWER).
SLOWER = 0.9
RUNNING = f"(gpuprov_burnin_running{{{NODES}}} == 1)"
DURING = f"and on (instance) {RUNNING}"


def build() -> dict[str, Any]:
    return panels.board(
        "burnin",
        "gpuprov: burn-in",
        "Nodes while they are burnt in: progress, heat, clocks and errors. Only the time of the burn-in is "
        "shown; the verdict is that of the record of acceptance (gpuprov burnin status).",
        [*panels.racks(), panels.instances(several=True)],
        {
            "Progress": [_running(), _progress(), _findings()],
            "Under load": [_heat(), _slowest(), _clocks(), _power(), _throttled(), _use()],
            "Errors during it": [_replays(), _nvlink(), _memory(), _xids()],
        },
        since="24h",
    )


def _running() -> Any:
    words = Words(
        "Burn-ins",
        "as many running as were started; none with a failed check.",
        "fewer running than started: nodes that rebooted or ended early; `gpuprov burnin status` says "
        "which. `failed check` counts nodes in burn-in whose health result fails now.",
    )
    failing = f"({promql.with_verdict(NODES, 'fail|error')} {DURING})"
    silent = f"(gpuprov_burnin_end_timestamp_seconds{{{NODES}}} > time() unless on (instance) {RUNNING})"
    return panels.counts(
        words,
        [
            (Query(count(RUNNING), "running"), panels.BLUE),
            (Query(count(failing), "failed check"), RED),
            (Query(count(silent), "stopped before the end"), panels.PURPLE),
        ],
    )


def _progress() -> Any:
    words = Words(
        "Progress of each node",
        "all nodes of one start close together.",
        "a node that lags was interrupted (a reboot continues it), or waits for its turn under the rack's "
        "power limit.",
    )
    end = f"gpuprov_burnin_end_timestamp_seconds{{{NODES}}}"
    return panels.table(
        words,
        [
            Query(f"max by (rack, instance) (gpuprov_burnin_progress_ratio{{{NODES}}} {DURING})"),
            Query(f"max by (rack, instance) (({end} - time()) {DURING})"),
        ],
        [
            Column("rack", "Rack"),
            Column("instance", "Node", link=NODE_LINK),
            Column("Value #A", "Done", "percentunit"),
            Column("Value #B", "Ends in", "s"),
        ],
        order="Done",
        falling=False,
        empty="no burn-in runs",
        width=10,
    )


def _findings() -> Any:
    words = Words(
        "Findings on nodes in burn-in",
        "no row.",
        "this is what a burn-in is for: replace the part now, and start again; a node with a finding is "
        "not accepted.",
    )
    labels = "instance, verdict, device, serial, action, check, metric"
    found = f'gpuprov_finding{{{NODES},verdict=~"fail|error|warn"}} {DURING}'
    return panels.table(
        words,
        [Query(f"sum by ({labels}) ({found})")],
        [
            Column("instance", "Node", link=NODE_LINK),
            Column("verdict", "Verdict", states=panels.WORDS, width=90),
            Column("device", "Device"),
            Column("serial", "Serial number"),
            Column("action", "Do"),
            Column("metric", "Metric"),
        ],
        order="Node",
        falling=False,
        empty="no finding",
        width=14,
    )


def _heat() -> Any:
    words = Words(
        "Hottest GPU of each node",
        "every row settles after a while, and keeps its colour.",
        "a row that goes on warming: a fan, a filter, the coolant. A row that pales: the load ended there.",
    )
    expr = f"max by (instance) (DCGM_FI_DEV_GPU_TEMP{{{NODES}}} {DURING})"
    return panels.heat(
        words, Query(expr, "{{instance}}"), unit="celsius", span=(25, 90), height=10, link=ROW_LINK
    )


def _slowest() -> Any:
    words = Words(
        "GPUs slowest against their node's median",
        "0.97 and above: GPUs of one kind under one load run at nearly one clock.",
        "a slow GPU at normal heat and power is a weak part; a slow hot one, its cooling.",
    )
    limits = Limits(
        ((0, RED), (SLOWER, YELLOW), (0.97, panels.GREEN)),
        "red below 0.90, the burn-in's own limit for a GPU slower than its neighbours; yellow below 0.97, "
        "its limit for a clock that drifts (provision/burnin/watch.py and own_findings.py).",
    )
    clock = dcgm("DEV_SM_CLOCK", NODES)
    expr = f"bottomk(20, ({clock} / on (instance) group_left () {median(clock)}) {DURING})"
    return panels.table(
        words,
        [Query(expr)],
        [
            Column("instance", "Node", link=NODE_LINK),
            Column("gpu", "GPU", link=GPU_LINK),
            Column("Value", "Of the median", "percentunit", limits=limits),
        ],
        order="Of the median",
        falling=False,
        empty="no burn-in runs",
        width=10,
        height=9,
    )


def _clocks() -> Any:
    words = Words(
        "Lowest SM clock of each node",
        "flat lines close together.",
        "a line that sinks over hours while the others stay: heat that builds up, or a part that weakens.",
    )
    expr = f"min by (instance) ({dcgm('DEV_SM_CLOCK', NODES)} * 1e6 {DURING})"
    return panels.graph(words, [Query(expr, "{{instance}}")], unit="hertz", width=14, height=9)


def _power() -> Any:
    words = Words(
        "Power of each node's GPUs",
        "flat lines close together, near the sum of the GPUs' limits.",
        "a lower line: GPUs that are slowed down, or a load that did not start on all of them.",
    )
    expr = f"sum by (instance) ({dcgm('DEV_POWER_USAGE', NODES)} {DURING})"
    return panels.graph(words, [Query(expr, "{{instance}}")], unit="watt", width=8)


def _throttled() -> Any:
    words = Words(
        "GPUs that heat or power slow down",
        "0.",
        "under full load the cooling or the feeds do not suffice: many nodes of a rack, its air or feeds; "
        "one node, its fans.",
    )
    expr = f"sum by (instance) ({promql.throttled_at_all(NODES)} {DURING})"
    return panels.graph(words, [Query(expr, "{{instance}}")], limits=THROTTLED, width=8)


def _use() -> Any:
    words = Words(
        "GPUs under load, share of each node",
        "1, with short dips between phases.",
        "below 1: a GPU whose load ended; time without load does not count as burnt in.",
    )
    loaded = f"({dcgm('DEV_GPU_UTIL', NODES)} >= bool 50)"
    expr = f"avg by (instance) ({loaded} {DURING})"
    return panels.graph(words, [Query(expr, "{{instance}}")], unit="percentunit", ceiling=1, width=8)


def _replays() -> Any:
    words = Words(
        "PCIe replays per second",
        "0; single ones far apart mean nothing.",
        "a rate under load that was not there before: the slot, riser or retimer does not stand the heat.",
    )
    expr = f"sum by (instance) ({dcgm_rate('DEV_PCIE_REPLAY_COUNTER', NODES)} {DURING})"
    return panels.graph(words, [Query(expr, "{{instance}}")], unit="cps", width=6)


def _nvlink() -> Any:
    words = Words(
        "NVLink packets sent again per second",
        "0, or far apart.",
        "a rate that grows with the heat: contact or baseboard.",
    )
    expr = f"sum by (instance) (({promql.nvlink_retries(NODES)}) {DURING})"
    return panels.graph(words, [Query(expr, "{{instance}}")], unit="cps", width=6)


def _memory() -> Any:
    words = Words(
        "Uncorrectable memory errors: rows remapped",
        "flat lines.",
        "each step is an uncorrectable error in this burn-in: the part is not accepted.",
    )
    expr = f"sum by (instance) ({dcgm('DEV_UNCORRECTABLE_REMAPPED_ROWS', NODES)} {DURING})"
    return panels.graph(words, [Query(expr, "{{instance}}")], width=6)


def _xids() -> Any:
    words = Words(
        "Last Xid on each node",
        "0 throughout.",
        "a rise is a driver error in this burn-in; the findings above say what to do.",
    )
    expr = f"max by (instance) ({dcgm('DEV_XID_ERRORS', NODES)} {DURING})"
    return panels.graph(words, [Query(expr, "{{instance}}")], width=6)
