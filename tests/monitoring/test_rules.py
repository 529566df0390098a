"""Coverage of the alerts: every finding has one, with the limits of its check.
docs/alerts.md must agree. test_promtool.py tests whether alerts fire."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from provision.checks import judge
from provision.checks.gpu import inventory_rules
from provision.checks.judging.registry import select
from provision.checks.thresholds import limits
from provision.paths import ROLES
from tests.monitoring import check_metrics, rule_files
from tests.monitoring.rule_files import REST, alerts, fits, selectors, told_by

PAGE = (ROLES.parent / "docs" / "alerts.md").read_text(encoding="utf-8")
NAMES = list(dict.fromkeys(rule["alert"] for rule in alerts()))
# A GPU in use is no fault by itself, only an obstacle to measuring it: no alert.
NO_TROUBLE = {("gpu_inventory", "processes")}
PASSIVE = [
    (check, metric) for check in check_metrics.MODULES for metric in sorted(check_metrics.of_check(check))
]
# Only ever skipped or passed; with any worse verdict they would belong to OtherFinding.
NEVER_BAD = {
    ("gpu_inventory", "xid"),
    ("versions", "versions"),
    ("versions", "not_compared"),
    ("host_health", "host"),
    ("host_health", "smart"),
}


def test_the_passive_checks_are_the_quick_ones_that_this_module_reads() -> None:
    assert set(select("quick")) == set(check_metrics.MODULES)
    assert len(PASSIVE) > 250, "the sources are read: Xids alone are 199"


@pytest.mark.parametrize("verdict", ["fail", "warn"])
def test_every_finding_falls_into_exactly_one_alert(verdict: str) -> None:
    wrong = {
        (check, metric): told
        for check, metric in PASSIVE
        if (check, metric) not in NEVER_BAD | NO_TROUBLE
        and len(told := told_by(check=check, metric=metric, verdict=verdict)) != 1
    }
    assert not wrong


def test_the_alert_on_the_rest_takes_away_what_the_others_name() -> None:
    rests = [rule["expr"] for rule in alerts() if rule["alert"] == REST]
    (rest,) = (text for text in rests if "gpuprov_finding{verdict=~" in text)
    others = [
        selector
        for rule in alerts()
        if rule["alert"] not in (REST, "HealthNotMeasured")
        for selector in selectors(rule["expr"])
    ]
    (own,) = selectors(rest)
    assert sorted(selectors(rest.partition("unless")[2])) == sorted(others)
    assert fits(own, {"check": "site_raid", "metric": "degraded", "verdict": "warn"})
    assert not fits(own, {"check": "gpu_inventory", "metric": "processes", "verdict": "warn"})


def test_what_could_not_be_measured_is_one_alert_whatever_its_metric() -> None:
    for check, metric in PASSIVE:
        assert told_by(check=check, metric=metric, verdict="error") == {"HealthNotMeasured"}
    for verdict in ("pass", "skip"):
        assert told_by(check="gpu_inventory", metric="xid.79", verdict=verdict) == set()


@pytest.mark.parametrize(
    ("metric", "alert"),
    [
        ("untaken", "GpuLost"),
        ("amdgpu.lost", "GpuLost"),
        ("amdgpu.firmware_stuck", "GpuFailing"),
        ("amdgpu.reset_failed", "GpuFailing"),
        ("compute_units", "GpuFailing"),
        ("bad_pages", "GpuMemoryErrors"),
        ("amdgpu.pages_full", "GpuMemoryErrors"),
        ("xgmi_links", "XgmiDown"),
        ("amdgpu.throttled", "GpuThrottled"),
        ("memory_temperature", "GpuHot"),
        ("pcie_speed", "GpuPcieErrors"),
        ("partition", "GpuMisconfigured"),
        ("xid.79", "GpuLost"),
        ("xid.119", "GpuFailing"),
        ("xid.48", "GpuMemoryErrors"),
        ("xid.64", "GpuMemoryErrors"),
        ("xid.74", "NvlinkDown"),
        ("xid.149", "NvlinkDown"),
        ("xid.13", "GpuFailing"),
        ("nvrm.init_failed", "GpuFailing"),
    ],
)
def test_a_finding_is_told_as_what_it_means(metric: str, alert: str) -> None:
    assert told_by(check="gpu_inventory", metric=metric, verdict="fail") == {alert}


def test_each_alert_has_a_severity_and_what_a_person_reads_at_night() -> None:
    for rule in alerts():
        name, labels, said = rule["alert"], rule["labels"], rule["annotations"]
        assert (
            labels["severity"] in ("critical", "warning", "info") or "$labels.verdict" in labels["severity"]
        ), name
        assert labels["scope"] in ("node", "fleet"), name
        assert "for" in rule, name
        assert set(said) == {"summary", "action", "runbook"}, name
        assert said["runbook"] == f"docs/alerts.md#{name.lower()}"
        assert said["action"].startswith("Recommended: "), name
        if labels["scope"] == "node":
            assert "$labels.instance" in said["summary"] or "$labels.node" in said["summary"], name
        if "gpuprov_finding{" in rule["expr"].split("unless")[0]:
            assert "$labels.serial" in said["summary"], name
            assert "$labels.action" in said["action"], name


def test_an_action_that_is_not_the_findings_is_one_of_gpuprovs() -> None:
    for rule in alerts():
        text = rule["annotations"]["action"]
        if "$labels.action" not in text:
            assert text.removeprefix("Recommended: ").partition(". ")[0] in judge.ACTIONS, rule["alert"]


def test_limits_are_those_of_the_checks() -> None:
    text = {name: " ".join(rule["expr"] for rule in alerts() if rule["alert"] == name) for name in NAMES}
    assert f"gpuprov:gpu_temperature_excess:celsius > {judge.HOTTER:g}" in text["GpuHot"]
    replays = f"gpuprov:gpu_pcie_replays:per_minute > {inventory_rules.REPLAYS_PER_MINUTE:g}"
    assert replays in text["GpuPcieErrors"]
    ports = limits("port_limits")
    downs = ports["link_downs_per_day"]["fail"]["limit"]
    assert f"round(increase(node_infiniband_link_downed_total[24h])) >= {downs}" in text["NetworkLinkErrors"]
    found = re.findall(r"increase\(node_infiniband_(\w+)_total\[1h\]\)\) > (\d+)", text["NetworkLinkErrors"])
    assert len(found) == 3
    for name, limit in found:
        assert ports["errors_per_hour"][name]["limit"] == int(limit), name


def test_the_page_has_a_section_for_each_alert_and_no_other() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in sections] == sorted(NAMES, key=_order)
    for section in sections:
        name = section.partition("\n")[0]
        assert "Not this" in section, name
        assert "\nDo: " in section, name
        assert "\n```" in section, name


def _order(name: str) -> int:
    """Return a sort key: the page starts with GPUs and the rules with findings, but both are complete."""
    return PAGE.find(f"\n## {name}\n")


@pytest.mark.parametrize("alert", NAMES)
def test_each_alert_has_cases_that_fire_resolve_and_look_alike(alert: str) -> None:
    kinds: Counter[str] = Counter()
    for case in rule_files.cases():
        name, _, what = case["name"].partition(": ")
        if name != alert:
            continue
        asked = case["alert_rule_test"]
        assert all(one["alertname"] == alert for one in asked)
        silent = not any(one["exp_alerts"] for one in asked)
        kinds["fires"] += not silent
        kinds["resolves"] += bool(asked[0]["exp_alerts"]) and not asked[-1]["exp_alerts"]
        kinds["looks alike"] += what.startswith("not when ") and silent
    assert all(kinds[kind] for kind in ("fires", "resolves", "looks alike")), kinds
