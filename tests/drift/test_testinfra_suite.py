"""Reader and plug-in of the testinfra suite, on a simulated host; tests/lab runs them on real nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provision.desired.expectations import Expectation
from provision.drift.testinfra.fleet import Case, base_facts, host_of
from provision.drift.testinfra.readers import Reader, Unreadable
from provision.fleet import Fleet, Node
from tests.support.commands import ran

ROOT = Path(__file__).resolve().parents[2]


class Host:
    """The part of testinfra's host that the readers use."""

    def __init__(self, files: dict[str, str] | None = None, /, **answers: tuple[int, str]) -> None:
        self.files = files or {}
        self.answers = {command.replace("__", " "): answer for command, answer in answers.items()}
        self.asked: list[str] = []

    def run(self, command: str, *words: str) -> Any:
        whole = command % words if words else command
        self.asked.append(whole)
        for known, (rc, stdout) in self.answers.items():
            if known in whole:
                return SimpleNamespace(rc=rc, stdout=stdout)
        return SimpleNamespace(rc=1, stdout="")

    def check_output(self, command: str, *words: str) -> str:
        found = self.run(command, *words)
        assert found.rc == 0, command
        return str(found.stdout).strip()

    def file(self, path: str) -> Any:
        text = self.files.get(path)
        known = {"exists": text is not None, "content": (text or "").encode(), "content_string": text or ""}
        return SimpleNamespace(**known, is_symlink=False, mode=0o640, user="root", group="adm")

    def package(self, _name: str) -> Any:
        return SimpleNamespace(is_installed=True, version="580.126.09", release="1.el9")

    def exists(self, _program: str) -> bool:
        return False

    def sysctl(self, _key: str) -> int:
        return 0


DPKG = {"/var/lib/dpkg/status": ""}


@pytest.mark.parametrize(
    ("fact", "host", "value"),
    [
        ("package.a.status", Host(DPKG, **{"dpkg-query": (0, "half-configured")}), "half-configured"),
        ("package.a.status", Host(DPKG, **{"dpkg-query": (1, "")}), "absent"),
        ("package.a.version", Host(DPKG, **{"dpkg-query": (0, "config-files")}), None),
        ("package.a.version", Host(DPKG, **{"dpkg-query": (0, "installed")}), "580.126.09"),
        ("package.a.held", Host(DPKG, showhold=(0, "b\na\n")), True),
        ("package.c.held", Host(DPKG, showhold=(0, "b\na\n")), False),
        ("package.a.version", Host({}, rpm=(0, "3")), "3:580.126.09-1.el9"),
        ("package.a.version", Host({}, rpm=(0, "(none)")), "580.126.09-1.el9"),
        ("module.nvidia-uvm.loaded", Host(lsmod=(0, "Module Size Used by\nnvidia_uvm 1 0\n")), True),
        ("module.nouveau.loaded", Host(lsmod=(0, "Module Size Used by\nnvidia_uvm 1 0\n")), False),
        ("sysctl.kernel.numa_balancing.value", Host(), "0"),
        ("file./etc/x.content", Host({"/etc/x": "a\n"}), "a\n"),
        ("file./etc/x.content", Host(), None),
        ("file./etc/x.exists", Host(), False),
        ("file./etc/x.mode", Host({"/etc/x": ""}, **{"readlink -f": (0, "/etc/x")}), "0640"),
        ("file./etc/x.owner", Host({"/etc/x": ""}, **{"readlink -f": (0, "/etc/x")}), "root:adm"),
        ("driver.loaded_version", Host({"/sys/module/nvidia/version": "580.126.09\n"}), "580.126.09"),
        ("driver.loaded_version", Host(), None),
        ("nvidia_smi.name", Host(**{"nvidia-smi": (0, "NVIDIA H100\nNVIDIA H100\n")}), ["NVIDIA H100"] * 2),
        ("nvidia_smi.fabric.state", Host(**{"nvidia-smi": (0, "state  In Progress\n")}), ["In Progress"]),
        ("nvidia_smi.fabric.state", Host(**{"nvidia-smi": (0, "In Progress\n")}), ["In Progress"]),
        ("nvidia_smi.fabric.status", Host(**{"nvidia-smi": (0, "status  Success\n")}), ["Success"]),
        ("service.x.active", Host(), None),
    ],
)
def test_what_each_reader_answers(fact: str, host: Host, value: Any) -> None:
    assert Reader(host).read(fact) == value


@pytest.mark.parametrize(
    ("fact", "host"),
    [
        ("rdma.mlx5_0.mtu", Host()),
        ("gpu.sku", Host()),
        ("kernel.headers", Host()),
        ("secure_boot.enabled", Host()),
        ("package.a.held", Host()),
        ("nvidia_smi.name", Host(**{"nvidia-smi": (9, "")})),
    ],
)
def test_what_nobody_else_can_read_is_said_and_not_guessed(fact: str, host: Host) -> None:
    with pytest.raises(Unreadable):
        Reader(host).read(fact)


def test_what_one_program_lists_is_asked_once() -> None:
    host = Host(DPKG, showhold=(0, "a\n"))
    reader = Reader(host)
    for name in ("a", "b", "c"):
        reader.read(f"package.{name}.held")
    assert sum("showhold" in command for command in host.asked) == 1


def test_the_machine_is_told_without_our_observer() -> None:
    functions = ("1b 0x030200 0x10de 0x2330", "05 0x068000 0x10de 0x22a3", "02 0x030000 0x1a03 0x20")
    pci = "".join(f"0000:{each[:2]}:00.0 {each[3:]}\n" for each in functions)
    answers = {"uname -r": "5.14.0", "uname -m": "x86_64", "/boot": "5.14.0\n5.14.9\n", "/sys/bus/pci": pci}
    host = Host(
        {"/etc/os-release": 'ID="rocky"\nVERSION_ID="9.4"\nID_LIKE="rhel centos fedora"\n'},
        **{command: (0, text) for command, text in answers.items()},
    )
    found = base_facts(Reader(host))
    assert found["os.family"] == "redhat"
    assert (found["os.version_id"], found["kernel.boot_release"]) == ("9.4", "5.14.9")
    assert (found["gpu.count"], found["gpu.nvswitch_count"]) == (1, 1)
    assert found["gpu.pci"] == [{"device_id": "10de:2330"}]


def test_gpus_of_another_vendor_are_seen_without_our_observer_too() -> None:
    functions = ("05 0x120000 0x1002 0x74a1", "26 0x038000 0x1002 0x740f", "02 0x030000 0x1002 0x744c")
    pci = "".join(f"0000:{each[:2]}:00.0 {each[3:]}\n" for each in functions)
    host = Host(
        {"/etc/os-release": "ID=debian\n"}, **{"uname": (0, "6"), "/boot": (0, ""), "/sys/bus/pci": (0, pci)}
    )
    assert base_facts(Reader(host))["gpu.pci"] == [{"device_id": "1002:74a1"}, {"device_id": "1002:740f"}]


def reached(monkeypatch: pytest.MonkeyPatch, **variables: Any) -> tuple[str, dict[str, Any]]:
    asked: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr("testinfra.get_host", lambda spec, **more: asked.append((spec, more)))
    node = Node("gpu-01", (), variables)
    host_of(node, Fleet(Path("hosts.yml"), {"gpu-01": node}, {}), "/tmp/s")
    return asked[0]


def test_a_node_is_reached_as_its_inventory_says(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, more = reached(
        monkeypatch,
        ansible_host="fd00::7",
        ansible_port=2222,
        ansible_user="ops",
        ansible_ssh_private_key_file="/k",
        ansible_ssh_common_args="-J bastion",
    )
    assert spec == "ssh://ops@[fd00::7]:2222"
    assert (more["ssh_identity_file"], more["sudo"]) == ("/k", True)
    assert more["ssh_extra_args"] == "-o BatchMode=yes -J bastion"


def test_a_password_is_never_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, more = reached(monkeypatch, ansible_password="hunter2", ansible_become_password="hunter3")
    assert spec == "ansible://gpu-01"
    assert "hunter" not in str(more)


def test_a_case_is_called_after_its_node_role_and_fact() -> None:
    case = Case("gpu-01", Expectation("nccl", "file./etc/nccl.conf.mode", "equals", "0644", ""))
    assert case.name == "gpu-01-nccl/file./etc/nccl.conf.mode"
    assert Case("gpu-02", trouble="no route").name == "gpu-02-reachable"


def suite(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    plugin = ["-p", "gpuprov.pytest_plugin", "--pyargs", "provision.drift.testinfra"]
    common = ["-q", "-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider"]
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "XDG_STATE_HOME": str(folder / "state")}
    return ran(
        [sys.executable, "-m", "pytest", *common, *plugin, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **alone},
    )


def test_a_node_that_cannot_be_reached_is_a_failed_test_and_not_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("gpu-01 ansible_host=127.0.0.1 ansible_port=1\n")
    done = suite(tmp_path, "--gpuprov-inventory", "hosts")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "gpu-01: unreachable: " in done.stdout


def test_a_mistake_in_the_inventory_is_one_line(tmp_path: Path) -> None:
    done = suite(tmp_path, "--gpuprov-inventory", "nowhere.yml")
    assert done.returncode != 0
    assert "gpuprov: " in done.stdout + done.stderr
    assert "nowhere.yml" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
