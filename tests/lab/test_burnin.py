"""A burn-in of a fleet from the controller's side: killed, cut off and rebooted, it ends in one whole record.

The tests run in the order written: each stands on the campaign before.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from provision.errors import ExitCode
from provision.lab import network
from provision.lab.spec import NodeSpec
from tests.lab.conftest import running_lab

if TYPE_CHECKING:
    from tests.lab.conftest import Lab

ROOT = Path(__file__).resolve().parents[2]
ROLES = "[nvidia_repository,nvidia_driver,nvlink,cuda_toolkit,nccl,validation_tools]"
SPEED = 20.0
# A minute of a burn is three seconds here, so a soak of an hour is long enough for everything below.
PROFILE = """\
summary: an hour, for tools that are simulated
minutes: 65
sample_seconds: 40
space_mib: 64
ramp_steps: 2
ramp_seconds: 2
abort: {gpu_celsius: 120, failed_steps: 50}
segments:
  - {name: look, kind: load, checks: [gpu_inventory], repeat: 1}
  - {name: heat, kind: soak, checks: [gpu_burn], minutes: 60, step_minutes: 2}
  - {name: again, kind: load, checks: [nccl_all_reduce], repeat: 1}
"""
HOOK = '#!/bin/sh\ncat >> "$(dirname "$0")/drained"\n'
pytestmark = pytest.mark.timeout(1800)
Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("burnin")
    (made / "hour.yml").write_text(PROFILE)
    (made / "hook").write_text(HOOK)
    (made / "hook").chmod(0o755)
    return made


@pytest.fixture(scope="module")
def lab(folder: Path) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("gpu-02", "h100-sxm"))
    with running_lab("burnall", nodes, folder / "lab.yml", speed=SPEED) as running:
        yield running


def environment(folder: Path, runs: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(folder / runs), "COLUMNS": "300"}


@pytest.fixture(scope="module")
def gpuprov(lab: Lab, folder: Path) -> Call:
    """Runs one command on this machine, or with `runs` on another that knows nothing."""

    def call(*words: str, runs: str = "runs", timeout: int = 900) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "provision.cli", *words],
            env=environment(folder, runs), capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        print(f"$ {' '.join(words)}\n{done.stdout}{done.stderr}")  # noqa: T201 - pytest shows it on failure
        return done

    done = call("up", str(lab.inventory), "--yes", "--no-canary", "--set", f"gpuprov_roles={ROLES}")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    return call


def begin(gpuprov: Call, lab: Lab, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    hook = f"gpuprov_drain_hook={folder / 'hook'}"
    return gpuprov("burnin", str(lab.inventory), "--profile", str(folder / "hour.yml"), "--set", hook, *more)


def now() -> float:
    return time.time()


def seconds_of(text: str) -> float:
    when = datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S UTC")
    return when.replace(tzinfo=datetime.UTC).timestamp()


def test_the_plan_says_minutes_and_kilowatts_and_loads_nothing(gpuprov: Call, lab: Lab, folder: Path) -> None:
    done = begin(gpuprov, lab, folder, "--plan", "--set", "gpuprov_fleet_kw=15", "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    plan = json.loads(done.stdout)
    assert plan["turns"] == 2  # 11.4 kW each, 2.9 kW while it waits
    assert plan["peak_kw"] <= 15
    assert (
        lab.node("gpu-01").run("systemctl is-active gpuprov-burnin", check=False).stdout.strip() == "inactive"
    )
    refused = begin(gpuprov, lab, folder, "--plan", "--set", "gpuprov_fleet_kw=12")
    assert refused.returncode == ExitCode.ERROR
    assert "too little for gpu-01 alone" in refused.stderr


FAULT: dict[str, float] = {}


def test_a_burn_in_outlives_its_controller_a_cut_link_and_a_reboot(
    gpuprov: Call, lab: Lab, folder: Path
) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "provision.cli", "burnin", str(lab.inventory), "--profile",
         str(folder / "hour.yml"), "--set", f"gpuprov_drain_hook={folder / 'hook'}"],
        env=environment(folder, "runs"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert started.stdout is not None
    for line in started.stdout:
        if "2 of 2 nodes burn in" in line:
            break
    time.sleep(8)
    os.killpg(started.pid, signal.SIGKILL)  # the controller, and all it runs
    started.wait()
    started.stdout.close()
    again = begin(gpuprov, lab, folder, "--detach")
    assert again.returncode == ExitCode.ERROR
    assert "runs on this node" in again.stdout + again.stderr
    FAULT["before"] = now()
    lab.node("gpu-02").fault("throttle", gpu=3)
    FAULT["after"] = now()
    member = lab.record.node("gpu-02")
    network.plug(lab.record.octet, member.index, False)
    try:
        cut = gpuprov("burnin", "status", campaign(folder))
        assert cut.returncode == ExitCode.INCOMPLETE
        assert re.search(r"gpu-02 +cannot be asked", cut.stdout)
    finally:
        network.plug(lab.record.octet, member.index, True)
    FAULT["reboot"] = now()
    lab.node("gpu-01").reboot()
    watching = subprocess.Popen(
        [sys.executable, "-m", "provision.cli", "burnin", "attach", campaign(folder)],
        env=environment(folder, "runs"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stdout is not None
    assert "gpu-01" in watching.stdout.readline()
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=120)
    assert watching.returncode == ExitCode.INTERRUPTED
    assert "the burn-in goes on" in said


def campaign(folder: Path) -> str:
    """The first burn-in: the second was refused."""
    return min(path.name for path in (folder / "runs").glob("*Z-burnin"))


def test_collect_from_a_machine_that_never_heard_of_it_gives_the_whole_record(
    gpuprov: Call, lab: Lab, folder: Path
) -> None:
    deadline, there = now() + 900, ("--inventory", str(lab.inventory))
    while now() < deadline:
        done = gpuprov("burnin", "status", campaign(folder), *there, runs="elsewhere")
        if done.returncode == ExitCode.OK:
            break
        time.sleep(10)
    done = gpuprov("burnin", "collect", "latest", *there, "--json", runs="elsewhere")
    assert done.returncode == ExitCode.UNHEALTHY, done.stderr
    record = json.loads(done.stdout)
    assert record["over"]
    assert record["burnin"] == campaign(folder)
    nodes = {node["node"]: node for node in record["nodes"]}
    # The fault that began in the middle, with its GPU and its time.
    (held,) = [f for f in nodes["gpu-02"]["findings"] if f["metric"] == "throttled"]
    assert (held["verdict"], held["device"], held["during"]) == ("fail", "gpu3", "heat")
    assert FAULT["before"] - 15 <= seconds_of(held["since"]) <= FAULT["after"] + 30
    assert "throttled" not in {f["metric"] for f in nodes["gpu-01"]["findings"]}
    # The reboot, and what came after it.
    (reboot,) = [f for f in nodes["gpu-01"]["findings"] if f["metric"] == "reboot"]
    assert FAULT["reboot"] - 30 <= seconds_of(reboot["since"]) <= FAULT["reboot"] + 60
    assert nodes["gpu-01"]["reboots"] == 1
    assert nodes["gpu-01"]["how_it_ended"] == "done"
    # No gap beyond the reboot, and the cut link cost nothing.
    for node in nodes.values():
        long = [gap for gap in node["telemetry"]["gaps"] if gap["source"] == "gpu" and gap["seconds"] > 60]
        assert long == []
    assert nodes["gpu-02"]["steps"]["done"] == nodes["gpu-02"]["steps"]["planned"]
    assert nodes["gpu-02"]["not_measured"] == []
    # Its own machine comes to the same, and drains what failed, with the reason.
    mine = gpuprov(
        "burnin", "collect", campaign(folder), "--set", f"gpuprov_drain_hook={folder / 'hook'}", "--json"
    )
    assert mine.returncode == ExitCode.UNHEALTHY, mine.stderr
    theirs = {node["node"]: node["checks"] for node in json.loads(mine.stdout)["nodes"]}
    assert theirs == {name: node["checks"] for name, node in nodes.items()}
    told = [json.loads(line) for line in (folder / "drained").read_text().splitlines()]
    reasons = {node["name"]: node["reason"] for row in told for node in row["nodes"]}
    assert set(reasons) == {"gpu-01", "gpu-02"}
    assert reasons["gpu-02"].startswith("gpu3: ")
    run = folder / "runs" / campaign(folder)
    sums = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=run, check=False)
    assert sums.returncode == 0
    assert (run / "nodes.pass").read_text() == ""


def test_stop_leaves_nothing_and_the_nodes_validate(gpuprov: Call, lab: Lab, folder: Path) -> None:
    lab.node("gpu-02").heal()
    done = gpuprov("burnin", "collect", campaign(folder), "--remove")
    before = {name: left(lab, name) for name in ("gpu-01", "gpu-02")}
    begun = begin(gpuprov, lab, folder, "--detach")
    assert begun.returncode == ExitCode.OK, done.stderr
    time.sleep(5)
    assert gpuprov("burnin", "stop", "latest").returncode == ExitCode.OK
    collected = gpuprov("burnin", "collect", "latest", "--remove")
    assert collected.returncode == ExitCode.INCOMPLETE  # stopped: not everything was measured
    assert "stopped before its end" in collected.stdout
    assert {name: left(lab, name) for name in before} == before
    sound = gpuprov("validate", str(lab.inventory), "--checks", "gpu_inventory,gpu_burn,nccl_all_reduce")
    assert sound.returncode == ExitCode.OK, sound.stdout


def left(lab: Lab, name: str) -> dict[str, str]:
    """Everything a burn-in could leave: processes, units, files, clock settings."""
    clocks = "--query-gpu=clocks.applications.graphics,clocks.max.sm,persistence_mode,compute_mode"
    commands = {
        "processes": "ps -eo args | grep -E 'gpu_burn|burnin|nvidia-smi|_perf' | grep -v grep",
        "units": "systemctl list-units --all --no-legend 'gpuprov*'; ls /etc/systemd/system | grep gpuprov",
        "files": "find /var/lib/gpuprov /run/gpuprov -mindepth 1 2>/dev/null | sort",
        "clocks": f"nvidia-smi {clocks} --format=csv",
    }
    return {what: lab.node(name).run(f"sudo sh -c {json.dumps(words)} || true").stdout for what, words in
            commands.items()}  # fmt: skip


def test_a_burn_in_that_nobody_has_is_said(gpuprov: Call, lab: Lab, folder: Path) -> None:
    done = gpuprov("burnin", "status", "20200101T000000.000Z-burnin", "--inventory", str(lab.inventory))
    assert done.returncode == ExitCode.ERROR
    assert "no node has the burn-in 20200101T000000.000Z-burnin" in done.stderr
    del folder
