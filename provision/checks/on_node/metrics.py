"""The node's health as metrics for the node exporter's textfile folder (pure); see docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from provision.checks.exposition import Family, Sample
from provision.checks.judge import Verdict

_FACTS = ("sku", "driver", "os", "kernel")


def families(told: Mapping[str, Any], written: float, burnin: Mapping[str, float]) -> list[Family]:
    """Build the metric families of a run's document.

    `written`: end of the run, seconds since 1970. `burnin`: see burnin.progress."""
    serials = {f"gpu{gpu['index']}": str(gpu["serial"]) for gpu in told["gpus"]}
    counted = [row for row in told["findings"] if row["state"] != "pending" and row["verdict"] != "skip"]
    pending = sum(row["state"] == "pending" for row in told["findings"])
    facts = {name: str(told["facts"].get(name, "")) for name in _FACTS}
    result = [
        Family(
            "gpuprov_health_info",
            "gauge",
            "The health program's version, and what the node is.",
            (Sample(1, {"version": told["gpuprov"], **facts}),),
        ),
        Family(
            "gpuprov_health_verdict",
            "gauge",
            "1 for the verdict on the node, after debouncing.",
            tuple(_one_of(told["verdict"])),
        ),
        Family(
            "gpuprov_health_measured",
            "gauge",
            "1 for the verdict of the last run alone.",
            tuple(_one_of(told["measured"])),
        ),
        _number("gpuprov_health_run_timestamp_seconds", "When the last run ended.", written),
        _number("gpuprov_health_run_duration_seconds", "How long the last run took.", told["seconds"]),
        _number("gpuprov_health_interval_seconds", "Seconds between two runs.", told["interval"]),
        Family(
            "gpuprov_check_verdict",
            "gauge",
            "1 for the verdict of the last run of each check.",
            tuple(
                sample
                for row in told["checks"]
                for sample in _one_of(row["verdict"], {"check": row["check"]})
            ),
        ),
        Family(
            "gpuprov_check_duration_seconds",
            "gauge",
            "How long the programs of each check took in the last run.",
            tuple(Sample(row["seconds"], {"check": row["check"]}) for row in told["checks"]),
        ),
        Family(
            "gpuprov_finding",
            "gauge",
            "1 for each finding that counts.",
            # Findings may differ only in their message, which is not a label.
            tuple(
                {
                    tuple(labels.items()): Sample(1, labels)
                    for row in counted
                    for labels in [
                        {
                            **{
                                key: str(row[key])
                                for key in ("check", "metric", "device", "verdict", "action")
                            },
                            "serial": serials.get(row["device"], ""),
                        }
                    ]
                }.values()
            ),
        ),
        _number("gpuprov_findings_pending", "Findings that do not count yet.", pending),
        Family(
            "gpuprov_gpu_info",
            "gauge",
            "Which physical GPU each one is.",
            tuple(
                Sample(1, {"gpu": str(gpu["index"]), **{key: str(gpu[key]) for key in _IDENTITY}})
                for gpu in told["gpus"]
                if not gpu["lost"]
            ),
        ),
    ]
    for key, name, words in _BURNIN:
        if key in burnin:
            result.append(_number(name, words, burnin[key]))
    return result


_IDENTITY = ("name", "serial", "uuid", "pci_address")
_BURNIN = (
    ("running", "gpuprov_burnin_running", "Whether a burn-in runs on the node."),
    ("progress", "gpuprov_burnin_progress_ratio", "How much of the last burn-in's time has passed."),
    ("end", "gpuprov_burnin_end_timestamp_seconds", "When the last burn-in ends, or has ended."),
)


def _number(name: str, words: str, value: float) -> Family:
    return Family(name, "gauge", words, (Sample(value),))


def _one_of(verdict: str, labels: Mapping[str, str] | None = None) -> Iterator[Sample]:
    for one in Verdict:
        yield Sample(int(one.value == verdict), {**(labels or {}), "verdict": one.value})
