"""`gpuprov watch` under systemd: started, killed and stopped cleanly, observing its own controller over SSH.
The controller has gpuprov installed from its wheel and nothing else of this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab import installed, slurm_cluster
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.installed import GPUPROV
from tests.lab.lab_nodes import Lab, LabNode, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
INVENTORY = "/home/ops/fleet.yml"
UNIT = "gpuprov-watch.service"
LOGIN = """
set -e
test -f ~/.ssh/id_ed25519 || ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
cat ~/.ssh/id_ed25519.pub >> ~/.ssh/authorized_keys
ssh-keyscan 127.0.0.1 >> ~/.ssh/known_hosts 2>/dev/null
"""


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes, disks = (NodeSpec("gpu-01", "h100-sxm"),), {"gpu-01": images.with_slurm()}
    with running_lab("watchunit", nodes, tmp_path_factory.mktemp("lab") / "lab.yml", images=disks) as running:
        yield running


@pytest.fixture(scope="module")
def controller(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabNode]:
    """Provision a node that checks itself and is a Slurm cluster of one, and install gpuprov on it."""
    node = lab.node("gpu-01")
    slurm_cluster.start([node], patience=60)
    operator = Operator(lab.inventory, tmp_path_factory.mktemp("runs"))
    done = operator.call("up", "--yes", timeout=1200, node_health_enabled=True)
    assert done.returncode == ExitCode.OK, said(done)
    installed.install(node, installed.packed(node, tmp_path_factory.mktemp("wheel")))
    node.run(LOGIN)
    variables = {"gpuprov_scheduler": "slurm", "node_health_enabled": True}
    fleet = {"all": {"vars": variables, "hosts": {"gpu-01": {"ansible_host": "127.0.0.1"}}}}
    node.run(f"cat > {INVENTORY}", said=yaml.safe_dump(fleet))
    done = node.run(f"sudo {GPUPROV} watch install {INVENTORY}", check=False)
    assert done.returncode == ExitCode.OK, said(done)
    assert f"it runs as ops\nnext: systemctl enable --now {UNIT}\n" in done.stdout
    yield node
    node.run(f"sudo systemctl disable --now {UNIT}", check=False)


def shown(node: LabNode, *names: str) -> dict[str, str]:
    """Return these properties of the unit."""
    words = f"systemctl show {UNIT} " + " ".join(f"--property={name}" for name in names)
    return dict(line.split("=", 1) for line in node.run(words).stdout.splitlines())


def history(node: LabNode) -> list[dict[str, Any]]:
    """Return the health history that the watch has kept of the node."""
    text = node.run("cat ~/.local/state/gpuprov/watch/*/history.jsonl", check=False).stdout
    return [json.loads(line) for line in text.splitlines()]


def until(node: LabNode, holds: Callable[[], Any], limit: float, what: str) -> None:
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > limit:
            log = node.run(f"sudo journalctl --no-pager --unit={UNIT} --output=cat").stdout
            pytest.fail(f"{what}: not within {limit:.0f} s\n{log[-4000:]}")
        time.sleep(1)


def test_systemd_starts_it_and_it_keeps_what_it_sees(controller: LabNode) -> None:
    controller.as_root(f"systemctl enable --now {UNIT}")
    until(controller, lambda: history(controller), 120, "it has seen the node")
    assert {row["node"] for row in history(controller)} == {"gpu-01"}
    assert shown(controller, "ActiveState", "SubState", "User") == {
        "ActiveState": "active",
        "SubState": "running",
        "User": "ops",
    }
    until(controller, lambda: history(controller)[-1]["verdict"] == "pass", 180, "it is healthy")
    state = json.loads(controller.run(f"{GPUPROV} watch state {INVENTORY} --json").stdout)
    assert (state["service"], state["spares"], state["incidents"]) == (["gpu-01"], [], [])
    second = controller.run(f"{GPUPROV} watch {INVENTORY}", check=False)
    pid = shown(controller, "MainPID")["MainPID"]
    assert second.returncode == ExitCode.ERROR
    assert f"this fleet is already watched by process {pid}" in second.stderr


def test_killed_it_is_started_again(controller: LabNode) -> None:
    before = shown(controller, "MainPID")["MainPID"]
    controller.as_root(f"kill -KILL {before}")
    until(
        controller,
        lambda: (
            shown(controller, "SubState")["SubState"] == "running"
            and shown(controller, "MainPID")["MainPID"] not in ("0", before)
        ),
        60,
        "started again",
    )


def test_it_stops_in_order(controller: LabNode) -> None:
    log = f"sudo journalctl --no-pager --unit={UNIT} --output=cat"
    until(controller, lambda: controller.run(log).stdout.count("watching 1 node") == 2, 60, "it watches")
    controller.as_root(f"systemctl stop {UNIT}")
    assert shown(controller, "ActiveState", "Result", "ExecMainStatus") == {
        "ActiveState": "inactive",
        "Result": "success",
        "ExecMainStatus": "0",
    }
    left = controller.run("ps -eo args | grep -c '[p]rovision.cli'", check=False).stdout.strip()
    assert left == "0"
    assert "Traceback" not in controller.run(log).stdout


# Longer than the 15 seconds between two heartbeats; the test removes the cause within the restart delay.
SOON = r"[Service]\nWatchdogSec=30\nRestartSec=20\n"


def test_a_loop_that_hangs_is_killed_and_started_again(controller: LabNode) -> None:
    """Reading a pipe that has no writer hangs forever, like reading from a dead file server."""
    place = f"/run/systemd/system/{UNIT}.d"
    controller.as_root(f"mkdir -p {place}; printf '{SOON}' > {place}/soon.conf; systemctl daemon-reload")
    controller.as_root(f"systemctl start {UNIT}")  # returns after the first round
    before = shown(controller, "MainPID", "NRestarts", "StatusText", "Type")
    assert before["Type"] == "notify"
    assert before["StatusText"].startswith("at work: 0 nodes out of service")
    time.sleep(45)
    assert shown(controller, "MainPID")["MainPID"] == before["MainPID"], "one that works is left alone"
    pipe = "~/.local/state/gpuprov/watch/*/incidents"
    controller.run(f"mkfifo $(echo {pipe})/pipe.json")
    log = f"sudo journalctl --no-pager --unit={UNIT} --output=cat"
    until(controller, lambda: "Watchdog timeout" in controller.run(log).stdout, 120, "systemd notices")
    controller.run(f"rm {pipe}/pipe.json")
    until(controller, lambda: shown(controller, "SubState")["SubState"] == "running", 120, "started again")
    after = shown(controller, "MainPID", "NRestarts")
    assert after["MainPID"] != before["MainPID"]
    assert int(after["NRestarts"]) == int(before["NRestarts"]) + 1
    text = controller.run(log).stdout
    assert "Fatal Python error: Aborted" in text
    assert "/provision/up/watch/incidents.py" in text.rpartition("Fatal Python error")[2], "where it hung"
