"""Metrics of all findings that passive checks can produce, extracted from the checks' source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType

from provision.checks.gpu import fabric, gpu_inventory, inventory_links, inventory_rules, nvlink_errors
from provision.checks.host import host_health, host_rules, versions
from provision.checks.kernel import kernel_incidents
from provision.checks.kernel.vendors import driver_log
from provision.checks.network import link_losses, network_ports, network_rules
from provision.checks.thresholds import limits
from provision.checks.vendors.amd import bad_pages as amds_pages
from provision.checks.vendors.amd import gpu_inventory as amds_inventory
from provision.checks.vendors.amd import host_health as amds_host
from provision.checks.vendors.amd import rules as amds_rules
from provision.checks.vendors.amd import versions as amds_versions

MODULES: dict[str, tuple[ModuleType, ...]] = {
    "gpu_inventory": (
        *(gpu_inventory, fabric, inventory_rules, inventory_links, nvlink_errors, kernel_incidents),
        *(amds_inventory, amds_rules, amds_pages),
    ),
    "versions": (versions, amds_versions),
    "host_health": (host_health, host_rules, amds_host),
    "network_ports": (network_ports, network_rules, link_losses),
}
# Function → position of its argument that holds the metric.
_PLACES = {
    "Finding": 4,
    "finding": 3,
    "_fail": 1,
    "_apart": 2,
    "_finding": 2,
    "hotter": 1,
    "limited": 1,
    "worn": 1,
    "all_good": 0,
    "Measurement": 0,
}
# Metrics that are computed from a table or an input: (module, function) → all possible values.
_AMDS = tuple(f"{driver_log.KIND}.{kind}" for kind in driver_log.MEANINGS)
_XIDS = tuple(f"xid.{code}" for code in range(1, 200))
_ERRORS = (*network_rules._BITS, *limits("port_limits")["errors_per_hour"])
_FLAGS = tuple(inventory_rules._FLAGS)
_COMPUTED: dict[tuple[str, str], tuple[str, ...]] = {
    ("gpu_inventory", "judge_readability"): tuple(
        f"unreadable.{name}" for name in ("nvidia_smi", "nvlink", "nvlink_errors", "kernel_log")
    ),
    ("gpu_inventory", "_readability"): (),  # AMD's; a value that was not queried is skipped
    ("inventory_rules", "all_good"): (),
    ("inventory_rules", "limited"): (),  # its callers pass the metric
    ("inventory_rules", "judge_flags"): _FLAGS,
    ("inventory_rules", "_spare_rows"): ("remap_banks_low", "remap_banks_none"),
    ("inventory_links", "judge_links"): ("nvlink_links", "nvlink_speed"),
    ("fabric", "_fabric_health"): tuple(fabric._HEALTH),
    ("inventory_links", "_modes"): tuple(inventory_links._MODES),
    ("kernel_incidents", "judge"): (),  # its _finding sets the metric
    ("kernel_incidents", "_finding"): (*_XIDS, *_AMDS, "sxid.20034", "aer.0", "aer.1", "aer.2"),
    ("versions", "_apart"): (),
    ("versions", "_finding"): (),
    ("versions", "_differing"): versions.ALIKE,
    ("rules", "_links_now"): ("xgmi_down", "xgmi_up"),
    ("host_rules", "finding"): (),
    ("host_health", "judge_wear"): (),  # the callers of `worn` pass the metric
    ("host_health", "worn"): (),
    ("network_rules", "_fail"): (),
    ("network_rules", "full"): _ERRORS,
    ("network_rules", "judge_errors"): _ERRORS,
    ("network_rules", "judge_retransmissions"): tuple(limits("port_limits")["retransmissions_per_hour"]),
}


def _said(function: ast.FunctionDef) -> Iterator[ast.expr | None]:
    """Yield a function's metric arguments. Measurements count in the function that judges them."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    for call in calls:
        if not isinstance(call.func, ast.Name) or call.func.id not in _PLACES:
            continue
        if call.func.id == "Measurement" and not names & {"finding_on", "by_threshold"}:
            continue
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        position = _PLACES[call.func.id]
        if "metric" in named or len(call.args) > position:
            yield named.get("metric") or call.args[position]


def of_check(check: str) -> set[str]:
    """Return every metric that a finding of this check can have.
    Raises AssertionError for a computed metric that is missing in _COMPUTED."""
    metrics: set[str] = set()
    for module in MODULES[check]:
        name = module.__name__.rpartition(".")[2]
        for function in ast.walk(ast.parse(inspect.getsource(module))):
            if not isinstance(function, ast.FunctionDef) or function.name.startswith("parse"):
                continue
            for metric in _said(function):
                if isinstance(metric, ast.Constant):
                    metrics.add(str(metric.value))
                else:
                    assert (name, function.name) in _COMPUTED, f"{name}.{function.name} computes a metric"
                    metrics.update(_COMPUTED[name, function.name])
    return metrics
