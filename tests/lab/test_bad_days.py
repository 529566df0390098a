"""External failures: each ends in a clear message, and disappears with its cause.

The tests run in the order written: each leaves both nodes as declared. A clock cannot be set on one lab node
alone; instead the mirror's list expired 400 days ago, as a node with a fast clock would see it.
"""

from __future__ import annotations

import datetime
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuprov_lab import fleet, network, process, signing
from gpuprov_lab.repository import Repository
from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator
from tests.lab.lab_nodes import running_lab

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab, LabNode

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
PACKAGES = ["--set", "gpuprov_roles=[nvidia_repository, nccl]", "--no-canary"]
Up = Callable[..., "subprocess.Popen[str]"]
CUDA = "cuda/repos/debian13/x86_64"
LISTS = "sudo rm -rf /var/lib/apt/lists/*; sudo rm -f /etc/apt/sources.list.d/*cuda*"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("gpu-02", "h100-sxm"))
    with running_lab("baddays", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


@pytest.fixture(scope="module")
def up(operator: Operator) -> Up:
    def start(*arguments: str) -> subprocess.Popen[str]:
        return operator.began("up", *([] if "--resume" in arguments else PACKAGES), *arguments)

    return start


def finish(process: subprocess.Popen[str], code: ExitCode) -> str:
    said, _ = process.communicate(timeout=500)
    assert process.returncode == code, said
    return said


def consistent(node: LabNode) -> None:
    assert node.run("sudo dpkg --audit").stdout == ""
    assert node.run("sudo apt-get check", check=False).returncode == 0


def without_nccl(node: LabNode) -> None:
    unhold = "sudo apt-mark unhold libnccl2 libnccl-dev"
    node.run(f"{unhold}; sudo apt-get purge -y -q libnccl2; sudo apt-get clean")


def wait_until_apt_waits(node: LabNode, process: subprocess.Popen[str]) -> None:
    for _ in range(600):
        assert process.poll() is None, process.communicate()[0]
        if node.run("pgrep -x apt-get", check=False).returncode == 0:
            return
        time.sleep(0.2)
    pytest.fail("apt-get was never started")


def test_both_nodes_are_brought_up(up: Up, lab: Lab) -> None:
    finish(up(), ExitCode.OK)
    for node in lab.nodes:
        consistent(node)


def test_the_mirror_goes_down_between_two_waves(up: Up, lab: Lab, operator: Operator) -> None:
    for node in lab.nodes:
        without_nccl(node)
    place = lab.record.place
    pid = process.running(place.folder / "server.pid")
    hook = lab.inventory.parent / "stop-the-mirror"
    hook.write_text(f'#!/bin/sh\n[ "$1" = gpu-01 ] || kill {pid}\n')
    hook.chmod(0o755)
    try:
        said = finish(up("--wave", "1", "--set", "gpuprov_drain_hook=stop-the-mirror"), ExitCode.UNHEALTHY)
    finally:
        process.wait_until(lambda: process.running(place.folder / "server.pid") is None, 10)
        fleet._serve(lab.record, Repository(place.www.resolve(), {}))
    assert f"the package repository {lab.record.bridge_address}:8080 did not serve the request" in said
    assert "is it up, and may this node reach it?" in said
    assert (
        "still drained, out of service until they match their declared state: gpu-[01-02]" in said
    )  # no undrain hook
    assert {r["node"]: r["status"] for r in operator.records("outcomes")} == {
        "gpu-01": "done",
        "gpu-02": "failed",
    }
    consistent(lab.node("gpu-02"))
    finish(up("--resume", "--set", "gpuprov_drain_hook=null"), ExitCode.OK)


def test_another_package_manager_keeps_the_lock(up: Up, lab: Lab) -> None:
    node = lab.node("gpu-01")
    without_nccl(node)
    node.hold_dpkg()
    try:
        said = finish(up("--set", "gpuprov_package_lock_timeout=5"), ExitCode.UNHEALTHY)
    finally:
        node.release_dpkg()
    assert "another package manager is at work there (" in said
    assert "wait for it, or stop it; nothing was changed" in said
    consistent(node)
    finish(up("--resume"), ExitCode.OK)


def test_the_disk_is_full(up: Up, lab: Lab) -> None:
    node = lab.node("gpu-02")
    without_nccl(node)
    node.run("sudo mount -t tmpfs -o size=4k tmpfs /var/cache/apt/archives")
    try:
        said = finish(up(), ExitCode.UNHEALTHY)
    finally:
        node.run("sudo umount /var/cache/apt/archives")
    assert (
        "free some (df -h), then run again" in said or "free space (df -h, df -i), then run again" in said
    ), said
    consistent(node)
    finish(up("--resume"), ExitCode.OK)


@pytest.fixture
def from_long_ago(lab: Lab, tmp_path: Path) -> Iterator[None]:
    """Serve the repository as a node with a fast clock sees it: its signed list expired 400 days ago."""
    served = lab.record.place.www
    shared = served.resolve()
    shutil.copytree(shared, tmp_path / "www")
    release = tmp_path / "www" / CUDA / "Release"
    made, over = (
        datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days, hours=1) for days in (407, 400)
    )
    fields = [line for line in release.read_text().splitlines() if not line.startswith("Date:")]
    stamps = [
        f"{name}: {when:%a, %d %b %Y %H:%M:%S UTC}" for name, when in (("Date", made), ("Valid-Until", over))
    ]
    for path in release.parent.glob("*Release*"):
        path.unlink()
    release.write_text("\n".join([*stamps, *fields]) + "\n")
    with signing.keyring() as home:
        signing.sign(home, signing.fingerprint(home, "cuda"), release)
    served.unlink()
    served.symlink_to(tmp_path / "www")
    node = lab.node("gpu-01")
    # A lab copies its host's apt settings for date checks, which may disable them.
    both = 'Acquire::Check-Date "true"; Acquire::Check-Valid-Until "true";'
    node.run(f"echo '{both}' | sudo tee /etc/apt/apt.conf.d/zz-dates")
    yield
    node.run("sudo rm /etc/apt/apt.conf.d/zz-dates")
    served.unlink()
    served.symlink_to(shared)


@pytest.mark.usefixtures("from_long_ago")
def test_package_lists_that_are_over_by_400_days(up: Up, lab: Lab) -> None:
    lab.node("gpu-01").run(LISTS)
    said = finish(up(), ExitCode.UNHEALTHY)
    assert "is expired (since 400d " in said, said
    assert "the node's clock is wrong (timedatectl), or the mirror was not refreshed" in said


def test_and_are_not_any_more(up: Up, lab: Lab) -> None:
    finish(up("--resume"), ExitCode.OK)
    consistent(lab.node("gpu-01"))


def test_an_installation_that_was_cut_is_finished_first(up: Up, lab: Lab, operator: Operator) -> None:
    node = lab.node("gpu-01")
    without_nccl(node)
    node.run(
        "cd /tmp && apt-get download -q libnccl2 && sudo dpkg --unpack libnccl2_*.deb && rm libnccl2_*.deb"
    )
    assert node.run("sudo dpkg --audit").stdout != ""
    finish(up(), ExitCode.OK)
    assert "Finish an interrupted package installation" in {e["task"] for e in operator.records("events")}
    consistent(node)


def test_what_an_earlier_run_left_running_is_waited_for(up: Up, lab: Lab) -> None:
    node = lab.node("gpu-02")
    without_nccl(node)
    node.run("sudo env GPUPROV_RUN=20261121-up@elsewhere setsid sleep 12 </dev/null >/dev/null 2>&1 &")
    said = finish(up(), ExitCode.OK)
    assert "gpu-02: an earlier run is still at work there (" in said
    assert " sleep); waiting for it" in said


def test_a_node_that_boots_by_itself_in_the_middle_is_finished(up: Up, lab: Lab, operator: Operator) -> None:
    node = lab.node("gpu-01")
    without_nccl(node)
    before = node.boot_id()
    node.hold_dpkg()
    running = up()
    wait_until_apt_waits(node, running)
    node.run("sudo systemctl reboot", check=False)
    said = finish(running, ExitCode.OK)
    assert "gpu-01: it booted by itself in the middle of nccl" in said, said
    assert [(b["node"], b["before"]) for b in operator.records("boots")] == [("gpu-01", before)]
    assert operator.records("reboots") == []
    consistent(node)


def test_ssh_is_cut_for_half_a_minute(up: Up, lab: Lab) -> None:
    node = lab.node("gpu-02")
    without_nccl(node)
    node.hold_dpkg()
    running = up()
    index = lab.record.node("gpu-02").index
    try:
        wait_until_apt_waits(node, running)
        network.plug(lab.record.octet, index, False)
        time.sleep(30)
    finally:
        network.plug(lab.record.octet, index, True)
    time.sleep(2)
    node.release_dpkg()
    finish(running, ExitCode.OK)
    consistent(node)


def test_two_controllers_exclude_each_other_and_one_that_is_terminated_gives_its_locks_back(
    up: Up, lab: Lab
) -> None:
    node = lab.node("gpu-01")
    without_nccl(node)
    without_nccl(lab.node("gpu-02"))
    node.hold_dpkg()
    try:
        first = up("--nodes", "gpu-01")
        wait_until_apt_waits(node, first)
        said = finish(up(), ExitCode.ERROR)
        assert f"gpu-01 by root@{os.uname().nodename} (process {first.pid})" in said, said
        finish(up("--nodes", "gpu-02"), ExitCode.OK)
        first.send_signal(signal.SIGTERM)
        finish(first, ExitCode.INTERRUPTED)
    finally:
        node.release_dpkg()
    assert node.run("sudo ls /run/gpuprov/private").stdout.split() == ["guard"]
    finish(up(), ExitCode.OK)
