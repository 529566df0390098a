"""A fleet in service: eight nodes that check themselves, Prometheus, and a broken GPU.

From the broken GPU to the alert on a user's screen, and back, through the real Prometheus, Alertmanager and
node exporter of Debian.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab
from tests.monitoring import panel_queries

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]

COUNT = 8
GPUS = [f"gpu-{number:02d}" for number in range(1, COUNT + 1)]
BROKEN, GPU = "gpu-03", 5
WORN, OFF = "gpu-07", "gpu-08"  # for the panels of warnings and of silent nodes
ENABLED: dict[str, Any] = {
    "node_health_enabled": True,
    "gpu_metrics_enabled": True,
    "monitoring_listen_address": "0.0.0.0",  # noqa: S104 - the lab's own bridge
}
# Metrics that only a controller or a burn-in writes: tests/monitoring/test_dashboards_live.py covers their
# panels.
ELSEWHERE = ("gpuprov_burnin", "gpuprov_validation", "gpuprov_drift")


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (*(NodeSpec(name, "h100-sxm") for name in GPUS), NodeSpec("mon", "l40s"))
    disks = dict.fromkeys(GPUS, images.h100())
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("service", nodes, inventory, images=disks) as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    declared = yaml.safe_load(lab.inventory.read_text())
    for number, name in enumerate(GPUS):
        declared["gpu_nodes"]["hosts"][name]["gpuprov_rack"] = f"r{number // 4 + 1}"
    declared["gpuprov_monitoring"] = {"hosts": {"mon": {}}}
    inventory = tmp_path_factory.mktemp("inventory") / "nodes.yml"
    inventory.write_text(yaml.safe_dump(declared))
    one = Operator(inventory, tmp_path_factory.mktemp("runs"))
    done = one.call("up", "--yes", timeout=2400, **ENABLED)
    assert done.returncode == ExitCode.OK, said(done)
    return one


def until(holds: Any, limit: float, what: str) -> float:
    """Wait until the condition holds, and return the seconds."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < limit, f"{what}: not within {limit:.0f} s"
        time.sleep(1)
    return time.monotonic() - begun


def scraped(lab: Lab, job: str) -> set[str]:
    words = f"promtool query instant -o json http://127.0.0.1:9090 'up{{job=\"{job}\"}} == 1'"
    return {one["metric"]["instance"] for one in json.loads(lab.node("mon").run(words).stdout)}


def alerts(lab: Lab, name: str) -> list[dict[str, Any]]:
    words = f"amtool alert query -o json --alertmanager.url=http://127.0.0.1:9093 alertname={name}"
    found: list[dict[str, Any]] = json.loads(lab.node("mon").run(words).stdout)
    return found


def health(lab: Lab, name: str) -> str:
    told = lab.node(name).run("sudo cat /run/gpuprov/health.json", check=False).stdout
    return str(json.loads(told)["verdict"]) if told else ""  # absent after a boot until the first run


def test_every_node_is_scraped_and_healthy(lab: Lab, operator: Operator) -> None:
    until(lambda: scraped(lab, "node") >= set(GPUS), 180, "node exporters")
    until(lambda: scraped(lab, "dcgm") >= set(GPUS), 180, "GPU exporters")
    status = operator.call("status", "--json")
    assert status.returncode == ExitCode.OK, said(status)
    assert {node["verdict"] for node in json.loads(status.stdout)["nodes"]} == {"pass"}
    drift = operator.call("drift", **ENABLED)
    assert drift.returncode == ExitCode.OK, said(drift)


def test_a_broken_gpu_is_on_a_screen_within_three_minutes_and_gone_after_its_repair(
    lab: Lab, operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    node = lab.node(BROKEN)
    fields = f"nvidia-smi -i {GPU} --query-gpu=serial --format=csv,noheader"
    serial = node.run(fields).stdout.strip()
    lab.node(WORN).fault("remapped_many", gpu=1)
    lab.node(OFF).power_off()
    node.fault("gpu_off_bus", gpu=GPU)
    begun = time.monotonic()
    told = until(lambda: health(lab, BROKEN) == "fail", 70, "the node's own verdict")
    until(lambda: alerts(lab, "GpuLost"), 180 - told, "the alert")
    fired = time.monotonic() - begun
    summaries = [one["annotations"]["summary"] for one in alerts(lab, "GpuLost")]
    assert any(f"{BROKEN} (rack r1), gpu{GPU}" in text for text in summaries), summaries
    assert any(f"(serial {serial})" in text for text in summaries), summaries
    assert all("power-cycle" in one["annotations"]["action"] for one in alerts(lab, "GpuLost"))
    status = operator.call("status")
    assert status.returncode == ExitCode.UNHEALTHY
    assert f"gpu{GPU}" in status.stdout
    until(lambda: health(lab, WORN) == "warn", 400, "a warning, which has to be seen three times")
    time.sleep(30)  # one scrape interval
    _panels(lab)
    lab.node(OFF).power_on()
    lab.node(WORN).heal()
    node.heal()
    node.reboot()
    repaired = time.monotonic()
    until(lambda: health(lab, BROKEN) == "pass", 180, "the node's own verdict after the repair")
    until(lambda: not alerts(lab, "GpuLost"), 600, "the end of the alert")
    over = time.monotonic() - repaired
    with capsys.disabled():
        print(f"\nverdict after {told:.0f} s, alert after {fired:.0f} s, over after {over:.0f} s")  # noqa: T201
    until(lambda: operator.call("status").returncode == ExitCode.OK, 400, "a healthy fleet")


def _panels(lab: Lab) -> None:
    """Assert that every panel has data of these nodes, and that health panels show the broken one."""
    address = f"http://{lab.node('mon').address}:9090"
    now, silent, alike = time.time(), [], []
    for panel in panel_queries.panels():
        if panel.board == "burnin" or any(word in one.expr for one in panel.targets for word in ELSEWHERE):
            continue
        shown = [
            panel_queries.shown(
                address, panel, {**panel_queries.choice(name, rack, GPU), "__rate_interval": "2m"}, now
            )
            for name, rack in ((BROKEN, "r1"), ("gpu-05", "r2"))
        ]
        silent += [f"{panel}: {expr}" for expr in panel_queries.unanswered(panel, *shown)]
        pictures = {str(panel_queries.picture(one)) for one in shown}
        if len(pictures) == 1 and panel.title not in panel_queries.ALIKE:
            alike.append(str(panel))
    assert silent == [], "\n".join(silent)
    print("panels that show both nodes alike:", ", ".join(alike))  # noqa: T201
