"""The light nodes of benchmarks/: each answers at its address, bad ones badly; nothing remains."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.light_nodes import KINDS, LightFleet, light_nodes
from tests.support.processes import command_of

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "light_nodes.py"


@pytest.fixture(scope="module")
def fleet() -> Iterator[LightFleet]:
    with light_nodes(40, dict.fromkeys(KINDS, 1)) as running:
        yield running


def ssh(fleet: LightFleet, name: str, *command: str) -> subprocess.CompletedProcess[bytes]:
    options = ["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-i", str(fleet.key)]
    options += ["-o", f"UserKnownHostsFile={fleet.known_hosts}", "-o", "GlobalKnownHostsFile=/dev/null"]
    words = ["ssh", "-n", *options, f"root@{fleet.addresses[name]}", *command]
    return subprocess.run(words, capture_output=True, timeout=60, check=False)


def of_kind(fleet: LightFleet, kind: str) -> tuple[str, int]:
    """Return the address and port of the node of that kind."""
    (name,) = (name for name, found in fleet.bad.items() if found == kind)
    host = json.loads(fleet.inventory.read_text())["all"]["hosts"][name]
    return host["ansible_host"], host.get("ansible_port", 22)


def test_every_node_has_an_address_and_a_known_key(fleet: LightFleet) -> None:
    assert len(set(fleet.addresses.values())) == len(fleet.names) == 40
    assert len(fleet.known_hosts.read_text().splitlines()) == 40
    for name in (fleet.good[0], fleet.good[-1]):
        done = ssh(fleet, name, "echo $SSH_CONNECTION; ls -A ~; touch /left-here")
        assert done.returncode == 0, done.stderr
        assert done.stdout.decode().split()[2:] == [fleet.addresses[name], "22"]
    assert not Path("/left-here").exists()


def test_bad_nodes_lie_between_good_ones(fleet: LightFleet) -> None:
    assert sorted(fleet.bad.values()) == sorted(KINDS)
    assert set(fleet.bad).isdisjoint({fleet.names[0], fleet.names[-1]})


@pytest.mark.parametrize(
    ("kind", "trouble"), [("dead", TimeoutError), ("refused", ConnectionRefusedError), ("hang", TimeoutError)]
)
def test_a_bad_node_is_bad_on_the_network(fleet: LightFleet, kind: str, trouble: type[OSError]) -> None:
    with socket.socket() as probe:
        probe.settimeout(2)

        def talk() -> None:
            probe.connect(of_kind(fleet, kind))
            if kind == "dead":
                pytest.fail("it answered")
            probe.recv(1)

        with pytest.raises(trouble):
            talk()


def test_another_server_answers_on_one(fleet: LightFleet) -> None:
    with socket.create_connection(of_kind(fleet, "banner"), timeout=30) as probe:
        assert not probe.recv(64).startswith(b"SSH-")


@pytest.mark.parametrize(("kind", "size"), [("garbage", 2000), ("flood", 50_000_000)])
def test_a_good_login_may_lead_to_a_bad_answer(fleet: LightFleet, kind: str, size: int) -> None:
    (name,) = (name for name, found in fleet.bad.items() if found == kind)
    assert len(ssh(fleet, name, "true").stdout) == size


def test_a_folder_of_its_own_is_that_of_one_node_alone() -> None:
    with light_nodes(3, {"garbage": 1}, own="/run/of-its-own") as fleet:
        one, other = fleet.good
        (fleet.own(one) / "told").write_text("by one")
        assert (
            ssh(fleet, one, "cat /run/of-its-own/told; echo back > /run/of-its-own/answer").stdout
            == b"by one"
        )
        assert (fleet.own(one) / "answer").read_text() == "back\n"
        assert ssh(fleet, other, "ls -A /run/of-its-own").stdout == b""
        assert len(ssh(fleet, *fleet.bad, "ls -A /run/of-its-own").stdout) == 2000
    assert not Path("/run/of-its-own").exists()


def test_nothing_is_left_after_a_kill(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPT), "--count", "5", "--folder", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "5 nodes" in process.stdout.readline()
        address = json.loads((tmp_path / "inventory.json").read_text())["all"]["hosts"]["n00001"]
        (interface,) = (
            path.name
            for path in Path("/sys/class/net").glob("light*")
            if path.name.removeprefix("light") == address["ansible_host"].split(".")[1]
        )
        os.kill(process.pid, signal.SIGKILL)
    for _ in range(100):
        if not Path("/sys/class/net", interface).exists() and not running_with(tmp_path):
            return
        time.sleep(0.1)
    pytest.fail(f"{interface} or one of {running_with(tmp_path)} is still there")


def running_with(folder: Path) -> list[str]:
    """Return the command lines of processes that mention this folder."""
    found = [command_of(int(path.name)) for path in Path("/proc").glob("[0-9]*")]
    return [line for line in found if f"{folder}/" in line]
