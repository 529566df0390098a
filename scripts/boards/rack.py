"""The nodes of one rack, side by side: verdicts, heat and power."""

from __future__ import annotations

from typing import Any

from boards import panels, promql
from boards.fleet import PARTS
from boards.panels import RED, YELLOW, Column, Limits, Query, Words, link_to
from boards.promql import RACKS, count, dcgm, median
from provision.checks.judge import HOTTER

NODE_LINK = link_to("node", instance="${__value.raw}")
ROW_LINK = link_to("node", instance="${__field.labels.instance}")
GPU_LINK = link_to("gpu", instance="${__data.fields.Node}", gpu="${__value.raw}")
HEAT = Limits(
    ((HOTTER, YELLOW),),
    f"yellow from {HOTTER:g} K: what airflow does not explain between GPUs of one node, the limit of the "
    "check `gpu_inventory` (its arithmetic is in provision/checks/judge.py).",
)
THROTTLED = Limits(
    ((1, RED),),
    "red from 1: the reasons that nvml.h calls hardware slowdown, software and hardware thermal slowdown "
    "and power brake. Idle and the software power cap are normal, and not counted.",
)


def build() -> dict[str, Any]:
    return panels.board(
        "rack",
        "gpuprov: rack",
        "The nodes of a rack side by side: which one differs from its neighbours, and since when.",
        panels.racks(single=True),
        {
            "Verdicts": [_verdicts(), _matrix(), _findings()],
            "Heat": [_heat(), _hotter(), _throttled()],
            "Power and load": [_power_matrix(), _power(), _use()],
        },
        since="6h",
    )


def _verdicts() -> Any:
    words = Words(
        "Nodes of this rack by verdict now",
        "all in `pass` and `warn`.",
        "most of a rack bad at once is a fault of the rack: power, cooling, a leaf switch.",
    )
    return panels.counts(words, [(Query(count(nodes), name), colour) for name, nodes, colour in PARTS])


def _matrix() -> Any:
    words = Words(
        "Verdict of each node over time",
        "one green line per node.",
        "several nodes that change in the same minute share a cause. A node that changes to and fro is at "
        "the edge of a limit, or has a bad contact. Click a row for its node.",
    )
    return panels.timeline(
        words, [Query(promql.state(RACKS), "{{instance}}")], panels.VERDICTS, height=12, link=ROW_LINK
    )


def _findings() -> Any:
    words = Words(
        "Findings of this rack",
        "no row.",
        "each row is a part with its serial number and what to do with it; bring all of them on one walk.",
    )
    labels = "instance, check, metric, device, serial, action, verdict"
    return panels.table(
        words,
        [Query(f"sum by ({labels}) ({promql.findings(RACKS, 'fail|error|warn')})")],
        [
            Column("instance", "Node", link=NODE_LINK),
            Column("verdict", "Verdict", states=panels.WORDS, width=90),
            Column("device", "Device"),
            Column("serial", "Serial number"),
            Column("action", "Do"),
            Column("check", "Check"),
            Column("metric", "Metric"),
        ],
        order="Node",
        falling=False,
        empty="no finding",
    )


def _heat() -> Any:
    words = Words(
        "Hottest GPU of each node",
        "rows of like colour: nodes with the same load are equally warm.",
        "one hot row: that node's fans, filters or heat sinks. All rows hot from one moment: the rack's "
        "air or water. Rows that get hotter from bottom to top: hot air comes back over the rack.",
    )
    expr = f"max by (instance) (DCGM_FI_DEV_GPU_TEMP{{{RACKS}}})"
    return panels.heat(
        words, Query(expr, "{{instance}}"), unit="celsius", span=(25, 90), height=10, link=ROW_LINK
    )


def _hotter() -> Any:
    words = Words(
        "GPUs hotter than their node's median",
        "a few degrees, the same ones on every node: those at the end of the airflow.",
        "one GPU far above: heat sink, thermal paste, a fan, a cold plate.",
    )
    heat = f"max by (instance, gpu) (DCGM_FI_DEV_GPU_TEMP{{{RACKS}}})"
    expr = f"topk(20, {heat} - on (instance) group_left () {median(heat)})"
    return panels.table(
        words,
        [Query(expr)],
        [
            Column("instance", "Node", link=NODE_LINK),
            Column("gpu", "GPU", link=GPU_LINK),
            Column("Value", "Above the median", "celsius", limits=HEAT),
        ],
        order="Above the median",
        width=10,
    )


def _throttled() -> Any:
    words = Words(
        "GPUs that heat or power slow down, by node",
        "0 for all nodes.",
        "a slowed GPU slows the whole job. Heat: see the matrix above. Power brake: the power supplies or "
        "the BMC ask for it; look at the rack's feeds.",
    )
    expr = f"sum by (instance) ({promql.throttled_at_all(RACKS)})"
    return panels.graph(words, [Query(expr, "{{instance}}")], limits=THROTTLED, width=14, height=9)


def _power_matrix() -> Any:
    words = Words(
        "Power of each node's GPUs",
        "rows of like colour where one job runs.",
        "one pale row among dark ones: a node that waits, or has lost GPUs; all pale at once: the job "
        "stopped, or the rack is capped.",
    )
    expr = f"sum by (instance) ({dcgm('DEV_POWER_USAGE', RACKS)})"
    return panels.heat(words, Query(expr, "{{instance}}"), unit="watt", height=10, link=ROW_LINK)


def _power() -> Any:
    words = Words(
        "Power of all GPUs of this rack",
        "below what the rack's feeds carry, less what CPUs, fans and network cards take.",
        "a flat ceiling is a cap; a jump to and fro of the whole rack at each step of training strains the "
        "feeds.",
    )
    expr = f"sum by (rack) (max by (rack, instance, gpu) (DCGM_FI_DEV_POWER_USAGE{{{RACKS}}}))"
    return panels.graph(words, [Query(expr, "{{rack}}")], unit="watt", rows=False)


def _use() -> Any:
    words = Words(
        "GPU utilization, mean of each node",
        "nodes of one job move together.",
        "one node at 1 while the others wait at 0, or the other way round: that node drags the job.",
    )
    expr = f"avg by (instance) ({dcgm('DEV_GPU_UTIL', RACKS)}) / 100"
    return panels.graph(words, [Query(expr, "{{instance}}")], unit="percentunit", ceiling=1)
