"""PromQL that several dashboards share to classify nodes.

Three rules hold everywhere. A node counts once. A result that is too old counts as none, since the textfile
folder of a node exporter keeps the last one forever, even after the health program died. And a node that does
not respond is counted from `up`, since its own metrics are gone.

`sel` is always a list of label matchers, `rack=~"$rack",sku=~"$sku"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from provision.checks.gpu.telemetry import ALARMS

RACKS = 'rack=~"$rack",sku=~"$sku"'
NODES = f'{RACKS},instance=~"$instance"'
NODE = 'instance="$instance"'
GPU = f'{NODE},gpu="$gpu"'

# The maximum age of a result in its own intervals, as in the alert NodeHealthStale: two runs may be missed,
# and one may take its whole interval.
INTERVALS = 3

# The verdicts as numbers, for panels of states; then the numbers for nodes without a verdict.
CODES = {"pass": 0, "skip": 1, "warn": 2, "error": 3, "fail": 4}
NO_RESULT, UNREACHABLE = 5, 6


def up(sel: str) -> str:
    """Select every node that Prometheus knows, 1 or 0: the job `node` has one target per node."""
    return f'up{{job="node",{sel}}}'


def fresh(sel: str) -> str:
    """Select nodes with a recent health result; abs() keeps a wrong clock from hiding an old one."""
    age = f"abs(time() - gpuprov_health_run_timestamp_seconds{{{sel}}})"
    return f"({age} <= {INTERVALS} * gpuprov_health_interval_seconds{{{sel}}})"


def with_verdict(sel: str, verdicts: str) -> str:
    """Select nodes with a fresh result and one of these verdicts (`error|skip`)."""
    return f'(gpuprov_health_verdict{{{sel},verdict=~"{verdicts}"}} == 1 and on (instance) {fresh(sel)})'


def without_result(sel: str) -> str:
    """Select nodes that respond to Prometheus, but have no fresh health result."""
    return f"({up(sel)} == 1 unless on (instance) {fresh(sel)})"


def unreachable(sel: str) -> str:
    """Select nodes with an unresponsive node exporter."""
    return f"({up(sel)} == 0)"


def unhealthy(sel: str) -> str:
    """Select nodes that are not known to be healthy: neither `pass` nor `warn` in a fresh result."""
    return f"({up(sel)} unless on (instance) {with_verdict(sel, 'pass|warn')})"


def count(vector: str) -> str:
    """Count the series; 0 instead of "no data" if there are none."""
    return f"count({vector}) or vector(0)"


def findings(sel: str, verdicts: str) -> str:
    """Select active findings in fresh results."""
    return f'(gpuprov_finding{{{sel},verdict=~"{verdicts}"}} and on (instance) {fresh(sel)})'


def code(metric: str, sel: str, by: str) -> str:
    """Convert a metric with one series for each verdict to one of CODES."""
    terms = [
        f'{number} * max by ({by}) ({metric}{{{sel},verdict="{verdict}"}})'
        for verdict, number in CODES.items()
    ]
    return f"({' + '.join(terms)})"


def state(sel: str) -> str:
    """Return each node's verdict as a number, or NO_RESULT or UNREACHABLE: always one series per node."""
    return (
        f"max by (instance) (({code('gpuprov_health_verdict', sel, 'instance')} and on (instance) "
        f"{fresh(sel)}) or on (instance) {NO_RESULT} * ({up(sel)} == 1) or on (instance) {UNREACHABLE} + "
        f"{unreachable(sel)})"
    )


def of_nodes(metric: str, sel: str, keep: str = "") -> str:
    """Rename the label `node` of a controller's metric to `instance`.

    Its own `instance` is the controller, and two controllers may have written about one node: the newest or
    largest value counts. Racks and SKUs are the targets'. `keep` names further labels to keep.
    """
    by = ", ".join(["node", *([keep] if keep else [])])
    renamed = f'label_replace(max by ({by}) ({metric}), "instance", "$1", "node", "(.+)")'
    return f"({renamed} * on (instance) group_left (rack, sku) group by (instance, rack, sku) ({up(sel)}))"


# The metrics of AMD's exporter for a field of DCGM, in the same unit (ROCm/device-metrics-exporter v1.5.1,
# docs/configuration/metricslist.md). Of two, an MI300 has the first and an MI200 the second; of a partitioned
# GPU the first partition has all of them.
AMDS: Mapping[str, tuple[str, ...]] = {
    "DEV_GPU_TEMP": ("amd_gpu_junction_temperature", "amd_gpu_edge_temperature"),
    "DEV_MEMORY_TEMP": ("amd_gpu_memory_temperature",),
    "DEV_POWER_USAGE": ("amd_gpu_package_power", "amd_gpu_average_package_power"),
    "DEV_SM_CLOCK": ("amd_gpu_clock",),
    "DEV_GPU_UTIL": ("amd_gpu_gfx_activity",),
    "DEV_FB_USED": ("amd_gpu_used_vram",),
    "DEV_ECC_DBE_VOL_TOTAL": ("amd_gpu_ecc_uncorrect_total",),
    "DEV_ECC_SBE_VOL_TOTAL": ("amd_gpu_ecc_correct_total",),
    "DEV_PCIE_REPLAY_COUNTER": ("amd_pcie_replay_count",),
}
_ONE_OF = {"amd_gpu_clock": ',clock_type="system"'}  # the clock of the compute units; others have other types
# Shares of time in which clocks were throttled, for the equivalent bits of DCGM's mask.
AMDS_REASONS: Mapping[int, tuple[str, ...]] = {
    0x20: ("socket_thermal",),
    0x40: ("vr_thermal", "hbm_thermal"),
    0x80: ("processor_hot",),  # PROCHOT: requested by the board
}


def _of_amds(sel: str) -> str:
    """Convert the matchers of `sel` to select a whole GPU in AMD's exporter."""
    return sel.replace('gpu="', 'gpu_id="') + ',gpu_partition_id=~"0|NA"'


def _numbered(vector: str) -> str:
    """Copy AMD's GPU number to DCGM's label."""
    return f'label_replace({vector}, "gpu", "$1", "gpu_id", "(.+)")'


def _amds(field: str, sel: str, form: str = "{}") -> str:
    """Return ` or` and AMD's metrics for the field. `form`: a format for each metric."""
    matchers = _of_amds(sel)
    metrics = [f"{metric}{{{matchers}{_ONE_OF.get(metric, '')}}}" for metric in AMDS.get(field, ())]
    return f" or {_numbered(' or '.join(map(form.format, metrics)))}" if metrics else ""


def _amds_throttled(reasons: Iterable[str], sel: str) -> str:
    """Return ` or` and 1 for each GPU throttled for one of these reasons, 0 for the others."""
    names = f'__name__=~"amd_gpu_violation_({"|".join(reasons)})_residency_percentage"'
    return f" or max by (instance, gpu) ({_numbered(f'{{{names},{_of_amds(sel)}}}')}) > bool 0"


def dcgm(field: str, sel: str) -> str:
    """Select a field of DCGM, or AMD's equivalent, as one series per GPU.
    With MIG, or with Kubernetes, an exporter has several."""
    return f"max by (instance, gpu) (DCGM_FI_{field}{{{sel}}}{_amds(field, sel)})"


def dcgm_rate(field: str, sel: str) -> str:
    """Return the rate of such a counter, per second and GPU."""
    amds = _amds(field, sel, "rate({}[$__rate_interval])")
    return f"max by (instance, gpu) (rate(DCGM_FI_{field}{{{sel}}}[$__rate_interval]){amds})"


def median(vector: str) -> str:
    """Return the median of a node's GPUs."""
    return f"quantile by (instance) (0.5, {vector})"


def throttled(sel: str, bit: int) -> str:
    """Return 1 for each GPU throttled for this reason, 0 for the others.
    The reason is a bit of DCGM's mask, or a share of time in AMD's exporter."""
    reasons = AMDS_REASONS.get(bit, ())
    return f"({_bit(sel, bit)}{_amds_throttled(reasons, sel) if reasons else ''})"


def throttled_at_all(sel: str) -> str:
    """Return 1 for each GPU that is throttled for an alarming reason, 0 for the others."""
    every = [reason for reasons in AMDS_REASONS.values() for reason in reasons]
    bits = " + ".join(_bit(sel, bit) for bit in ALARMS)
    return f"(clamp_max({bits}, 1){_amds_throttled(every, sel)})"


def _bit(sel: str, bit: int) -> str:
    return f"floor({dcgm('DEV_CLOCKS_EVENT_REASONS', sel)} / {bit}) % 2"


# NVLink 4 and older have totals by kind of error, NVLink 5 has its own counters (dcgm_fields.h). Hopper
# reports no CRC errors through DCGM (NVIDIA/DCGM issue 173), so they are not queried.
def nvlink_recoveries(sel: str) -> str:
    """Return how often per second a GPU's NVLinks went down and trained again."""
    old, new = "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS"
    return f"{dcgm_rate(old, sel)} or {dcgm_rate(new, sel)}"


def nvlink_retries(sel: str) -> str:
    """Return the packets per second that a GPU's NVLinks resent, or received with errors (NVLink 5)."""
    old, new = "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "DEV_NVLINK_COUNT_RX_ERRORS"
    return f"{dcgm_rate(old, sel)} or {dcgm_rate(new, sel)}"
