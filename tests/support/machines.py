"""Nodes replaced at the two entry points of `gpuprov validate`: observation and execution."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from provision import cli
from provision.api.fleets import LoadedFleet
from provision.checks.check import KERNEL_LOG_DELTA
from provision.commands import fleet_options
from provision.fleet import Fleet, Node
from provision.remote.ansible import runner
from provision.remote.ansible.runner import Event, Outcome
from provision.remote.reach import fleet_lock
from provision.remote.reach.observe import Observation
from provision.validate import validation
from tests.support.locks import NodeLocks

FIXTURES = Path(__file__).parent.parent / "fixtures"
HEALTHY = {
    "journal": "gpu_inventory/journal-clean.txt",
    "dmesg": "gpu_inventory/dmesg-clean.txt",
    "nvidia_smi": "gpu_inventory/h100-v13.xml",
    "nvlink": "gpu_inventory/nvlink-h100.txt",
    "nvlink_errors": "gpu_inventory/nvlink-errors-h100.txt",
    "mig": "memory_bandwidth/mig-off.txt",
    "device_local_copy": "memory_bandwidth/healthy.json",
    "nvbandwidth": "p2p_bandwidth/healthy.json",
    "all_reduce_perf": "nccl_all_reduce/healthy.txt",
    "all_gather_perf": "nccl_all_gather/healthy.txt",
    "reduce_scatter_perf": "nccl_reduce_scatter/healthy.txt",
    "alltoall_perf": "nccl_alltoall/healthy.txt",
    "torch": "ddp_scaling/healthy.jsonl",
    "gpu_burn": "gpu_burn/healthy.txt",
    "telemetry": "gpu_burn/telemetry.csv",
    "error_counters": "gpu_burn/error-counters.txt",
    "gpu_answers": "gpu_answers/healthy.csv",
}
# One check of each kind; tests/checks covers the findings of the others.
FOUR = ("gpu_inventory", "p2p_bandwidth", "nccl_all_reduce", "gpu_burn")
FACTS = {
    "os.id": "debian",
    "os.version_id": "13",
    "os.codename": "trixie",
    "os.family": "debian",
    "os.arch": "x86_64",
    "kernel.release": "6.12.107+deb13-amd64",
    "boot.id": "boot-1",
    "boot.required": False,
    "rdma.ports": [],
    **{"hca.ports": [], "hca.counters": [], "hca.functions": [], "hca.mtus": {}, "firmware.rdma": []},
    **{"module.nouveau.loaded": False, "module.nvidia.loaded": True, "module.nvidia_peermem.loaded": False},
    **{"driver.flavour": "open", "driver.mismatch": None, "driver.broken_libraries": []},
    **{"driver.loaded_version": "580.126.09", "driver.userspace_version": "580.126.09"},
    **{"fabric.manager_version": "580.126.09-1", "fabric.manager_matches_driver": True},
    **{"limits.session.memlock": "unlimited", "memory.shm_bytes": 2**39, "pci.hypervisor": None},
    **{"pci.acs_harmful": [], "pci.iommu": "passthrough", "cpu.governors": ["performance"]},
    **{"clock.state": "synchronised", "clock.largest_error_us": 1200, "clock.uptime_s": 90000},
    **{"edac.controllers": [], "edac.modules": [], "nvme.drives": [], "container_runtime.all.installed": []},
    "gpu.count": 8,
    "gpu.nvswitch_count": 4,
    "gpu.pci": [
        {"address": f"0000:{0x1A + i:02x}:00.0", "device_id": "10de:2330", "subsystem_id": "10de:1658"}
        for i in range(8)
    ],
}


M = TypeVar("M", bound="Machines")


def programs(host: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return a node's work: check → its programs, unpacked as on the node."""
    packed = {check: one["programs"] for check, one in host["gpuprov_checks"].items()}
    assert packed.pop("") == ""
    return {check: json.loads(zlib.decompress(base64.b64decode(text))) for check, text in packed.items()}


class Machines:
    """The nodes: their facts, the output of their tools, and their failures."""

    def __init__(self) -> None:
        self.tools: dict[str, dict[str, str]] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.errors: dict[str, str] = {}
        self.variables: dict[str, dict[str, Any]] = {}
        self.outcomes: dict[tuple[str, str], Outcome] = {}
        self.boot_id = "boot-1"
        self.interrupt_at = ""
        self.asked: list[frozenset[str]] = []
        self.problems: dict[str, str] = {}
        self.played: list[tuple[str, str]] = []
        self.hosts: list[Mapping[str, Mapping[str, Any]]] = []
        self.locks = NodeLocks()

    def add(self, name: str, tools: dict[str, str] = HEALTHY, /, **facts: Any) -> None:
        self.tools[name] = tools
        self.facts[name] = {**FACTS, **facts}

    def observe(self, nodes: Any, ask: Any, **_: Any) -> dict[str, Observation]:
        assert set(ask) == {node.name for node in nodes}
        self.asked.append(frozenset().union(*ask.values()))
        return {
            node.name: Observation(node.name, error=self.errors[node.name], unreachable=True)
            if node.name in self.errors
            else Observation(node.name, self.facts[node.name], self.problems)
            for node in nodes
        }

    def run_playbook(
        self,
        playbook: Path,
        hosts: Mapping[str, Mapping[str, Any]],
        *,
        on_event: Callable[[Event], None],
        **_: Any,
    ) -> dict[str, Outcome]:
        assert playbook.name == "checks.yml"
        self.hosts.append(hosts)
        return {name: self._node(name, programs(host), on_event) for name, host in hosts.items()}

    def _node(
        self, name: str, lists: Mapping[str, list[dict[str, Any]]], on_event: Callable[[Event], None]
    ) -> Outcome:
        """Run one node through its checks until a check gets no answer."""
        on_event(Event("said", "", "", "", {"detail": "worker w1 waits for a free place"}))
        on_event(Event("started", name, "", "Run a check's programs"))
        for check, commands in lists.items():
            first = commands[0]["name"]
            if first == self.interrupt_at:
                raise KeyboardInterrupt
            self.played.append((name, first))
            outcome = self.outcomes.get((name, first), Outcome(name, "ok"))
            if outcome.status != "ok":
                on_event(Event("failed", name, "", "", {"msg": "it did not answer", "item": check}))
                on_event(Event(outcome.status, name, "", "", message=f"{check}: {outcome.message}"))
                return outcome
            on_event(Event("ok", name, "", "", {"gpuprov": self._answer(name, commands), "item": check}))
        return Outcome(name, "ok")

    def _answer(self, name: str, commands: list[dict[str, Any]]) -> dict[str, Any]:
        outputs = [
            {
                "name": command["name"],
                "argv": command["argv"],
                "rc": 0,
                "stdout": (FIXTURES / self._sample(name, command)).read_bytes().decode(),
                "stderr": "",
                "seconds": 1.5,
                "timed_out": False,
                "truncated": False,
                "not_started": "",
            }
            for command in commands
        ]
        outputs.append({**outputs[0], "name": KERNEL_LOG_DELTA, "argv": [], "stdout": "", "seconds": 0.0})
        return {"outputs": outputs, "boot_id": self.boot_id}

    def _sample(self, name: str, command: Mapping[str, Any]) -> str:
        """Return the program's output; for nvbandwidth, of the requested test case."""
        case = "device_local_copy" in command["argv"]
        return self.tools[name]["device_local_copy" if case else command["name"]]


def replaced(found: M, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> M:
    """Replace both entry points with these machines, and keep all state below `tmp_path`."""
    monkeypatch.setattr(validation, "observe", found.observe)
    monkeypatch.setattr(fleet_lock, "run_programs", found.locks.programs)
    monkeypatch.setattr(fleet_lock, "RETRY", 0.0)
    monkeypatch.setattr(runner, "run_playbook", found.run_playbook)
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return found


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machines:
    return replaced(Machines(), monkeypatch, tmp_path)


@pytest.fixture
def validate(
    machines: Machines, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Run `validate`, by default on a healthy gpu-01; returns code, report document and run folder."""

    def run(
        *arguments: str, variables: Mapping[str, Any] | None = None, checks: Sequence[str] = FOUR
    ) -> tuple[int, dict[str, Any], Path]:
        if not machines.tools and not machines.errors:
            machines.add("gpu-01")
        nodes = {
            name: Node(name, (), {**(variables or {}), **machines.variables.get(name, {})})
            for name in {**machines.tools, **machines.errors}
        }
        fleet = Fleet(tmp_path / "inventory.yml", nodes, {})
        # Ansible takes a second to read an inventory; two tests below read a real one.
        monkeypatch.setattr(fleet_options, "loaded", lambda _options: LoadedFleet(fleet, {}))
        own = {"--checks", "--stage", "--resume"} & {*arguments}
        chosen = ["--checks", ",".join(checks)] if checks and not own else []
        code = cli.main(["validate", "--json", *chosen, *arguments])
        text = capsys.readouterr().out
        folder = max((tmp_path / "runs").glob("*-validate"))
        return code, json.loads(text) if text.strip() else {}, folder

    return run


def named(report: Mapping[str, Any]) -> set[tuple[str, str, str, str]]:
    return {
        (node["node"], check["check"], finding["device"], finding["verdict"])
        for node in report["nodes"]
        for check in node["checks"]
        for finding in check["findings"]
        if finding["verdict"] != "pass"
    }


def verdicts(report: Mapping[str, Any]) -> dict[str, str]:
    return {node["node"]: node["verdict"] for node in report["nodes"]}


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]


def message(report: Mapping[str, Any], node: str) -> str:
    (found,) = [one for one in report["nodes"] if one["node"] == node]
    return "; ".join(finding["message"] for check in found["checks"] for finding in check["findings"])
