"""A monitoring host for a GPU node: Debian's Prometheus scrapes Debian's node exporter.
A finding of the health program becomes an alert in Alertmanager, and ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

PROM = "/var/lib/prometheus/node-exporter/gpuprov.prom"
SERIAL = "1650322403647"
LOST = (
    'gpuprov_finding{check="gpu_inventory",metric="xid.79",device="gpu3",verdict="fail",action="power-cycle",'
    f'serial="{SERIAL}"}} 1\n'
)
SCRAPE, HOLD, KEPT = 30, 60, 300  # seconds: scrape interval, `for`, `keep_firing_for`


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("mon", "none"), NodeSpec("gpu", "h100-sxm"))
    with running_lab("mo", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    """Set up the monitoring host with `up`, and the GPU node with the exporter and a health file."""
    declared = yaml.safe_load(lab.inventory.read_text())
    declared["gpu_nodes"]["hosts"]["gpu"]["gpuprov_rack"] = "r7"
    declared["gpuprov_monitoring"] = {"hosts": {"mon": {}}}
    inventory = tmp_path_factory.mktemp("inventory") / "nodes.yml"
    inventory.write_text(yaml.safe_dump(declared))
    gpu = lab.node("gpu")
    gpu.as_root("apt-get update -qq && apt-get install -y -qq prometheus-node-exporter", timeout=300)
    healthy(lab)
    return Operator(inventory, tmp_path_factory.mktemp("runs"))


def healthy(lab: Lab, finding: str = "") -> None:
    """Write the current file of the health program.
    (It runs every minute; here a long interval in the file avoids the alert for missing runs.)"""
    verdict = "fail" if finding else "pass"
    text = f'gpuprov_health_verdict{{verdict="{verdict}"}} 1\ngpuprov_health_interval_seconds 86400\n'
    text += f"gpuprov_health_run_timestamp_seconds {time.time():.0f}\n{finding}"
    lab.node("gpu").as_root(f"cat > {PROM}.new && mv {PROM}.new {PROM}", said=text)


def query(lab: Lab, expression: str) -> list[dict[str, Any]]:
    """Return Prometheus's answer, one entry for each series."""
    answer = lab.node("mon").run(f"promtool query instant -o json http://127.0.0.1:9090 '{expression}'")
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


def active(lab: Lab, alert: str) -> list[dict[str, Any]]:
    """Return Alertmanager's alerts of this name."""
    words = f"amtool alert query -o json --alertmanager.url=http://127.0.0.1:9093 alertname={alert}"
    found: list[dict[str, Any]] = json.loads(lab.node("mon").run(words).stdout)
    return found


def waited(holds: Callable[[], Any], limit: float) -> float:
    """Wait until the condition holds, and return the seconds."""
    begun = time.monotonic()
    while time.monotonic() - begun < limit:
        if holds():
            return time.monotonic() - begun
        time.sleep(2)
    pytest.fail(f"not within {limit:.0f} s")


def test_up_makes_a_monitoring_host_and_nothing_else_of_it(lab: Lab, operator: Operator) -> None:
    done = operator.call("up", "--yes", "--nodes", "mon")
    assert done.returncode == ExitCode.OK, said(done)
    mon = lab.node("mon")
    assert "nvidia" not in mon.run("dpkg-query --show --showformat '${Package} '").stdout
    assert (
        mon.run("stat -c '%a %U:%G' /etc/prometheus/gpuprov/alertmanager.yml").stdout.strip()
        == "640 root:prometheus"
    )
    assert mon.run("sudo ss -Hltn 'sport = :9090'").stdout.split()[3] == "127.0.0.1:9090"
    assert mon.run("sudo ss -Hltn 'sport = :9094'").stdout == ""
    drift = operator.call("drift", "--nodes", "mon")
    assert drift.returncode == ExitCode.OK, said(drift)
    again = operator.call("up", "--yes", "--nodes", "mon")
    assert again.returncode == ExitCode.OK
    assert operator.records("events") == []


def test_a_second_run_of_the_role_itself_changes_nothing(operator: Operator) -> None:
    done = operator.call("up", "--yes", "--full", "--nodes", "mon")
    assert done.returncode == ExitCode.OK, said(done)
    events = [event for event in operator.records("events") if event["role"] == "monitoring"]
    assert events
    assert not [event for event in events if event["kind"] == "changed"]


@pytest.mark.usefixtures("operator")
def test_it_scrapes_the_node_under_its_own_name(lab: Lab) -> None:
    waited(lambda: any(one["value"][1] == "1" for one in query(lab, 'up{job="node"}')), 120)
    (node,) = query(lab, 'up{job="node"}')
    assert (node["metric"]["instance"], node["metric"]["rack"]) == ("gpu", "r7")
    running = {"prometheus", "alertmanager", "node"}  # each is scraped at a different time within the 30 s
    waited(
        lambda: running == {one["metric"]["program"] for one in query(lab, 'up{job="monitoring"} == 1')}, 120
    )
    assert query(lab, "prometheus_config_last_reload_successful")[0]["value"][1] == "1"
    assert active(lab, "GpuLost") == []


@pytest.mark.usefixtures("operator")
def test_a_lost_gpu_is_told_with_all_a_person_needs_and_ends(lab: Lab) -> None:
    healthy(lab, LOST)
    seconds = waited(lambda: active(lab, "GpuLost"), 4 * SCRAPE + HOLD + 60)
    print(f"a lost GPU is told {seconds:.0f} s after the health program has it")  # noqa: T201 - a measurement
    (alert,) = active(lab, "GpuLost")
    assert alert["labels"]["severity"] == "critical"
    assert f"gpu (rack r7), gpu3 (serial {SERIAL}): a GPU is gone" in alert["annotations"]["summary"]
    assert alert["annotations"]["action"].startswith("Recommended: power-cycle. ")
    assert alert["annotations"]["runbook"] == "docs/alerts.md#gpulost"
    healthy(lab)
    seconds = waited(lambda: not active(lab, "GpuLost"), KEPT + 4 * SCRAPE + 120)
    print(f"the alert ends {seconds:.0f} s after the finding")  # noqa: T201 - a measurement
    assert seconds > KEPT / 2, "a scrape that fails must not read as a repair"


def test_what_somebody_changed_is_drift_and_repaired(lab: Lab, operator: Operator) -> None:
    mon, rules = lab.node("mon"), "/etc/prometheus/gpuprov/gpuprov-alerts.yml"
    exporter = "systemctl show --value --property=MainPID,ActiveState prometheus-node-exporter"
    before = mon.run(exporter).stdout
    assert "active" in before
    mon.as_root(f"sed -i s/critical/info/ {rules}; systemctl stop prometheus-alertmanager")
    facts = operator.drifted()
    assert {f"file.{rules}.sha256", "service.prometheus-alertmanager.service.active"} <= facts.keys()
    done = operator.call("up", "--yes", "--nodes", "mon")
    assert done.returncode == ExitCode.OK, said(done)
    assert mon.run("systemctl is-active prometheus-alertmanager").stdout.strip() == "active"
    assert mon.run(exporter).stdout == before, "no change of the role is for the node exporter"


def test_a_configuration_that_alertmanager_refuses_replaces_nothing(lab: Lab, operator: Operator) -> None:
    mon, file = lab.node("mon"), "/etc/prometheus/gpuprov/alertmanager.yml"
    before = mon.as_root(f"sha256sum {file}").stdout
    done = operator.call("up", "--yes", "--nodes", "mon", monitoring_routes=[{"receiver": "nobody"}])
    assert done.returncode != ExitCode.OK
    assert "amtool refuses it" in said(done)
    assert mon.as_root(f"sha256sum {file}").stdout == before


def test_dashboards_may_be_there_before_grafana(operator: Operator) -> None:
    done = operator.call("up", "--yes", "--nodes", "mon", monitoring_grafana=True)
    assert done.returncode == ExitCode.OK, said(done)


def test_removed_it_leaves_the_packages_own_configuration(lab: Lab, operator: Operator) -> None:
    done = operator.call("up", "--yes", "--nodes", "mon", "--remove", "monitoring")
    assert done.returncode == ExitCode.OK, said(done)
    mon = lab.node("mon")
    assert mon.run("ls /etc/prometheus").stdout.split().count("gpuprov") == 0
    assert mon.run("systemctl is-active prometheus", check=False).stdout.strip() == "inactive"
    assert mon.run("ls -d /var/lib/prometheus/metrics2").returncode == 0
