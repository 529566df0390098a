"""A lab from creation to removal, through the command line; these tests break separate labs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov_lab import leftovers, mirror, network, process, record
from gpuprov_lab.places import LabPlace
from provision.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def words(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "provision.cli", "lab", *arguments]


def gpuprov_lab(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(*arguments),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=ENVIRONMENT,
        cwd="/",
    )


@pytest.fixture
def name() -> Iterator[str]:
    """Yield an unused lab name, and remove everything under it afterwards."""
    chosen = f"life-{os.getpid()}"
    yield chosen
    if os.geteuid() == 0:
        leftovers.remove(chosen)


def up(name: str, inventory: Path, *nodes: str) -> subprocess.CompletedProcess[str]:
    asked = [word for node in nodes or ("one=l40s",) for word in ("--node", node)]
    done = gpuprov_lab("up", "--lab", name, "--inventory", str(inventory), *asked)
    assert done.returncode == ExitCode.OK, done.stderr
    return done


def test_down_leaves_nothing(lab: Any, name: str, tmp_path: Path) -> None:
    up(name, tmp_path / "lab.yml", "one=l40s", "two=h100-sxm:debian12")
    found = leftovers.find(name)
    for kind in (
        "(supervisor)",
        "(server)",
        "(nspawn)",
        "namespace",
        "control group",
        "bridge",
        "folder",
        f"gpuprov.{name}.two",
    ):
        assert any(kind in line for line in found), (kind, found)
    assert gpuprov_lab("down", "--lab", name).stdout == f"removed: {name}\n"
    assert leftovers.find(name) == []
    # The other lab is intact: its nodes answer, and the shared cache runs.
    assert lab.node("gpu-01").run("true").returncode == 0
    assert mirror.cache_pid() is not None
    again = gpuprov_lab("down", "--lab", name)
    assert (again.returncode, again.stdout) == (ExitCode.OK, "there was nothing to remove\n")


def test_up_again_keeps_running_nodes_and_adds_new_ones(name: str, tmp_path: Path) -> None:
    inventory = tmp_path / "lab.yml"
    up(name, inventory)
    first = boot_ids(name)
    up(name, inventory, "one=l40s", "two=b200")
    assert boot_ids(name)["one"] == first["one"]
    assert set(boot_ids(name)) == {"one", "two"}
    assert "two:" in inventory.read_text()
    other = gpuprov_lab("up", "--lab", name, "--inventory", str(inventory), "--node", "one=b200")
    assert other.returncode == ExitCode.ERROR
    assert "already has one=l40s:debian13, but one=b200:debian13 was requested" in other.stderr
    assert "--fresh" in other.stderr
    assert boot_ids(name)["one"] == first["one"]
    fresh = gpuprov_lab("up", "--lab", name, "--inventory", str(inventory), "--node", "one=b200", "--fresh")
    assert fresh.returncode == ExitCode.OK, fresh.stderr
    assert set(boot_ids(name)) == {"one"}
    assert boot_ids(name)["one"] != first["one"]


def boot_ids(name: str) -> dict[str, str]:
    nodes = json.loads(gpuprov_lab("status", "--lab", name, "--json").stdout)["nodes"]
    return {
        node["node"]: gpuprov_lab(
            "ssh", "--lab", name, node["node"], "cat /proc/sys/kernel/random/boot_id"
        ).stdout
        for node in nodes
    }


def test_power_off_is_silence_and_power_on_brings_the_disk_back(name: str, tmp_path: Path) -> None:
    up(name, tmp_path / "lab.yml")
    assert gpuprov_lab("ssh", "--lab", name, "one", "echo kept > kept && sync").returncode == 0
    assert gpuprov_lab("power", "--lab", name, "one", "off").returncode == 0
    status = json.loads(gpuprov_lab("status", "--lab", name, "--json").stdout)["nodes"][0]
    assert status["state"] == "off"
    assert gpuprov_lab("power", "--lab", name, "one", "on").returncode == 0
    assert gpuprov_lab("ssh", "--lab", name, "one", "cat", "kept").stdout == "kept\n"


def test_ssh_gives_the_commands_own_exit_status_and_words(name: str, tmp_path: Path) -> None:
    up(name, tmp_path / "lab.yml")
    assert gpuprov_lab("ssh", "--lab", name, "one", "exit 7").returncode == 7
    assert (
        gpuprov_lab("ssh", "--lab", name, "one", "--", "printf", "%s|", "a b", "$HOME").stdout == "a b|$HOME|"
    )
    missing = gpuprov_lab("ssh", "--lab", name, "two")
    assert missing.returncode == ExitCode.ERROR
    assert "no node 'two'" in missing.stderr
    assert "one" in missing.stderr


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        words(*arguments), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
    ) as child:
        yield child
        child.kill()


def wait_for_line(child: subprocess.Popen[str], text: str) -> None:
    assert child.stderr is not None
    for line in child.stderr:
        if text in line:
            return
    pytest.fail(f"`lab up` ended before it said {text!r}")


def test_a_killed_controller_leaves_a_lab_that_down_removes(name: str, tmp_path: Path) -> None:
    inventory = str(tmp_path / "lab.yml")
    with started("up", "--lab", name, "--inventory", inventory, "--nodes", "2") as child:
        wait_for_line(child, "booting 2 nodes")
        assert process.wait_until(lambda: "supervisor" in leftovers.processes(name).values(), 20)
        child.kill()
    assert any("supervisor" in line for line in leftovers.find(name))
    assert gpuprov_lab("down", "--lab", name).returncode == ExitCode.OK
    assert leftovers.find(name) == []


def test_interrupting_up_removes_what_it_had_made(name: str, tmp_path: Path) -> None:
    with started("up", "--lab", name, "--inventory", str(tmp_path / "lab.yml"), "--nodes", "2") as child:
        wait_for_line(child, "booting 2 nodes")
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == ExitCode.INTERRUPTED
    assert leftovers.find(name) == []


def test_down_finds_nodes_whose_supervisor_and_record_are_lost(name: str, tmp_path: Path) -> None:
    """The supervisors are killed and the state file is gone: nodes live on, and are found on the host."""
    up(name, tmp_path / "lab.yml")
    for pid, kind in leftovers.processes(name).items():
        if kind == "supervisor":
            os.kill(pid, signal.SIGKILL)
    assert process.wait_until(lambda: "supervisor" not in leftovers.processes(name).values(), 10)
    LabPlace(name).record.unlink()
    found = leftovers.find(name)
    assert any("nspawn" in line for line in found)
    assert not any("supervisor" in line for line in found)
    assert name in leftovers.labs_seen()
    assert gpuprov_lab("down", "--lab", name).returncode == ExitCode.OK
    assert leftovers.find(name) == []


def test_down_finds_orphans_of_a_killed_nspawn(name: str, tmp_path: Path) -> None:
    """Killing systemd-nspawn first orphans the node's systemd, which only its network namespace reveals."""
    up(name, tmp_path / "lab.yml")
    for kind in ("supervisor", "nspawn"):
        for pid, found in leftovers.processes(name).items():
            if found == kind:
                os.kill(pid, signal.SIGKILL)
    space = LabPlace(name).node("one").namespace
    assert process.wait_until(lambda: not set(leftovers.processes(name).values()) & {"nspawn"}, 10)
    orphans = network.namespace_pids(space)
    assert gpuprov_lab("down", "--lab", name).returncode == ExitCode.OK
    assert leftovers.find(name) == []
    assert [pid for pid in orphans if process.started_at(pid) is not None] == []


def test_nodes_install_signed_packages_and_refuse_another_key(name: str, tmp_path: Path) -> None:
    """apt accepts the fixture repository only with its own key; the real kmod reads the installed module."""
    up(name, tmp_path / "lab.yml", "one=l40s", "two=h100-sxm:debian12")
    variables = yaml.safe_load((tmp_path / "lab.yml").read_text())["gpu_nodes"]
    kernel = os.uname().release
    for node, own in variables["hosts"].items():
        url, key = own["nvidia_repository_cuda_url"], own["nvidia_repository_cuda_key_url"]
        fetch = "import sys, urllib.request as u; sys.stdout.buffer.write(u.urlopen(sys.argv[1]).read())"
        source = f"deb [signed-by=/usr/share/keyrings/cuda.asc] {url} /"
        prepare = (
            f"python3 -c '{fetch}' {key} | sudo tee /usr/share/keyrings/cuda.asc >/dev/null &&"
            f" echo '{source}' | sudo tee /etc/apt/sources.list.d/cuda.list && sudo apt-get update 2>&1"
        )
        updated = gpuprov_lab("ssh", "--lab", name, node, prepare)
        assert updated.returncode == 0, updated.stdout
        assert "W:" not in updated.stdout, updated.stdout
        install = (
            "sudo apt-get install -qq -y --no-install-recommends nvidia-kernel-open-dkms 2>&1 &&"
            f" /sbin/modinfo -F license nvidia && /sbin/modinfo -F vermagic nvidia | grep -F '{kernel} ' &&"
            ' test "$(/sbin/modinfo -F version nvidia)-1" ='
            " \"$(dpkg-query -W -f '${Version}' nvidia-kernel-open-dkms)\" && dpkg -V nvidia-kernel-open-dkms"
        )
        installed = gpuprov_lab("ssh", "--lab", name, node, install)
        assert installed.returncode == 0, installed.stdout
        assert "Dual MIT/GPL" in installed.stdout
        toolkit_key = own["nvidia_repository_toolkit_key_url"]
        wrong = gpuprov_lab("ssh", "--lab", name, node, prepare.replace(key, toolkit_key))
        assert wrong.returncode != 0 or "W:" in wrong.stdout, "a repository signed by another key is refused"
        assert "NO_PUBKEY" in wrong.stdout or "issing key" in wrong.stdout, wrong.stdout


def test_two_labs_get_two_networks(lab: Any, name: str, tmp_path: Path) -> None:
    up(name, tmp_path / "lab.yml")
    mine = record.existing(name)
    assert mine.octet != lab.record.octet
    assert network.bridges(name) == [network.bridge_name(mine.octet)]
    assert network.bridges(lab.name) == [network.bridge_name(lab.record.octet)]


def test_a_file_of_somebody_else_is_not_overwritten(name: str, tmp_path: Path) -> None:
    mine = tmp_path / "inventory.yml"
    mine.write_text("all: {}\n")
    done = gpuprov_lab("up", "--lab", name, "--inventory", str(mine), "--nodes", "1")
    assert done.returncode == ExitCode.ERROR
    assert "was not written by `gpuprov lab up`" in done.stderr
    assert mine.read_text() == "all: {}\n"
    assert leftovers.find(name) == []


def test_a_node_that_does_not_boot_is_named_with_its_boot_log(name: str, tmp_path: Path) -> None:
    up(name, tmp_path / "lab.yml")
    gpuprov_lab("power", "--lab", name, "one", "off")
    place = LabPlace(name).node("one")
    broken = place.disk / "usr/lib/systemd/systemd"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/false\n")
    broken.chmod(0o755)
    done = gpuprov_lab("power", "--lab", name, "one", "on")
    assert done.returncode == ExitCode.ERROR
    assert "one died while booting" in done.stderr
    assert str(place.boot_log) in done.stderr
