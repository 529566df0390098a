"""PromQL that several dashboards share: which nodes count as what.

Three rules hold everywhere. A node counts once. A result that is too old is no result: the textfile folder
of a node exporter keeps the last one for ever, also when the health program died. And a node that does not
answer is counted from `up`, since its own metrics are gone.

`sel` is always a list of label matchers, `rack=~"$rack",sku=~"$sku"`.
"""

from __future__ import annotations

from provision.checks.gpu.telemetry import ALARMS

RACKS = 'rack=~"$rack",sku=~"$sku"'
NODES = f'{RACKS},instance=~"$instance"'
NODE = 'instance="$instance"'
GPU = f'{NODE},gpu="$gpu"'

# A result may be this many of its own intervals old, as for the alert NodeHealthStale: two runs may be
# missed, and one may take its whole interval.
INTERVALS = 3

# The verdicts as numbers, for panels that draw states; then what a node without a verdict is.
CODES = {"pass": 0, "skip": 1, "warn": 2, "error": 3, "fail": 4}
NO_RESULT, UNREACHABLE = 5, 6


def up(sel: str) -> str:
    """Every node that Prometheus knows, 1 or 0: the job `node` has one target per node."""
    return f'up{{job="node",{sel}}}'


def fresh(sel: str) -> str:
    """Nodes whose health result is young enough. The amount: a clock that is wrong hides no old result."""
    age = f"abs(time() - gpuprov_health_run_timestamp_seconds{{{sel}}})"
    return f"({age} <= {INTERVALS} * gpuprov_health_interval_seconds{{{sel}}})"


def with_verdict(sel: str, verdicts: str) -> str:
    """Nodes with a fresh result and one of these verdicts (`error|skip`)."""
    return f'(gpuprov_health_verdict{{{sel},verdict=~"{verdicts}"}} == 1 and on (instance) {fresh(sel)})'


def without_result(sel: str) -> str:
    """Nodes that answer Prometheus, and have no fresh health result."""
    return f"({up(sel)} == 1 unless on (instance) {fresh(sel)})"


def unreachable(sel: str) -> str:
    """Nodes whose node exporter does not answer."""
    return f"({up(sel)} == 0)"


def unhealthy(sel: str) -> str:
    """Nodes that are not known to be healthy: neither `pass` nor `warn` in a fresh result."""
    return f"({up(sel)} unless on (instance) {with_verdict(sel, 'pass|warn')})"


def count(vector: str) -> str:
    """How many; 0 where there is none, not "no data"."""
    return f"count({vector}) or vector(0)"


def findings(sel: str, verdicts: str) -> str:
    """Active findings in fresh results."""
    return f'(gpuprov_finding{{{sel},verdict=~"{verdicts}"}} and on (instance) {fresh(sel)})'


def code(metric: str, sel: str, by: str) -> str:
    """The verdict as one of CODES, of a metric with one series for each verdict."""
    terms = [
        f'{number} * max by ({by}) ({metric}{{{sel},verdict="{verdict}"}})'
        for verdict, number in CODES.items()
    ]
    return f"({' + '.join(terms)})"


def state(sel: str) -> str:
    """Each node's verdict as a number, or NO_RESULT or UNREACHABLE: one series per node, whatever it is."""
    return (
        f"max by (instance) (({code('gpuprov_health_verdict', sel, 'instance')} and on (instance) "
        f"{fresh(sel)}) or on (instance) {NO_RESULT} * ({up(sel)} == 1) or on (instance) {UNREACHABLE} + "
        f"{unreachable(sel)})"
    )


def of_nodes(metric: str, sel: str, keep: str = "") -> str:
    """A metric of the controller, by the nodes it is about: its label `node` becomes `instance`.

    Its own `instance` is the controller, and two controllers may have written of one node: the newest or
    largest value counts. Racks and SKUs are the targets'. `keep` names further labels to keep.
    """
    by = ", ".join(["node", *([keep] if keep else [])])
    renamed = f'label_replace(max by ({by}) ({metric}), "instance", "$1", "node", "(.+)")'
    return f"({renamed} * on (instance) group_left (rack, sku) group by (instance, rack, sku) ({up(sel)}))"


def dcgm(field: str, sel: str) -> str:
    """A field of DCGM's, one series per GPU: with MIG, or with Kubernetes, the exporter has several."""
    return f"max by (instance, gpu) (DCGM_FI_{field}{{{sel}}})"


def dcgm_rate(field: str, sel: str) -> str:
    """How fast a counter of DCGM's grows, per second and GPU."""
    return f"max by (instance, gpu) (rate(DCGM_FI_{field}{{{sel}}}[$__rate_interval]))"


def median(vector: str) -> str:
    """The median of a node's GPUs."""
    return f"quantile by (instance) (0.5, {vector})"


def throttled(sel: str, bit: int) -> str:
    """1 for each GPU whose clock is lowered for this reason, 0 for the others: a bit of DCGM's mask."""
    return f"floor({dcgm('DEV_CLOCKS_EVENT_REASONS', sel)} / {bit}) % 2"


def throttled_at_all(sel: str) -> str:
    """1 for each GPU with a reason that is an alarm, 0 for the others."""
    return f"clamp_max({' + '.join(throttled(sel, bit) for bit in ALARMS)}, 1)"


# NVLink 4 and older have totals by kind of error, NVLink 5 has counters of its own (dcgm_fields.h).
# Hopper reports no CRC errors through DCGM (NVIDIA/DCGM issue 173), so they are not asked for.
def nvlink_recoveries(sel: str) -> str:
    """How often per second a GPU's NVLinks went down and trained again."""
    old, new = "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS"
    return f"{dcgm_rate(old, sel)} or {dcgm_rate(new, sel)}"


def nvlink_retries(sel: str) -> str:
    """How many packets per second a GPU's NVLinks sent again, or received with errors (NVLink 5)."""
    old, new = "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "DEV_NVLINK_COUNT_RX_ERRORS"
    return f"{dcgm_rate(old, sel)} or {dcgm_rate(new, sel)}"
