"""A burn-in of a fleet, seen from the controller: killed, cut off, rebooted, with one full record.

The tests run in the order written: each builds on the previous campaign.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuprov_lab import network
from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.burnins import Burnins, hear, kill, seconds_of, wait_until_over
from tests.lab.images import Images
from tests.lab.lab_nodes import running_lab

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab

SPEED = 20.0
# A minute of a burn takes three seconds here, so a soak of 40 minutes is long enough for all events below.
PROFILE = """\
summary: forty minutes, for tools that are simulated
minutes: 45
sample_seconds: 80
space_mib: 64
ramp_steps: 2
ramp_seconds: 2
abort: {gpu_celsius: 120, failed_steps: 50}
segments:
  - {name: look, kind: load, checks: [gpu_inventory], repeat: 1}
  - {name: heat, kind: soak, checks: [gpu_burn], minutes: 40, step_minutes: 2}
  - {name: again, kind: load, checks: [nccl_all_reduce], repeat: 1}
"""
HOOK = '#!/bin/sh\ncat >> "$(dirname "$0")/drained"\n'
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("burnin")
    (made / "soak.yml").write_text(PROFILE)
    (made / "hook").write_text(HOOK)
    (made / "hook").chmod(0o755)
    return made


@pytest.fixture(scope="module")
def lab(folder: Path, images: Images) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("gpu-02", "h100-sxm"))
    declared = {node.name: images.h100() for node in nodes}
    with running_lab("burnall", nodes, folder / "lab.yml", speed=SPEED, images=declared) as running:
        yield running


@pytest.fixture(scope="module")
def burnins(lab: Lab, folder: Path) -> Burnins:
    return Burnins(lab.inventory, folder, folder / "soak.yml")


def begin(burnins: Burnins, *more: str, verb: str = "start") -> subprocess.CompletedProcess[str]:
    return burnins.begin("--set", f"gpuprov_drain_hook={burnins.folder / 'hook'}", *more, verb=verb)


def test_the_plan_says_minutes_and_kilowatts_and_loads_nothing(burnins: Burnins, lab: Lab) -> None:
    done = begin(burnins, "--set", "gpuprov_fleet_kw=15", "--json", verb="plan")
    assert done.returncode == ExitCode.OK, done.stderr
    plan = json.loads(done.stdout)
    assert plan["turns"] == 2  # 11.4 kW each, 2.9 kW while waiting
    assert plan["peak_kw"] <= 15
    assert (
        lab.node("gpu-01").run("systemctl is-active gpuprov-burnin", check=False).stdout.strip() == "inactive"
    )
    refused = begin(burnins, "--set", "gpuprov_fleet_kw=12", verb="plan")
    assert refused.returncode == ExitCode.ERROR
    assert "too little even for gpu-01" in refused.stderr


FAULT: dict[str, float] = {}


def test_a_burn_in_outlives_its_controller_a_cut_link_and_a_reboot(burnins: Burnins, lab: Lab) -> None:
    started = burnins.began("--set", f"gpuprov_drain_hook={burnins.folder / 'hook'}")
    hear(started, "2 of 2 nodes burning in")
    time.sleep(8)
    kill(started)
    again = begin(burnins, "--detach")
    assert again.returncode == ExitCode.ERROR
    assert f"gpu-[01-02]: the burn-in {burnins.first} by " in again.stderr
    FAULT["before"] = time.time()
    lab.node("gpu-02").fault("throttle", gpu=3)
    FAULT["after"] = time.time()
    member = lab.record.node("gpu-02")
    network.plug(lab.record.octet, member.index, False)
    try:
        cut = burnins.call("burnin", "status", burnins.first)
        assert cut.returncode == ExitCode.INCOMPLETE
        assert re.search(r"gpu-02 +unreachable: ", cut.stdout)
    finally:
        network.plug(lab.record.octet, member.index, True)
    FAULT["reboot"] = time.time()
    lab.node("gpu-01").reboot()
    watching = burnins.watching("attach", burnins.first)
    hear(watching, "gpu-01")
    watching.send_signal(signal.SIGINT)
    said, _ = watching.communicate(timeout=120)
    assert watching.returncode == ExitCode.INTERRUPTED
    assert "the burn-in continues" in said


def test_collect_from_a_machine_that_never_heard_of_it_gives_the_whole_record(
    burnins: Burnins, lab: Lab
) -> None:
    there = ("--inventory", str(lab.inventory))
    wait_until_over(burnins, burnins.first, *there, runs="elsewhere")
    done = burnins.call("burnin", "collect", "latest", *there, "--json", runs="elsewhere")
    assert done.returncode == ExitCode.UNHEALTHY, done.stderr
    record = json.loads(done.stdout)
    assert record["over"]
    assert record["burnin"] == burnins.first
    nodes = {node["node"]: node for node in record["nodes"]}
    # The fault in the middle of the soak, with its GPU and its time.
    (held,) = [f for f in nodes["gpu-02"]["findings"] if f["metric"] == "throttled"]
    assert (held["verdict"], held["device"], held["during"]) == ("fail", "gpu3", "heat")
    assert FAULT["before"] - 15 <= seconds_of(held["since"]) <= FAULT["after"] + 30
    assert "throttled" not in {f["metric"] for f in nodes["gpu-01"]["findings"]}
    # The reboot, and the rest of the campaign.
    (reboot,) = [f for f in nodes["gpu-01"]["findings"] if f["metric"] == "reboot"]
    assert FAULT["reboot"] - 30 <= seconds_of(reboot["since"]) <= FAULT["reboot"] + 60
    assert nodes["gpu-01"]["reboots"] == 1
    assert nodes["gpu-01"]["how_it_ended"] == "done"
    # No gap except the reboot, and the cut link cost nothing.
    for node in nodes.values():
        long = [gap for gap in node["telemetry"]["gaps"] if gap["source"] == "gpu" and gap["seconds"] > 60]
        assert long == []
    assert nodes["gpu-02"]["steps"]["done"] == nodes["gpu-02"]["steps"]["planned"]
    assert nodes["gpu-02"]["not_measured"] == []
    # The machine that started the burn-in reaches the same result, and drains failed nodes with the reason.
    mine = burnins.call(
        "burnin", "collect", burnins.first, "--set", f"gpuprov_drain_hook={burnins.folder / 'hook'}", "--json"
    )
    assert mine.returncode == ExitCode.UNHEALTHY, mine.stderr
    theirs = {node["node"]: node["checks"] for node in json.loads(mine.stdout)["nodes"]}
    assert theirs == {name: node["checks"] for name, node in nodes.items()}
    told = [json.loads(line) for line in (burnins.folder / "drained").read_text().splitlines()]
    reasons = {node["name"]: node["reason"] for row in told for node in row["nodes"]}
    assert set(reasons) == {"gpu-01", "gpu-02"}
    assert reasons["gpu-02"].startswith("gpu3: ")
    run = burnins.run(burnins.first)
    sums = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=run, check=False)
    assert sums.returncode == 0
    assert (run / "nodes.pass").read_text() == ""


def test_stop_leaves_nothing_and_the_nodes_validate(burnins: Burnins, lab: Lab) -> None:
    lab.node("gpu-02").heal()
    done = burnins.call("burnin", "collect", burnins.first, "--remove")
    before = {name: left(lab, name) for name in ("gpu-01", "gpu-02")}
    begun = begin(burnins, "--detach")
    assert begun.returncode == ExitCode.OK, done.stderr
    time.sleep(5)
    assert burnins.call("burnin", "stop", "latest").returncode == ExitCode.OK
    collected = burnins.call("burnin", "collect", "latest", "--remove")
    assert collected.returncode == ExitCode.INCOMPLETE  # stopped early, so not everything was measured
    assert "stopped before its end" in collected.stdout
    assert {name: left(lab, name) for name in before} == before
    sound = burnins.call("validate", str(lab.inventory), "--checks", "gpu_inventory,gpu_burn,nccl_all_reduce")
    assert sound.returncode == ExitCode.OK, sound.stdout


def left(lab: Lab, name: str) -> dict[str, str]:
    """Return everything a burn-in could leave behind: processes, units, files, clock settings."""
    clocks = "--query-gpu=clocks.applications.graphics,clocks.max.sm,persistence_mode,compute_mode"
    commands = {
        "processes": "ps -eo args | grep -E 'gpu_burn|burnin|nvidia-smi|_perf' | grep -v grep",
        "units": "systemctl list-units --all --no-legend 'gpuprov*'; ls /etc/systemd/system | grep gpuprov",
        "files": "find /var/lib/gpuprov /run/gpuprov -mindepth 1 2>/dev/null | sort",
        "clocks": f"nvidia-smi {clocks} --format=csv",
    }
    return {what: lab.node(name).run(f"sudo sh -c {json.dumps(words)} || true").stdout for what, words in
            commands.items()}  # fmt: skip


def test_a_burn_in_that_nobody_has_is_said(burnins: Burnins, lab: Lab) -> None:
    done = burnins.call("burnin", "status", "20200101T000000.000Z-burnin", "--inventory", str(lab.inventory))
    assert done.returncode == ExitCode.ERROR
    assert "no node has the burn-in 20200101T000000.000Z-burnin" in done.stderr
