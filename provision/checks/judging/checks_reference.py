"""Reference text of a check: detected faults, stage, needs, and limits with their sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.checks import thresholds
from provision.checks.judge import limit_text
from provision.checks.judging import registry
from provision.checks.judging.table import BUILT_IN

_RUNS = {
    "quick": "in every validate",
    "standard": "in every validate but --stage quick",
    "burnin": "with validate --stage burnin",
    "pairs": "with validate --pairs, or by name: validate --checks {id}",
    "group": "with validate --group, or by name: validate --checks {id}",
    "by name": "by name: validate --checks {id}",
}
_ASKED_BY = {"pairs": "`--pairs`", "group": "`--group`"}
# Limits independent of the SKU: file below data/, and its keys.
_PORT_ERRORS = (
    "least_hours",
    "errors_per_hour",
    "symbol_errors_per_hour_and_gbs",
    "link_downs_per_day",
    "link_downs_undated",
    "link_downs_beside_peers",
    "retransmissions_per_hour",
    "congestion_per_hour",
)
_HOST = (
    *("shm_bytes", "memlock", "memory_corrected_per_day", "memory_uncorrected"),
    *("nvme_percent_used", "clock_settling_s", "free_percent"),
)
FIXED: Mapping[str, tuple[str, Sequence[str]]] = {
    "host_health": ("host_limits", _HOST),
    "network_ports": ("port_limits", _PORT_ERRORS),
    "pair_bandwidth": ("port_limits", ("pair_share",)),
    "pair_latency": ("port_limits", ("pair_latency",)),
    "nccl_pair": ("port_limits", ("nccl_share",)),
    "nccl_group": ("port_limits", ("nccl_share",)),
}


def explained(name: str) -> Iterator[str]:
    """Yield the lines of `gpuprov docs NAME` for a check."""
    entry = registry.table()[name]
    check = entry.load()
    yield f"{name}{f' (from {entry.source})' if entry.source else ''}"
    yield ""
    yield check.SUMMARY
    yield ""
    shown = {
        "finds": finds(name),
        "stage": f"{entry.stage}: {_RUNS[entry.stage].format(id=name)}",
        "about": f"a {entry.scope}",
        "needs": ", ".join(getattr(check, "NEEDS", ())),
        "facts": ", ".join(getattr(check, "FACTS", ())),
    }
    yield from (f"{label:<8} {text}" for label, text in shown.items() if text)
    yield ""
    limits = [*_by_sku(name), *_fixed(name)]
    yield "limits" if limits else "limits: none that is a number of ours"
    yield from limits
    yield ""
    yield "more: gpuprov docs thresholds, gpuprov docs validate"


def finds(name: str) -> str:
    """Return the faults that a built-in check detects; empty for a user's own."""
    return str(getattr(registry.table()[name].load(), "FINDS", ""))


def table() -> str:
    """Render the table of checks in docs/validate.md."""
    rows = [f"| `{one.id}` | {_ASKED_BY.get(one.stage, one.stage)} | {finds(one.id)} |" for one in BUILT_IN]
    return "\n".join(["| check | stage | finds |", "|---|---|---|", *rows])


def _by_sku(name: str) -> Iterator[str]:
    rows: dict[str, list[str]] = {}
    for sku in thresholds.available():
        for metric, limit in thresholds.for_sku(sku).items():
            if metric.startswith(f"{name}."):
                rows.setdefault(metric, []).append(
                    f"    {sku:<12} {limit_text(limit)}, {limit.kind}: {' '.join(limit.cited.split())}"
                )
    for metric, lines in rows.items():
        yield f"  {metric}"
        yield from lines


def _fixed(name: str) -> Iterator[str]:
    file, keys = FIXED.get(name, ("", ()))
    for key in keys:
        yield f"  {key}"
        yield from _stated(thresholds.limits(file)[key], "")


def _stated(row: Mapping[str, Any], label: str) -> Iterator[str]:
    """Yield a limit with its source; a mapping of several limits yields one line each."""
    if "limit" in row:
        unit = f" {row['unit']}" if "unit" in row else ""
        yield f"    {label}{row['limit']}{unit}, {row['kind']}: {' '.join(str(row['source']).split())}"
    else:
        for inner, one in row.items():
            yield from _stated(one, f"{inner} ")
