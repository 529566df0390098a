"""Nodes of a lab that are under a real Slurm and have nothing else: the health result of each is written by
the test, and the ledger of what was done to them is the log of slurmctld."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from benchmarks import health_results
from provision.remote.schedulers import PREFIX
from tests.lab.lab_nodes import LabNode
from tests.lab.watches import declare

PARTITION = "gpu"
_WRITE = (
    "mkdir -p {0} && cat > {0}/.new && chown root:root {0}/.new && chmod 644 {0}/.new && mv {0}/.new {0}/{1}"
)
_REASON = re.compile(r"update_node: node (\S+) reason set to: (.*)")
_STATE = re.compile(r"update_node: node (\S+) state set to (\S+)")


@dataclass
class Health:
    """The health results of these nodes, as their own program would write them."""

    nodes: Mapping[str, LabNode]
    _boots: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, lost: int | None = None) -> None:
        """From now on the node is healthy, or has lost this GPU."""
        node = self.nodes[name]
        if name not in self._boots:
            self._boots[name] = node.boot_id()
        result = health_results.healthy(name) if lost is None else health_results.lost(lost, name)
        command = _WRITE.format(health_results.FOLDER, health_results.FILE)
        node.as_root(command, said=json.dumps({**result, "boot_id": self._boots[name]}))


@dataclass(frozen=True)
class Change:
    """One thing that slurmctld did to a node: `drain` with a reason (also a new reason of a drained node) or
    `resume`."""

    kind: str
    node: str
    reason: str = ""


@dataclass(frozen=True)
class Ledger:
    """The changes that slurmctld has logged."""

    controller: LabNode

    def changes(self) -> list[Change]:
        log = self.controller.as_root("journalctl -u slurmctld -o cat --no-pager").stdout
        return list(_changes(log.splitlines()))

    def partition(self) -> str:
        """The nodes of the partition, as a host list."""
        text = self.controller.as_root(f"scontrol show partition {PARTITION}").stdout
        return str(re.findall(r"^ +Nodes=(\S+)", text, re.MULTILINE)[0])

    def leave(self, node: str) -> None:
        """Take a node out of the partition."""
        self.controller.as_root(f"scontrol update PartitionName={PARTITION} Nodes-={node}")


def _changes(lines: Sequence[str]) -> Iterator[Change]:
    reasons: dict[str, str] = {}
    for line in lines:
        if match := _REASON.search(line):
            reasons[match[1]] = match[2].removeprefix(PREFIX)
        elif match := _STATE.search(line):
            reason = reasons.get(match[1], "") if match[2].startswith("DRAIN") else ""
            yield Change("drain" if reason else "resume", match[1], reason)


def bare_fleet(inventory: Path, target: Path, spares: list[str], controller: str, **policy: object) -> Path:
    """An inventory of these nodes for `gpuprov watch`: no role is declared, and no GPU expected."""
    declare(
        inventory,
        target,
        spares,
        controller,
        gpuprov_roles=[],
        gpuprov_expected_gpus=0,
        nvidia_driver_require_gpu=False,
        gpuprov_watch=policy,
    )
    declared = yaml.safe_load(target.read_text())
    del declared["gpu_nodes"]["vars"]["node_health_enabled"]  # the test writes the results
    target.write_text(yaml.safe_dump(declared))
    return target
