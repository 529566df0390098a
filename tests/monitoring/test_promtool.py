"""Rules and configurations of the role monitoring, checked by Debian's own promtool and amtool.

Fetching the programs needs root, for the lab's cache, and a mirror. Without root all tests here are skipped,
as the summary shows.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.command import waiting_lock
from gpuprov_lab.places import LOCKS
from provision import paths, yamlfile
from provision.desired.expectations import of_node, renderer_for
from provision.desired.role import all_roles
from tests.monitoring import debian_programs
from tests.monitoring.rule_files import ALERTS, CASES, RECORDING

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="LAB TESTS DID NOT RUN: they need root (sudo scripts/test)"),
]

DEBIAN = {
    "os": {"id": "debian", "version_id": "13", "codename": "trixie", "family": "debian", "arch": "x86_64"},
    "kernel": {"release": "6.12.0", "boot_release": "6.12.0"},
    "gpu": {
        "sku": None,
        "count": 0,
        "architecture": None,
        "fabric": "none",
        "pci_ids": [],
        "product_names": [],
    },
}
NODES = [
    {"name": "gpu-01", "address": "192.0.2.1", "rack": "r1", "sku": "h100-sxm", "gpus": True},
    {
        "name": "amd-01",
        "address": "192.0.2.3",
        "rack": "r1",
        "sku": "mi300x",
        "gpus": True,
        "exporter": "amd",
    },
    {"name": "amd-02", "address": "192.0.2.4", "rack": "r1", "sku": "mi300x", "gpus": True, "exporter": ""},
    {"name": "cpu-01", "address": "2001:db8::1", "rack": "", "sku": "", "gpus": False},
]


@pytest.fixture(scope="module")
def programs() -> Path:
    with waiting_lock(LOCKS / "prometheus-programs.lock"):
        return debian_programs.unpacked()


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GOGC": "800"}  # otherwise promtool spends 25 % in garbage collection
    return subprocess.run(words, capture_output=True, text=True, timeout=240, check=False, env=environment)


def accepted(*words: str | Path) -> str:
    done = run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_is_of_the_release_that_the_role_installs(programs: Path) -> None:
    assert accepted(programs / "promtool", "--version").startswith("promtool, version 2.5")


def test_the_rules_are_rules(programs: Path) -> None:
    said = accepted(programs / "promtool", "check", "rules", "--lint=all", "--lint-fatal", ALERTS, RECORDING)
    assert said.count("SUCCESS") == 2


@pytest.mark.parametrize("cases", CASES, ids=lambda file: file.stem)
def test_alerts_fire_resolve_and_spare_healthy_look_alikes(programs: Path, cases: Path) -> None:
    accepted(programs / "promtool", "test", "rules", cases)


def test_a_case_that_is_wrong_is_seen(programs: Path, tmp_path: Path) -> None:
    (cases,) = (file for file in CASES if file.stem == "controller")
    text = cases.read_text(encoding="utf-8").replace("../../../roles", str(paths.ROLES))
    (tmp_path / "same.yml").write_text(text)
    accepted(programs / "promtool", "test", "rules", tmp_path / "same.yml")
    (tmp_path / "wrong.yml").write_text(
        text.replace("gpu-01: the last validate", "gpu-02: the last validate")
    )
    done = run(programs / "promtool", "test", "rules", tmp_path / "wrong.yml")
    assert done.returncode != 0
    assert "ValidationFailed" in done.stdout + done.stderr


DECLARED: dict[str, dict[str, Any]] = {
    "bare": {},
    "all": {
        "gpu_metrics_tls_certificate": "-----BEGIN CERTIFICATE-----",
        "gpu_metrics_port": 9401,
        "monitoring_ca": "-----BEGIN CERTIFICATE-----\n",
        "monitoring_user": "prometheus",
        "monitoring_password": "word: \"with\" 'quotes'",
        "monitoring_listen_address": "::1",
        "monitoring_url": "https://prometheus.example.org/",
        "monitoring_webhook_urls": ["https://chat.example.org/hooks/a?b=c&d={e}"],
        "monitoring_email_to": ["night@example.org"],
        "monitoring_email_from": "gpuprov@example.org",
        "monitoring_smtp_server": "mail.example.org:587",
        "monitoring_smtp_user": "gpuprov",
        "monitoring_smtp_password": "another word",
        "monitoring_receivers": [
            {"name": "pager", "webhook_configs": [{"url": "https://pager.example.org/"}]}
        ],
        "monitoring_routes": [{"receiver": "pager", "matchers": ['severity="critical"'], "continue": True}],
        "monitoring_grafana": True,
    },
}


def written(declared: dict[str, Any], folder: Path) -> Path:
    """Write the role's files with `folder` in place of the real one."""
    variables = {"monitoring_nodes": NODES, "inventory_hostname": "mon-01", **declared}
    role = all_roles()["monitoring"]
    renderer = renderer_for(role, variables, DEBIAN)
    for name in ("nodes.yml", "prometheus.yml", "alertmanager.yml", "password", "ca", "smtp-password"):
        text = renderer.file((role.path / "templates" / f"{name}.j2").read_text(encoding="utf-8"), {})
        (folder / {"ca": "ca.pem"}.get(name, name)).write_text(
            text.replace("/etc/prometheus/gpuprov", str(folder))
        )
    for file in (ALERTS, RECORDING):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize("case", DECLARED)
def test_the_configurations_are_understood(programs: Path, tmp_path: Path, case: str) -> None:
    folder = written(DECLARED[case], tmp_path)
    said = accepted(programs / "promtool", "check", "config", folder / "prometheus.yml")
    assert "2 rule files found" in said
    said = accepted(programs / "amtool", "check-config", folder / "alertmanager.yml")
    assert f"{1 + len(DECLARED[case].get('monitoring_receivers', []))} receivers" in said


def test_each_job_scrapes_the_nodes_that_have_its_exporter_as_it_answers(tmp_path: Path) -> None:
    folder = written(DECLARED["all"], tmp_path)
    jobs = {job["job_name"]: job for job in yamlfile.load(folder / "prometheus.yml")["scrape_configs"]}
    targets = yamlfile.load(folder / "nodes.yml")
    found = {}
    for name in ("node", "dcgm", "amd"):
        kept = [rule for rule in jobs[name]["relabel_configs"] if rule.get("action") == "keep"]
        assert [rule["regex"] for rule in kept] == ([] if name == "node" else [name])
        found[name] = [
            one["labels"]["instance"]
            for one in targets
            if all(one["labels"][rule["source_labels"][0]] == rule["regex"] for rule in kept)
        ]
    assert found == {
        "node": ["gpu-01", "amd-01", "amd-02", "cpu-01"],
        "dcgm": ["gpu-01"],
        "amd": ["amd-01"],
    }
    assert jobs["dcgm"]["scheme"] == "https"
    assert "basic_auth" in jobs["dcgm"]
    assert jobs["amd"]["scheme"] == "http"
    assert not {"basic_auth", "tls_config"} & jobs["amd"].keys()
    assert jobs["amd"]["relabel_configs"][-1]["replacement"] == "$1:5000"


def test_routes_of_your_own_come_before_the_default(programs: Path, tmp_path: Path) -> None:
    config = f"--config.file={written(DECLARED['all'], tmp_path) / 'alertmanager.yml'}"
    for severity, receivers in (("critical", "pager,gpuprov"), ("warning", "gpuprov")):
        done = run(programs / "amtool", "config", "routes", "test", config, f"severity={severity}")
        assert done.stdout.strip() == receivers, done.stderr


def test_the_expectations_compare_the_digests_of_what_is_written() -> None:
    declared = {"monitoring_nodes": NODES, "monitoring_enabled": True, "gpuprov_roles": ["monitoring"]}
    declared["inventory_hostname"] = "mon-01"
    expected = {one.fact: one for one in of_node(declared, DEBIAN)}
    rules = expected["file./etc/prometheus/gpuprov/gpuprov-alerts.yml.sha256"]
    assert (rules.operator, rules.value) == ("equals", hashlib.sha256(ALERTS.read_bytes()).hexdigest())
