"""Guarantees of `lab up` for a node: reachable, booted, unique identity, silicon in place, packages."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from gpuprov_lab import cgroups, network

NODES = ["gpu-01", "gpu-02", "gpu-03"]


@pytest.mark.parametrize("name", NODES)
def test_a_node_has_booted_without_a_failed_unit(lab: Any, name: str) -> None:
    node = lab.node(name)
    assert node.run("systemctl is-system-running", check=False).stdout.strip() == "running", node.run(
        "systemctl --failed --no-legend"
    ).stdout


@pytest.mark.parametrize(("name", "version"), [("gpu-01", "13"), ("gpu-02", "12")])
def test_a_node_has_the_release_asked_for_and_its_own_name(lab: Any, name: str, version: str) -> None:
    node = lab.node(name)
    assert f'VERSION_ID="{version}"' in node.run("cat /etc/os-release").stdout
    assert node.run("hostname").stdout.strip() == name


def test_nodes_share_neither_machine_id_nor_boot_id_nor_host_key(lab: Any) -> None:
    command = (
        "cat /etc/machine-id /proc/sys/kernel/random/boot_id; cut -d' ' -f2 /etc/ssh/ssh_host_ed25519_key.pub"
    )
    answers = [node.run(command).stdout.split() for node in lab.nodes]
    for kind in zip(*answers, strict=True):
        assert len(set(kind)) == len(NODES), kind


def test_no_nodes_share_a_control_group(lab: Any) -> None:
    """Two systemds in one tree stop each other's services and never notice the end of their own."""
    members = [set(cgroups.members(node.place.namespace)) for node in lab.nodes]
    assert all(members)
    assert len(set.union(*members)) == sum(len(pids) for pids in members)
    for node, pids in zip(lab.nodes, members, strict=True):
        inside = set(network.namespace_pids(node.place.namespace))
        assert inside <= pids, f"{node.name} has processes outside its control group"


def test_only_ops_gets_in_and_only_with_the_labs_key(lab: Any) -> None:
    node = lab.node("gpu-01")
    assert node.run("id -un; sudo -n id -un").stdout.split() == ["ops", "root"]
    options = [
        "-F",
        "/dev/null",
        "-o",
        "BatchMode=yes",
        "-o",
        f"UserKnownHostsFile={lab.record.place.known_hosts}",
    ]
    keyed = [*options, "-i", str(lab.record.place.key), "-o", "IdentitiesOnly=yes"]
    as_root = subprocess.run(["ssh", *keyed, f"root@{node.address}", "true"], capture_output=True, timeout=30)
    keyless = [*options, "-o", "PubkeyAuthentication=no"]
    no_key = subprocess.run(["ssh", *keyless, f"ops@{node.address}", "true"], capture_output=True, timeout=30)
    for refused in (as_root, no_key):
        assert refused.returncode == 255
        assert b"Permission denied" in refused.stderr


def test_a_changed_host_key_is_refused(lab: Any, tmp_path: Any) -> None:
    """The lab's known_hosts protects: with another node's key in it, ssh refuses the node."""
    lines = lab.record.place.known_hosts.read_text().splitlines()
    keys = [line.split(" ", 1) for line in lines]
    known = tmp_path / "known_hosts"
    known.write_text(f"{keys[0][0]} {keys[1][1]}\n")
    options = ["-F", "/dev/null", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={known}"]
    strict = [*options, "-o", "StrictHostKeyChecking=yes", "-i", str(lab.record.place.key)]
    done = subprocess.run(
        ["ssh", *strict, f"ops@{lab.nodes[0].address}", "true"], capture_output=True, timeout=30
    )
    assert done.returncode == 255
    assert b"verification failed" in done.stderr


def test_a_node_has_no_way_out_of_the_lab(lab: Any) -> None:
    node = lab.node("gpu-01")
    routes = node.run("ip route").stdout.splitlines()
    assert len(routes) == 1
    assert routes[0].startswith(f"10.{lab.record.octet}.0.0/16 dev host0")


@pytest.mark.parametrize("name", ["gpu-01", "gpu-02"])
def test_the_simulated_silicon_is_where_tools_look_for_it(lab: Any, name: str) -> None:
    node = lab.node(name)
    on_host = sorted(path.name for path in (node.place.silicon / "sys_pci").iterdir())
    assert on_host
    for sudo in ("", "sudo "):
        assert node.run(f"{sudo}ls /sys/bus/pci/devices").stdout.split() == on_host
        assert "0x10de" in node.run(f"{sudo}cat /sys/bus/pci/devices/*/vendor").stdout
        loaded = node.run(f"{sudo}ls /sys/module").stdout.split()
        assert loaded == sorted(path.name for path in (node.place.silicon / "sys_module").iterdir())
    # The mounts are live: the node sees the host's writes at once.
    marker = node.place.silicon / "proc_driver" / "marker"
    marker.write_text("seen\n")
    try:
        assert node.run("cat /proc/driver/marker").stdout == "seen\n"
        assert node.run("echo changed | sudo tee /proc/driver/marker").returncode == 0
        assert marker.read_text() == "changed\n"
    finally:
        marker.unlink()
    assert node.run("touch /usr/lib/silicon/x", check=False).returncode != 0


@pytest.mark.parametrize("name", ["gpu-01", "gpu-02"])
def test_a_node_reboots_and_comes_back_whole(lab: Any, name: str) -> None:
    node = lab.node(name)
    node.run("echo kept | sudo tee /root/kept")
    before = node.boot_id()
    node.reboot()
    assert node.boot_id() not in {"", before}
    assert node.run("sudo cat /root/kept").stdout == "kept\n"
    pci = sorted(path.name for path in (node.place.silicon / "sys_pci").iterdir())
    assert node.run("ls /sys/bus/pci/devices").stdout.split() == pci
    assert node.run("systemctl is-active silicon-boot silicon-surfaces").stdout.split() == [
        "active",
        "active",
    ]


def test_a_fault_reaches_the_nodes_state_and_heals(lab: Any) -> None:
    node = lab.node("gpu-03")
    node.fault("burn_errors", gpu=5)
    seen = json.loads(node.run("cat /var/lib/silicon/state.json").stdout)["faults"]
    assert [(fault["id"], fault["gpu"]) for fault in seen] == [("burn_errors", 5)]
    node.heal()
    assert json.loads(node.run("cat /var/lib/silicon/state.json").stdout)["faults"] == []


def test_what_the_host_lacks_the_node_gets_through_the_cache(lab: Any) -> None:
    """Debian's own packages come over the bridge; apt on the node has no other address."""
    node = lab.node("gpu-02")
    said = node.run("sudo apt-get update", timeout=300).stdout
    hosts = {word.split("/")[2] for word in said.split() if word.startswith("http")}
    assert hosts == {f"10.{lab.record.octet}.0.1:3142"}
    node.run("apt-get download hostname 2>&1 && test -s hostname_*.deb && rm hostname_*.deb")
