"""All nodes: faults, their locations, and the actions for them."""

from __future__ import annotations

from typing import Any

from boards import panels, promql
from boards.panels import GREEN, GREY, ORANGE, PURPLE, RED, YELLOW, Column, Limits, Query, Words, link_to
from boards.promql import RACKS, count

NODE_LINK = link_to("node", instance="${__value.raw}")
RACK_LINK = link_to("rack", rack="${__value.raw}")
AGE = Limits(
    ((30 * 86400, YELLOW), (90 * 86400, RED)),
    "a convention of this dashboard, no measured limit: 30 and 90 days. Edit them to your own schedule.",
)

# Each node is in exactly one of them.
PARTS = (
    ("pass", promql.with_verdict(RACKS, "pass"), GREEN),
    ("warn", promql.with_verdict(RACKS, "warn"), YELLOW),
    ("fail", promql.with_verdict(RACKS, "fail"), RED),
    ("not measured", promql.with_verdict(RACKS, "error|skip"), PURPLE),
    ("no result", promql.without_result(RACKS), ORANGE),
    ("unreachable", promql.unreachable(RACKS), GREY),
)


def build() -> dict[str, Any]:
    return panels.board(
        "fleet",
        "gpuprov: fleet",
        "All GPU nodes: how many are healthy, what is wrong with the others, in which racks, and what to do.",
        panels.racks(),
        {
            "What is wrong, and where": [_verdicts(), _causes(), _racks(), _findings(), _share(), _since()],
            "Nodes without a current result": [_silent(), _oldest(), _validations()],
            "What may come next": [_warnings(), _drift(), _validation_verdicts(), _versions()],
            "Load": [_power(), _use(), _hottest()],
        },
        since="6h",
    )


def _verdicts() -> Any:
    words = Words(
        "Nodes by verdict now",
        "all in `pass` and `warn`: a warning needs attention, not a repair.",
        "`fail` is broken; `not measured` (verdicts error and skip) has checks that gave no answer; `no "
        f"result` answers Prometheus but its last health result is older than {promql.INTERVALS} intervals, "
        "or it has none; `unreachable` does not answer Prometheus. Each node counts once, and none of the "
        "last four is known to be healthy.",
    )
    return panels.counts(words, [(Query(count(nodes), name), colour) for name, nodes, colour in PARTS])


def _causes() -> Any:
    words = Words(
        "Causes: what failed, and what to do",
        "no row.",
        "the first row explains most red nodes. Many nodes in one rack: power, cooling or a switch, before "
        "you touch a node. Many nodes in all racks: what changed for all of them (driver, configuration, "
        "the check). The action is the one that the check recommends; `error` means that the check got no "
        "answer.",
    )
    labels = "check, metric, action, verdict"
    found = promql.findings(RACKS, "fail|error")
    return panels.table(
        words,
        [
            Query(f"count by ({labels}) (group by (instance, {labels}) ({found}))"),
            Query(f"count by ({labels}) (group by (rack, {labels}) ({found}))"),
            Query(f"count by ({labels}) ({found})"),
        ],
        [
            Column("verdict", "Verdict", states=panels.WORDS, width=90),
            Column("check", "Check"),
            Column("metric", "Metric"),
            Column("action", "Do"),
            Column("Value #A", "Nodes", width=90),
            Column("Value #B", "Racks", width=90),
            Column("Value #C", "Findings", width=90),
        ],
        order="Nodes",
        empty="no failed check",
        width=15,
    )


def _racks() -> Any:
    words = Words(
        "Racks by share of nodes not known to be healthy",
        "0 % everywhere.",
        "one rack far above the others has a cause of its own: power, cooling, a leaf switch, one batch of "
        "parts.",
    )
    bad = f"count by (rack) ({promql.unhealthy(RACKS)})"
    every = f"count by (rack) ({promql.up(RACKS)})"
    return panels.table(
        words,
        [Query(f"({bad} or 0 * {every}) / {every}"), Query(f"{bad} or 0 * {every}"), Query(every)],
        [
            Column("rack", "Rack", link=RACK_LINK),
            Column(
                "Value #A",
                "Share",
                "percentunit",
                limits=Limits(
                    ((0.0001, YELLOW), (0.5, RED)),
                    "yellow above 0; red from a half, a convention of this dashboard.",
                ),
            ),
            Column("Value #B", "Not healthy"),
            Column("Value #C", "Nodes"),
        ],
        order="Share",
        width=9,
    )


def _findings() -> Any:
    words = Words(
        "Failed nodes, one row per finding",
        "no row.",
        "each row is work for somebody: the part with its serial number, and the action. Filter a column "
        "with the funnel in its heading; click a node for all that is known of it.",
    )
    labels = "rack, instance, check, metric, device, serial, action, verdict"
    return panels.table(
        words,
        [Query(f"sum by ({labels}) ({promql.findings(RACKS, 'fail|error')})")],
        [
            Column("rack", "Rack", width=110),
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
        empty="no failed check",
        height=10,
    )


def _share() -> Any:
    words = Words(
        "Share of nodes not known to be healthy, by reason",
        "a flat line at 0.",
        "a step says when it began, and its colour why; compare with your changes of that minute. A slow "
        "rise is wear, or nodes that nobody repairs.",
    )
    return panels.graph(
        words,
        [
            Query(f"({count(nodes)}) / scalar(count({promql.up(RACKS)}))", name)
            for name, nodes, _ in PARTS
            if name not in ("pass", "warn")
        ],
        unit="percentunit",
        stacked=True,
        colours={name: colour for name, _, colour in PARTS},
        rows=False,
    )


def _since() -> Any:
    words = Words(
        "Nodes with failures, by metric",
        "no line.",
        "a line that rises for many nodes at once is one cause; lines that rise one after another (first a "
        "link, then NCCL) are a cause and its effects: repair the first.",
    )
    found = promql.findings(RACKS, "fail|error")
    expr = f"count by (check, metric) (group by (instance, check, metric) ({found}))"
    return panels.graph(words, [Query(expr, "{{check}}: {{metric}}")])


def _silent() -> Any:
    words = Words(
        "Nodes without a health result",
        "no row.",
        "`unreachable`: its node exporter does not answer; look at the machine, its network, its BMC. `no "
        "result`: the machine answers, its health program does not run or hangs; see `systemctl status "
        "gpuprov-node-health.timer` there. A node whose clock is wrong is listed too.",
    )
    silent = f"{promql.NO_RESULT} * {promql.without_result(RACKS)}"
    absent = f"{promql.UNREACHABLE} + {promql.unreachable(RACKS)}"
    return panels.table(
        words,
        [Query(f"max by (rack, sku, instance) ({silent} or {absent})")],
        [
            Column("rack", "Rack"),
            Column("instance", "Node", link=NODE_LINK),
            Column("sku", "SKU"),
            Column("Value", "State", states=panels.VERDICTS),
        ],
        order="Node",
        falling=False,
        empty="every node has a fresh result",
        width=8,
    )


def _oldest() -> Any:
    words = Words(
        "Nodes with the oldest health result",
        "a minute or two, as long as the interval of the health program.",
        f"older than {promql.INTERVALS} intervals counts as no result, whatever its verdict says.",
    )
    age = f"abs(time() - max by (rack, instance) (gpuprov_health_run_timestamp_seconds{{{RACKS}}}))"
    return panels.table(
        words,
        [Query(f"topk(20, {age})")],
        [
            Column("rack", "Rack"),
            Column("instance", "Node", link=NODE_LINK),
            Column("Value", "Age", "s"),
        ],
        order="Age",
        width=8,
    )


def _validations() -> Any:
    words = Words(
        "Nodes with the oldest validation",
        "as old as your schedule of `gpuprov validate` allows.",
        "the health program looks, a validation loads: bandwidth, NCCL and burn tests of an old date prove "
        "little. Nodes that no validation names are missing here.",
    )
    age = f"time() - {promql.of_nodes('gpuprov_validation_timestamp_seconds', RACKS)}"
    return panels.table(
        words,
        [Query(f"topk(20, {age})")],
        [
            Column("rack", "Rack"),
            Column("instance", "Node", link=NODE_LINK),
            Column("Value", "Age", "s", limits=AGE),
        ],
        order="Age",
        empty="no validation is known",
        width=8,
    )


def _warnings() -> Any:
    words = Words(
        "Warnings by cause",
        "few rows, and known ones.",
        "a warning that spreads is the next failure; `Do` says what to plan for the next maintenance.",
    )
    labels = "check, metric, action"
    return panels.table(
        words,
        [
            Query(
                f"count by ({labels}) (group by (instance, {labels}) ({promql.findings(RACKS, 'warn')}))",
            )
        ],
        [
            Column("check", "Check"),
            Column("metric", "Metric"),
            Column("action", "Do"),
            Column("Value", "Nodes", width=90),
        ],
        order="Nodes",
        empty="no warning",
        width=8,
    )


def _drift() -> Any:
    words = Words(
        "Drift: nodes that differ from what is declared",
        "0 drifted and 0 unreadable, looked at within the day.",
        "a drifted node was changed by hand, or never converged: `gpuprov drift` names the facts, `gpuprov "
        "plan` the way back. `Unreadable` are facts that could not be read, which is not the same as right.",
    )

    def of(state: str) -> str:
        metric = f'gpuprov_drift_expectations{{state="{state}"}}'
        return promql.of_nodes(metric, RACKS)

    return panels.table(
        words,
        [
            Query(f"topk(20, {of('drifted')})"),
            Query(f"{of('unreadable')} and on (instance) topk(20, {of('drifted')})"),
            Query(
                f"time() - {promql.of_nodes('gpuprov_drift_timestamp_seconds', RACKS)} "
                f"and on (instance) topk(20, {of('drifted')})"
            ),
        ],
        [
            Column("instance", "Node", link=NODE_LINK),
            Column(
                "Value #A", "Drifted", limits=Limits(((1, YELLOW),), "yellow from 1: declared is declared.")
            ),
            Column("Value #B", "Unreadable"),
            Column("Value #C", "Looked at", "s"),
        ],
        order="Drifted",
        empty="no drift report is known",
        width=8,
    )


def _validation_verdicts() -> Any:
    words = Words(
        "Nodes by verdict of their last validation",
        "all in `pass` and `warn`.",
        "`fail` here beside `pass` in the health result: only load shows the fault. Read `gpuprov report "
        "latest`.",
    )
    metric = promql.of_nodes("gpuprov_validation_verdict", RACKS, keep="verdict")
    return panels.table(
        words,
        [Query(f"sum by (verdict) ({metric})")],
        [
            Column("verdict", "Verdict", states=panels.WORDS),
            Column("Value", "Nodes"),
        ],
        order="Nodes",
        empty="no validation is known",
        width=8,
    )


def _versions() -> Any:
    words = Words(
        "Versions in service",
        "one row for each kind of node.",
        "a second row of few nodes is an upgrade that stopped halfway, or a node that was reinstalled by "
        "hand.",
    )
    return panels.table(
        words,
        [Query(f"count by (sku, driver, os, kernel, version) (gpuprov_health_info{{{RACKS}}})")],
        [
            Column("sku", "SKU"),
            Column("driver", "Driver"),
            Column("os", "System"),
            Column("kernel", "Kernel"),
            Column("version", "gpuprov"),
            Column("Value", "Nodes"),
        ],
        order="Nodes",
        height=7,
    )


def _power() -> Any:
    words = Words(
        "Power of all GPUs, by rack",
        "it follows the jobs.",
        "a rack that drops while the others stay has lost nodes or jobs; one at a flat ceiling is capped.",
    )
    expr = f"sum by (rack) (max by (rack, instance, gpu) (DCGM_FI_DEV_POWER_USAGE{{{RACKS}}}))"
    return panels.graph(words, [Query(expr, "{{rack}}")], unit="watt", width=8)


def _use() -> Any:
    words = Words(
        "GPU utilization, mean by rack",
        "near 1 where jobs run, 0 where none does.",
        "a job at full utilization and low power waits for a partner: look for the node that drags it.",
    )
    expr = f"avg by (rack) (max by (rack, instance, gpu) (DCGM_FI_DEV_GPU_UTIL{{{RACKS}}})) / 100"
    return panels.graph(words, [Query(expr, "{{rack}}")], unit="percentunit", ceiling=1, width=8)


def _hottest() -> Any:
    words = Words(
        "Hottest GPU of each rack",
        "racks with the same load lie close together.",
        "one rack above the others: its cooling, its doors, its filters. The board slows itself down at "
        "its own limit, which the dashboard of the GPU shows.",
    )
    expr = f"max by (rack) (DCGM_FI_DEV_GPU_TEMP{{{RACKS}}})"
    return panels.graph(words, [Query(expr, "{{rack}}")], unit="celsius", floor=None, width=8)
